"""The small Triton kernels against float64: in Triton's interpreter without a GPU, on the device with one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from longdecode.kernels.page_minmax import PageBounds, build_page_minmax
from longdecode.kernels.page_score import naive as page_naive
from longdecode.kernels.page_score.gpu import page_score_gpu
from longdecode.kernels.rms_norm import naive as norm_naive
from longdecode.kernels.rms_norm.gpu import rms_norm_gpu
from longdecode.kernels.rope import naive as rope_naive
from longdecode.kernels.rope.gpu import apply_rope_gpu, rotate_gpu
from longdecode.kernels.silu_mul import naive as silu_naive
from longdecode.kernels.silu_mul.gpu import silu_mul_gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
NAN = float("nan")


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.cpu().double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1,), (3, 15), (2, 1, 1000), (2, 3, 4, 64)], ids=str)
def test_rms_norm(rng: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (3 * torch.randn(shape, generator=rng)).to(dtype)
    weight = torch.randn(shape[-1], generator=rng).to(dtype)
    got = rms_norm_gpu(x.to(DEVICE), weight.to(DEVICE), 1e-2)
    assert got.dtype == dtype and got.shape == x.shape
    wide = x.double()
    close(got, weight.double() * wide / (wide.square().mean(-1, keepdim=True) + 1e-2).sqrt(), dtype)


def test_rms_norm_reads_the_heads_of_a_fused_projection(rng: torch.Generator) -> None:
    fused = torch.randn(2, 3, 7, 32, generator=rng)
    heads, weight = fused[:, :, 2:6], torch.randn(32, generator=rng)
    wide = heads.double()
    want = weight.double() * wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    close(rms_norm_gpu(fused.to(DEVICE)[:, :, 2:6], weight.to(DEVICE), 1e-5), want, torch.float32)


def test_rms_norm_refuses_a_weight_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="weight"):
        rms_norm_gpu(torch.ones(2, 8), torch.ones(4), 1e-5)


def angles(rng: torch.Generator, batch: int, tokens: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Angles of each pair in float64, their cosines and sines as the engine stores them."""
    turns = 100 * torch.rand(batch, tokens, dim // 2, generator=rng, dtype=torch.float64)
    cos, sin = (torch.cat((f(turns), f(turns)), dim=-1).float() for f in (torch.cos, torch.sin))
    return turns, cos, sin


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Each pair as a complex number, multiplied by its unit phase."""
    first, second = x.double().chunk(2, dim=-1)
    product = torch.complex(first, second) * torch.polar(torch.ones_like(turns), turns)[:, None]
    return torch.cat((product.real, product.imag), dim=-1)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "tokens", "dim"), [(1, 1, 1, 32), (9, 3, 1, 128), (6, 2, 5, 20)])
def test_rope(rng: torch.Generator, heads: int, kv_heads: int, tokens: int, dim: int, dtype: torch.dtype) -> None:
    """Queries and keys are views of one projection, as in the engine; the angles of one row may serve all."""
    fused = torch.randn(2, tokens, heads + kv_heads, dim, generator=rng).to(dtype)
    for rows in (2, 1):
        turns, cos, sin = angles(rng, rows, tokens, dim)
        q, k = (x.transpose(1, 2) for x in fused.to(DEVICE).split((heads, kv_heads), dim=2))
        outs = apply_rope_gpu(q, k, cos.to(DEVICE), sin.to(DEVICE))
        for got, x in zip(outs, (q, k), strict=True):
            assert got.dtype == dtype and got.shape == x.shape
            close(got, turned(x.cpu(), turns), dtype)


def test_rotating_one_tensor(rng: torch.Generator) -> None:
    x = torch.randn(2, 3, 4, 32, generator=rng)
    turns, cos, sin = angles(rng, 2, 4, 32)
    close(rotate_gpu(*(t.to(DEVICE) for t in (x, cos, sin))), turned(x, turns), torch.float32)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [1, 15, 1100])
def test_silu_mul(rng: torch.Generator, width: int, dtype: torch.dtype) -> None:
    x = (2 * torch.randn(2, 3, 2 * width, generator=rng)).to(dtype)
    got = silu_mul_gpu(x.to(DEVICE))
    assert got.dtype == dtype and got.shape == (2, 3, width)
    gate, up = x.double()[..., :width], x.double()[..., width:]
    close(got, gate / (1 + (-gate).exp()) * up, dtype)


def test_silu_mul_refuses_halves_that_do_not_match() -> None:
    with pytest.raises(ValueError, match="7 channels"):
        silu_mul_gpu(torch.ones(2, 7))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("how", [None, "max", "sum", "mean"])
@pytest.mark.parametrize(("group", "dim", "pages"), [(1, 32, 1), (4, 64, 70), (7, 80, 15), (16, 128, 9)])
def test_page_score(
    rng: torch.Generator, group: int, dim: int, pages: int, how: str | None, dtype: torch.dtype
) -> None:
    kv = 2
    q = torch.randn(2, kv * group, 1, dim, generator=rng).to(dtype)
    low = torch.randn(2, kv, pages, dim, generator=rng)
    bounds = PageBounds(low.to(dtype), (low + torch.rand(low.shape, generator=rng)).to(dtype))
    used = torch.tensor([pages, pages // 2])
    for bound in bounds:
        bound[1, :, pages // 2 :] = NAN
    got = page_score_gpu(q.to(DEVICE), PageBounds(*(x.to(DEVICE) for x in bounds)), used.to(DEVICE), group=how).cpu()
    assert got.dtype == torch.float32 and got.shape == (2, kv if how else kv * group, pages)
    for b, number in enumerate(used.tolist()):
        assert got[b, :, number:].eq(float("-inf")).all()
        rows = q[b].double().view(kv, group, 1, dim)
        products = [rows * bound[b, :, None, :number].double() for bound in bounds]
        want = torch.maximum(*products).sum(-1)
        want = want.flatten(0, 1) if how is None else want.amax(1) if how == "max" else getattr(want, how)(1)
        # Products are exact in float32 and sums run in it, whatever the dtype.
        torch.testing.assert_close(got[b, :, :number].double(), want, atol=1e-3, rtol=1e-4)


def test_page_score_refuses_an_unknown_reduction() -> None:
    x = torch.zeros(1, 1, 1, 32)
    with pytest.raises(ValueError, match="median"):
        page_score_gpu(x, PageBounds(x, x), torch.tensor([1]), group="median")


def on_the_device(seed: int, *shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    rng = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(shape, generator=rng, device="cuda").to(dtype) for shape in shapes]


def bounded(k: Tensor) -> tuple[PageBounds, Tensor]:
    """Bounds of pages of 16 and the pages in use of rows of random length."""
    lengths = torch.randint(1, k.shape[2] + 1, (k.shape[0],), device=k.device)
    return build_page_minmax(k, lengths, 16), -(-lengths // 16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("heads", "kv", "dim"), [(32, 8, 128), (8, 4, 32), (12, 3, 96)])
@pytest.mark.parametrize("tokens", [1, 513])
def test_equals_naive_on_the_device_and_in_a_graph(
    seed: int, heads: int, kv: int, dim: int, tokens: int, dtype: torch.dtype
) -> None:
    """Every op at a model's shapes, eager and replayed on fresh inputs after one capture."""
    hidden, q, k, weight, gate_up, one, cache, cos, sin = inputs = on_the_device(
        seed, (3, tokens, heads * dim), (3, heads, tokens, dim), (3, kv, tokens, dim), (heads * dim,),
        (3, tokens, 6 * heads * dim), (3, heads, 1, dim), (3, kv, 2047, dim), (3, tokens, dim), (3, tokens, dim),
        dtype=dtype,
    )  # fmt: skip
    cos[..., dim // 2 :], sin[..., dim // 2 :] = cos[..., : dim // 2], sin[..., : dim // 2]
    bounds, used = bounded(cache)

    def run(norm: Any, rope: Any, silu: Any, score: Any) -> list[Tensor]:
        scores = [score(one, bounds, used, group=how) for how in (None, "max", "mean")]
        return [norm(hidden, weight, 1e-5), *rope(q, k, cos, sin), silu(gate_up), *scores]

    def compare(got: list[Tensor]) -> None:
        want = run(norm_naive.rms_norm, rope_naive.apply_rope, silu_naive.silu_mul, page_naive.page_score)
        for a, b in zip(got, want, strict=True):
            tolerance = 1e-4 if a.dtype == torch.float32 else TOLERANCE[dtype]
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)

    fast = (rms_norm_gpu, apply_rope_gpu, silu_mul_gpu, page_score_gpu)
    compare(run(*fast))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(*fast)
    for tensor, fresh in zip(
        inputs[:3], on_the_device(seed + 1, *(x.shape for x in inputs[:3]), dtype=dtype), strict=True
    ):
        tensor.copy_(fresh)
    graph.replay()
    compare(captured)
