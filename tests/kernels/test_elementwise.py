"""Norm, rotary embedding and gate, naive and in Triton, against formulas written out in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from kernel_inputs import DEVICE, HALF_AND_SINGLE, captured, close, normed, random_on_device, rotated, rotation
from longdecode.kernels.linear import naive as silu_naive
from longdecode.kernels.linear import silu_mul
from longdecode.kernels.linear.silu_gpu import silu_mul_gpu
from longdecode.kernels.page_minmax import build_page_minmax
from longdecode.kernels.page_score import naive as page_naive
from longdecode.kernels.page_score.gpu import page_score_gpu
from longdecode.kernels.rms_norm import naive as norm_naive
from longdecode.kernels.rms_norm import rms_norm
from longdecode.kernels.rms_norm.gpu import rms_norm_gpu
from longdecode.kernels.rope import apply_rope
from longdecode.kernels.rope import naive as rope_naive
from longdecode.kernels.rope.gpu import apply_rope_gpu, rotate_gpu

TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
NORMS = pytest.mark.parametrize("norm", [rms_norm, rms_norm_gpu])
BY_DTYPE = pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)


@BY_DTYPE
@pytest.mark.parametrize("shape", [(1,), (3, 15), (2, 1, 1000), (2, 3, 4, 64)], ids=str)
@NORMS
def test_rms_norm(rng: Generator, norm: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = ((scale * torch.randn(size, generator=rng)).to(dtype) for scale, size in ((3, shape), (1, shape[-1:])))
    got = norm(x.to(DEVICE), weight.to(DEVICE), 1e-2)
    assert got.dtype == dtype and got.shape == x.shape
    close(got, normed(x, weight, 1e-2), TOLERANCE[dtype])


@NORMS
def test_rms_norm_reads_the_heads_of_a_fused_projection(rng: Generator, norm: Any) -> None:
    fused, weight = torch.randn(2, 3, 7, 32, generator=rng), torch.randn(32, generator=rng)
    got = norm(fused.to(DEVICE)[:, :, 2:6], weight.to(DEVICE), 1e-5)
    close(got, normed(fused[:, :, 2:6], weight, 1e-5), TOLERANCE[torch.float32])


@BY_DTYPE
@pytest.mark.parametrize(("heads", "kv_heads", "tokens", "dim"), [(1, 1, 1, 32), (9, 3, 1, 128), (6, 2, 5, 20)])
@pytest.mark.parametrize("rope", [apply_rope, apply_rope_gpu])
def test_rope(rng: Generator, rope: Any, heads: int, kv_heads: int, tokens: int, dim: int, dtype: torch.dtype) -> None:
    """Queries and keys are views of one projection, as in the engine; the angles of one row may serve all."""
    fused = torch.randn(2, tokens, heads + kv_heads, dim, generator=rng).to(dtype)
    for rows in (2, 1):
        turns, cos, sin = rotation(rng, rows, tokens, dim)
        q, k = (x.transpose(1, 2) for x in fused.to(DEVICE).split((heads, kv_heads), dim=2))
        for got, x in zip(rope(q, k, cos.to(DEVICE), sin.to(DEVICE)), (q, k), strict=True):
            assert got.dtype == dtype and got.shape == x.shape
            close(got, rotated(x.cpu(), turns), TOLERANCE[dtype])


def test_rotating_one_tensor(rng: Generator) -> None:
    x = torch.randn(2, 3, 4, 32, generator=rng)
    turns, cos, sin = rotation(rng, 2, 4, 32)
    close(rotate_gpu(*(t.to(DEVICE) for t in (x, cos, sin))), rotated(x, turns), TOLERANCE[torch.float32])


@BY_DTYPE
@pytest.mark.parametrize("width", [1, 15, 1100])
@pytest.mark.parametrize("gate", [silu_mul, silu_mul_gpu])
def test_silu_mul(rng: Generator, gate: Any, width: int, dtype: torch.dtype) -> None:
    x = (2 * torch.randn(2, 3, 2 * width, generator=rng)).to(dtype)
    got = gate(x.to(DEVICE))
    assert got.dtype == dtype and got.shape == (2, 3, width)
    first, second = x.double().chunk(2, dim=-1)
    close(got, first / (1 + (-first).exp()) * second, TOLERANCE[dtype])


def test_a_misfit_is_refused() -> None:
    with pytest.raises(ValueError, match="weight"):
        rms_norm_gpu(torch.ones(2, 8), torch.ones(4), 1e-5)
    with pytest.raises(ValueError, match="7 channels"):
        silu_mul_gpu(torch.ones(2, 7))


@pytest.mark.gpu
@BY_DTYPE
@pytest.mark.parametrize(("heads", "kv", "dim"), [(32, 8, 128), (8, 4, 32), (12, 3, 96)])
@pytest.mark.parametrize("tokens", [1, 513])
def test_equals_naive_in_graphs(seed: int, heads: int, kv: int, dim: int, tokens: int, dtype: torch.dtype) -> None:
    """Every op and page scores at a model's shapes, eager and replayed on fresh inputs after one capture."""
    hidden, q, k, weight, gate_up, one, cache, cos, sin = inputs = random_on_device(
        seed, (3, tokens, heads * dim), (3, heads, tokens, dim), (3, kv, tokens, dim), (heads * dim,),
        (3, tokens, 6 * heads * dim), (3, heads, 1, dim), (3, kv, 2047, dim), (3, tokens, dim), (3, tokens, dim),
        dtype=dtype,
    )  # fmt: skip
    cos[..., dim // 2 :], sin[..., dim // 2 :] = cos[..., : dim // 2], sin[..., : dim // 2]
    lengths = torch.randint(1, 2048, (3,), device="cuda")
    bounds, used = build_page_minmax(cache, lengths, 16), -(-lengths // 16)

    def run(norm: Any, rope: Any, silu: Any, score: Any) -> list[Tensor]:
        scores = [score(one, bounds, used, group=how) for how in (None, "max", "mean")]
        return [norm(hidden, weight, 1e-5), *rope(q, k, cos, sin), silu(gate_up), *scores]

    def compare(got: list[Tensor]) -> None:
        want = run(norm_naive.rms_norm, rope_naive.apply_rope, silu_naive.silu_mul, page_naive.page_score)
        for a, b in zip(got, want, strict=True):
            tolerance = 1e-4 if a.dtype == torch.float32 else TOLERANCE[dtype]
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)

    graph, found = captured(lambda: run(rms_norm_gpu, apply_rope_gpu, silu_mul_gpu, page_score_gpu))
    compare(run(rms_norm_gpu, apply_rope_gpu, silu_mul_gpu, page_score_gpu))
    fresh = random_on_device(seed + 1, *(x.shape for x in inputs[:3]), dtype=dtype)
    for old, new in zip(inputs[:3], fresh, strict=True):
        old.copy_(new)
    graph.replay()
    compare(found)
