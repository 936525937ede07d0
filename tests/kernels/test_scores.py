"""Page bounds, page and token scores and group reduction, naive and in Triton, against float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from kernel_inputs import HALF_AND_SINGLE, INFINITY, Cache, on_device, poison_past, ragged, same
from longdecode.kernels.layout import GROUP_REDUCTIONS, group_reduce
from longdecode.kernels.page_minmax import PageBounds, build_page_minmax
from longdecode.kernels.page_minmax import gpu as minmax_gpu
from longdecode.kernels.page_minmax import naive as minmax_naive
from longdecode.kernels.page_score import gpu as page_gpu
from longdecode.kernels.page_score import naive as page_naive
from longdecode.kernels.score_rows import ScoreLaunch
from longdecode.kernels.token_score import gpu as token_gpu
from longdecode.kernels.token_score import naive as token_naive
from longdecode.kernels.token_score import token_logits, token_probabilities

REDUCTIONS = [None, *GROUP_REDUCTIONS]
LAUNCHES = [None, ScoreLaunch(16, 1, 4, 1), ScoreLaunch(16, 3, 4, 2), ScoreLaunch(64, 2, 8, 4)]
BY_DTYPE = pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)
# batch, KV heads, group, head dimension, tokens or pages
SHAPES = [(3, 2, 1, 32, 15), (2, 1, 4, 64, 129), (1, 2, 7, 80, 63), (1, 1, 16, 128, 1)]


def reduced(scores: Tensor, lengths: Tensor, how: str | None) -> Tensor:
    """Scores ``[B, Hkv, g, n]`` reduced over the group, minus infinity past each length."""
    scores = scores.flatten(1, 2) if how is None else scores.amax(2) if how == "max" else getattr(scores, how)(2)
    return torch.where(torch.arange(scores.shape[-1]) < lengths[:, None, None], scores, -INFINITY)


def check_logits(cache: Cache, how: str | None, scale: float | None = None, launch: ScoreLaunch | None = None) -> None:
    """Naive and Triton; infinities in the same places, the rest within float32 sums."""
    q, k, _, lengths = cache
    rows = (scale or q.shape[-1] ** -0.5) * q.double().unflatten(1, (k.shape[1], -1))[:, :, :, 0]
    want = reduced(rows @ k.nan_to_num(0.0).double().transpose(-1, -2), lengths, how)
    got = token_gpu.token_logits_gpu(*on_device(q, k, lengths), group=how, scale=scale, launch=launch)
    for found in (got.cpu(), token_naive.token_logits(q, k, lengths, group=how, scale=scale)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), want, atol=1e-3, rtol=1e-4)


def check_pages(cache: Cache, how: str | None, launch: ScoreLaunch | None = None) -> None:
    """Naive and Triton; products are exact in float32 and sums run in it, whatever the dtype."""
    q, low, wide, used = cache
    exact = PageBounds(low, (low + wide.abs()).to(low.dtype))
    codes, scale = PageBounds(*(x.to(torch.float8_e4m3fn) for x in exact)), torch.linspace(0.5, 2, low.shape[3])
    for bounds, k_scale in ((exact, None), (codes, scale.expand(*low.shape[:2], -1).contiguous())):
        rows = q.double().unflatten(1, (low.shape[1], -1)) * (1 if k_scale is None else scale.double())
        numbers = (rows * x.double().nan_to_num(0.0)[:, :, None] for x in bounds)
        want = reduced(torch.maximum(*numbers).sum(-1), used, how)
        on_q, on_used, on_scale, *moved = on_device(q, used, k_scale, *bounds)
        got = page_gpu.page_score_gpu(on_q, PageBounds(*moved), on_used, group=how, k_scale=on_scale, launch=launch)
        near = 1e-3 if k_scale is None or q.dtype == torch.float32 else 5e-2  # scaled queries are float16
        for found in (got.cpu(), page_naive.page_score(q, bounds, used, group=how, k_scale=k_scale)):
            assert found.dtype == torch.float32
            torch.testing.assert_close(found.double(), want, atol=near, rtol=1e-4)


@BY_DTYPE
@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_token_logits(rng: torch.Generator, shape: tuple[int, ...], how: str | None, dtype: torch.dtype) -> None:
    check_logits(ragged(rng, *shape, dtype=dtype, sharpness=1.0), how)


@BY_DTYPE
@pytest.mark.parametrize("how", REDUCTIONS)
@pytest.mark.parametrize("shape", [*SHAPES, (2, 2, 4, 64, 70), (2, 2, 16, 128, 9)], ids=str)
def test_page_scores(rng: torch.Generator, shape: tuple[int, ...], how: str | None, dtype: torch.dtype) -> None:
    check_pages(ragged(rng, *shape, dtype=dtype, sharpness=1.0), how)


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("how", [None, "max"])
def test_any_launch(rng: torch.Generator, launch: ScoreLaunch, how: str | None) -> None:
    """Tiles that reach past the last key or page, in loops of one program."""
    check_logits(ragged(rng, 2, 1, 4, 32, 150, sharpness=1.0), how, scale=1.0, launch=launch)
    check_pages(ragged(rng, 2, 1, 4, 32, 70, fewest=33, sharpness=1.0), how, launch)


@BY_DTYPE
@pytest.mark.parametrize("size", [1, 15, 63, 1000])
def test_token_probabilities(rng: torch.Generator, size: int, dtype: torch.dtype) -> None:
    q, k, _, lengths = ragged(rng, 3, 2, 4, 64, size, dtype=dtype, fewest=1, sharpness=1.0)
    got = token_probabilities(*on_device(q, k, lengths)).cpu()
    for b, n in enumerate(lengths.tolist()):
        assert got[b, :, n:].eq(0).all()
        for h in range(8):
            want = (k[b, h // 4, :n].double() @ q[b, h, 0].double() / 8).softmax(0)
            torch.testing.assert_close(got[b, h, :n].double(), want, atol=1e-5, rtol=1e-4)


def test_page_scores_bound_every_key(rng: torch.Generator) -> None:
    q, k, _, lengths = ragged(rng, 2, 2, 2, 32, 50, fewest=20)
    scores = page_naive.page_score(q, build_page_minmax(k, lengths, 16), -(-lengths // 16))
    logits = token_logits(q, k, lengths, scale=1.0)
    for i in range(50):
        visible = logits[:, :, i].isfinite()
        assert (logits[:, :, i] <= scores[:, :, i // 16] + 1e-4)[visible].all()


def extremes(k: Tensor, lengths: Tensor, page: int) -> PageBounds:
    """Bounds page by page; those of a page without tokens are zero."""
    bounds = PageBounds(*(torch.zeros(*k.shape[:2], -(-k.shape[2] // page), k.shape[3]).to(k.dtype) for _ in range(2)))
    for b, n in enumerate(lengths.tolist()):
        for at in range(-(-n // page)):
            inside = k[b, :, at * page : min((at + 1) * page, n)]
            bounds.minimum[b, :, at], bounds.maximum[b, :, at] = inside.amin(dim=1), inside.amax(dim=1)
    return bounds


PAGES = [(1, 32), (3, 80), (4, 32), (16, 64), (40, 32)]


@pytest.mark.parametrize(
    ("page", "dim", "size", "dtype"),
    [(*PAGES[i], n, HALF_AND_SINGLE[(i + j) % 3]) for i in range(len(PAGES)) for j, n in enumerate((1, 15, 63, 130))],
    ids=str,
)
def test_page_bounds(rng: torch.Generator, page: int, dim: int, size: int, dtype: torch.dtype) -> None:
    """Bit by bit; every pair of pages, sizes and dtypes."""
    _, k, _, lengths = ragged(rng, 3, 2, 1, dim, size, dtype=dtype)
    want = extremes(k, lengths, page)
    same(minmax_naive.build_page_minmax(k, lengths, page), want)
    same(minmax_gpu.build_page_minmax_gpu(*on_device(k, lengths), page), want)


@pytest.mark.parametrize("numbers", [(4, 1, 2), (8, 16, 8), (32, 4, 4)])
def test_page_bounds_of_any_launch(rng: torch.Generator, numbers: tuple[int, int, int]) -> None:
    _, k, _, lengths = ragged(rng, 2, 2, 1, 32, 100)
    launch = minmax_gpu.MinmaxLaunch(*numbers)
    same(minmax_gpu.build_page_minmax_gpu(*on_device(k, lengths), 16, launch=launch), extremes(k, lengths, 16))


def test_appending_equals_building_anew(rng: torch.Generator) -> None:
    """Rows of different lengths grow across page borders; pages not yet begun hold NaN."""
    k, lengths, page = torch.randn(3, 2, 70, 32, generator=rng), torch.tensor([1, 16, 30]), 16
    bounds = build_page_minmax(k, lengths, page)
    poison_past(-(-lengths // page), *bounds)
    for _ in range(40):
        new = k.gather(2, lengths[:, None, None, None].expand(3, 2, 1, 32))
        minmax_naive.update_page_minmax(bounds, new, lengths[:, None, None].expand(3, 2, 1), page)
        lengths = lengths + 1
        want = extremes(k, lengths, page)
        for b, used in enumerate((-(-lengths // page)).tolist()):
            same([x[b, :, :used] for x in bounds], [x[b, :, :used] for x in want])


def test_what_cannot_be_meant_is_refused(rng: torch.Generator) -> None:
    q, k, _, lengths = ragged(rng, 1, 2, 2, 32, 8)
    for refused in (
        partial(token_gpu.token_logits_gpu, q, k, lengths, group="median"),
        partial(page_gpu.page_score_gpu, q, PageBounds(k, k), lengths, group="median"),
        partial(group_reduce, torch.zeros(1, 2, 3), 1, "median"),
    ):
        with pytest.raises(ValueError, match="median"):
            refused()
    with pytest.raises(ValueError, match="one row each"):
        token_gpu.token_logits_gpu(q.expand(1, 4, 3, 32), k, lengths)
    with pytest.raises(ValueError, match="one dtype"):
        token_gpu.token_logits_gpu(q, k.half(), lengths)


@pytest.mark.gpu
@BY_DTYPE
@pytest.mark.parametrize("size", [63, 2047, 70_000])
@pytest.mark.parametrize("shape", [(1, 8, 4, 128), (5, 4, 2, 32), (3, 2, 16, 64), (2, 3, 1, 96)])
def test_equals_naive_on_the_device(seed: int, shape: tuple[int, ...], size: int, dtype: torch.dtype) -> None:
    rng = torch.Generator("cuda").manual_seed(seed)
    q, k, _, lengths = ragged(rng, *shape, size, dtype=dtype, sharpness=1.0)
    close = {"atol": 1e-3, "rtol": 1e-3}
    bounds, used = minmax_gpu.build_page_minmax_gpu(k, lengths, 16), -(-lengths // 16)
    same(bounds, minmax_naive.build_page_minmax(k, lengths, 16))
    for how in REDUCTIONS:
        want = token_naive.token_logits(q, k, lengths, group=how)
        torch.testing.assert_close(token_gpu.token_logits_gpu(q, k, lengths, group=how), want, **close)
        for launch in (None, ScoreLaunch(32, 4, 4, 2), ScoreLaunch(64, 1, 4, 1)):
            got = page_gpu.page_score_gpu(q, bounds, used, group=how, launch=launch)
            torch.testing.assert_close(got, page_naive.page_score(q, bounds, used, group=how), **close)
