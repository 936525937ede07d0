"""Scores and page bounds in Triton against float64: in Triton's interpreter without a GPU, on the device with one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longdecode.kernels.group_reduce import GROUP_REDUCTIONS
from longdecode.kernels.group_reduce.rows import ScoreLaunch
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.page_minmax import gpu as minmax_gpu
from longdecode.kernels.page_minmax import naive as minmax_naive
from longdecode.kernels.page_score import gpu as page_gpu
from longdecode.kernels.page_score import naive as page_naive
from longdecode.kernels.token_score import gpu as token_gpu
from longdecode.kernels.token_score import naive as token_naive

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAN = float("nan")
REDUCTIONS = [None, *GROUP_REDUCTIONS]


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what the kernels are given to write with NaN."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **how: empty(*shape, **how).fill_(NAN))


def ragged(
    rng: torch.Generator, batch: int, kv: int, group: int, dim: int, size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys that are NaN past random lengths, and the lengths: one row full, the last empty."""
    q = torch.randn(batch, kv * group, 1, dim, generator=rng).to(dtype)
    k = torch.randn(batch, kv, size, dim, generator=rng).to(dtype)
    lengths = torch.randint(0, size + 1, (batch,), generator=rng)
    lengths[0], lengths[-1] = size, 0 if batch > 1 else size
    for b, length in enumerate(lengths.tolist()):
        k[b, :, length:] = NAN
    return q, k, lengths


def on(*tensors: Tensor) -> list[Tensor]:
    return [x.to(DEVICE) for x in tensors]


def wide_logits(q: Tensor, k: Tensor, lengths: Tensor, scale: float, how: str | None) -> Tensor:
    """The definition, row by row in float64."""
    batch, heads, _, _ = q.shape
    kv, size = k.shape[1:3]
    out = torch.full((batch, kv if how else heads, size), float("-inf"), dtype=torch.float64)
    for b, length in enumerate(lengths.tolist()):
        rows = q[b, :, 0].double().view(kv, heads // kv, -1)
        logits = scale * rows @ k[b, :, :length].double().transpose(-1, -2)
        logits = logits.flatten(0, 1) if how is None else logits.amax(1) if how == "max" else getattr(logits, how)(1)
        out[b, :, :length] = logits
    return out


def same(got: Tensor, want: Tensor) -> None:
    """Infinities in the same places, the rest within float32 sums."""
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu().double(), want, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize(
    ("batch", "kv", "group", "dim", "size"),
    [(3, 2, 1, 32, 15), (2, 1, 4, 64, 129), (1, 2, 7, 80, 63), (1, 1, 16, 128, 1)],
)
def test_token_logits(
    rng: torch.Generator, batch: int, kv: int, group: int, dim: int, size: int, how: str | None, dtype: torch.dtype
) -> None:
    q, k, lengths = ragged(rng, batch, kv, group, dim, size, dtype)
    want = wide_logits(q, k, lengths, dim**-0.5, how)
    same(token_gpu.token_logits_gpu(*on(q, k, lengths), group=how), want)
    same(token_naive.token_logits(q, k, lengths, group=how), want)


@pytest.mark.parametrize("launch", [ScoreLaunch(16, 1, 4, 1), ScoreLaunch(16, 3, 4, 2), ScoreLaunch(64, 2, 8, 4)])
@pytest.mark.parametrize("how", [None, "max"])
def test_any_launch(rng: torch.Generator, launch: ScoreLaunch, how: str | None) -> None:
    """Tiles that reach past the last key, in loops of one program."""
    q, k, lengths = ragged(rng, 2, 1, 4, 32, 150, torch.float32)
    same(
        token_gpu.token_logits_gpu(*on(q, k, lengths), scale=1.0, group=how, launch=launch),
        wide_logits(q, k, lengths, 1.0, how),
    )
    low, high = (k[:, :, i::2][:, :, :70] for i in range(2))
    bounds, used = PageBounds(torch.minimum(low, high), torch.maximum(low, high)), torch.tensor([70, 33])
    bounds.minimum[1, :, 33:], bounds.maximum[1, :, 33:] = NAN, NAN
    bounds = PageBounds(bounds.minimum.nan_to_num(0.0), bounds.maximum.nan_to_num(0.0))
    got = page_gpu.page_score_gpu(q.to(DEVICE), PageBounds(*on(*bounds)), used.to(DEVICE), group=how, launch=launch)
    rows = q.double().view(2, 1, 4, 1, 32)
    want = torch.maximum(*(rows * bound.double()[:, :, None] for bound in bounds)).sum(-1).view(2, 4, 70)
    want = want if how is None else want.amax(1, keepdim=True)
    same(got, torch.where(torch.arange(70) < used[:, None, None], want, float("-inf")))


def test_scores_refuse_what_they_cannot_mean(rng: torch.Generator) -> None:
    q, k, lengths = ragged(rng, 1, 2, 2, 32, 8, torch.float32)
    with pytest.raises(ValueError, match="median"):
        token_gpu.token_logits_gpu(q, k, lengths, group="median")
    with pytest.raises(ValueError, match="one row each"):
        token_gpu.token_logits_gpu(q.expand(1, 4, 3, 32), k, lengths)
    with pytest.raises(ValueError, match="one dtype"):
        token_gpu.token_logits_gpu(q, k.half(), lengths)


PAGES = [(1, 32), (3, 80), (16, 64), (40, 32)]


@pytest.mark.parametrize(
    ("page", "dim", "size", "dtype"),
    [(*PAGES[i], size, DTYPES[(i + j) % 3]) for i in range(4) for j, size in enumerate((1, 15, 130))],
    ids=str,
)
def test_page_bounds(rng: torch.Generator, page: int, dim: int, size: int, dtype: torch.dtype) -> None:
    """Built bit by bit; every pair of pages, sizes and dtypes."""
    _, k, lengths = ragged(rng, 3, 2, 1, dim, size, dtype)
    built = minmax_gpu.build_page_minmax_gpu(*on(k, lengths), page)
    want = minmax_naive.build_page_minmax(k, lengths, page)
    assert built.minimum.cpu().equal(want.minimum) and built.maximum.cpu().equal(want.maximum)


def test_page_bounds_of_any_launch(rng: torch.Generator) -> None:
    _, k, lengths = ragged(rng, 2, 2, 1, 32, 100, torch.float32)
    want = minmax_naive.build_page_minmax(k, lengths, 16)
    for launch in (
        minmax_gpu.MinmaxLaunch(4, 1, 2),
        minmax_gpu.MinmaxLaunch(8, 16, 8),
        minmax_gpu.MinmaxLaunch(32, 4, 4),
    ):
        got = minmax_gpu.build_page_minmax_gpu(*on(k, lengths), 16, launch=launch)
        assert got.minimum.cpu().equal(want.minimum) and got.maximum.cpu().equal(want.maximum)


@pytest.mark.slow
def test_selection_compiles_for_hopper_without_spills() -> None:
    """In a process of its own: functions decorated under the interpreter cannot be compiled."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
    script = Path(__file__).with_name("compile_selection_for_hopper.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [63, 2047, 70_000])
@pytest.mark.parametrize(
    ("batch", "kv", "group", "dim"), [(1, 8, 4, 128), (5, 4, 2, 32), (3, 2, 16, 64), (2, 3, 1, 96)]
)
def test_equals_naive_on_the_device(
    seed: int, batch: int, kv: int, group: int, dim: int, size: int, dtype: torch.dtype
) -> None:
    rng = torch.Generator("cuda").manual_seed(seed)
    q = torch.randn(batch, kv * group, 1, dim, generator=rng, device="cuda").to(dtype)
    k = torch.randn(batch, kv, size, dim, generator=rng, device="cuda").to(dtype)
    lengths = torch.randint(0, size + 1, (batch,), generator=rng, device="cuda")
    lengths[0] = size
    k.masked_fill_((torch.arange(size, device="cuda") >= lengths[:, None])[:, None, :, None], NAN)
    close = {"atol": 1e-3, "rtol": 1e-3}
    bounds, used = minmax_gpu.build_page_minmax_gpu(k, lengths, 16), -(-lengths // 16)
    for got, want in zip(bounds, minmax_naive.build_page_minmax(k, lengths, 16), strict=True):
        assert got.equal(want)
    for how in REDUCTIONS:
        want = token_naive.token_logits(q, k, lengths, group=how)
        torch.testing.assert_close(token_gpu.token_logits_gpu(q, k, lengths, group=how), want, **close)
        for launch in (None, ScoreLaunch(32, 4, 4, 2), ScoreLaunch(64, 1, 4, 1)):
            got = page_gpu.page_score_gpu(q, bounds, used, group=how, launch=launch)
            torch.testing.assert_close(got, page_naive.page_score(q, bounds, used, group=how), **close)
