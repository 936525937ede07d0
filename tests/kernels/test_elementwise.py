"""Norm, rotary embedding and gate against formulas written out in float64."""

from __future__ import annotations

import math

import pytest
import torch

from longdecode.kernels.rms_norm import rms_norm
from longdecode.kernels.rope import apply_rope
from longdecode.kernels.silu_mul import silu_mul

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [1, 15, 64, 1000])
def test_rms_norm(rng: torch.Generator, width: int, dtype: torch.dtype) -> None:
    x = (3 * torch.randn(2, 3, width, generator=rng)).to(dtype)
    weight = torch.randn(width, generator=rng).to(dtype)
    got = rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    wide = x.double()
    want = weight.double() * wide / (wide.pow(2).sum(-1, keepdim=True) / width + 1e-5).sqrt()
    torch.testing.assert_close(got.double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_rope_turns_each_pair_by_its_angle(rng: torch.Generator, dim: int, dtype: torch.dtype) -> None:
    q = torch.randn(2, 6, 5, dim, generator=rng).to(dtype)
    k = torch.randn(2, 2, 5, dim, generator=rng).to(dtype)
    angles = 100 * torch.rand(2, 5, dim // 2, generator=rng, dtype=torch.float64)
    cos, sin = (torch.cat((f(angles), f(angles)), dim=-1).float() for f in (torch.cos, torch.sin))
    for got, x in zip(apply_rope(q, k, cos, sin), (q, k), strict=True):
        assert got.dtype == dtype
        pairs = torch.complex(x[..., : dim // 2].double(), x[..., dim // 2 :].double())
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
        want = torch.cat((turned.real, turned.imag), dim=-1)
        torch.testing.assert_close(got.double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("width", [1, 15, 640])
def test_silu_mul(rng: torch.Generator, width: int, dtype: torch.dtype) -> None:
    x = (2 * torch.randn(3, 2 * width, generator=rng)).to(dtype)
    got = silu_mul(x)
    assert got.dtype == dtype and got.shape == (3, width)
    for r in range(3):
        for c in {0, width // 2, width - 1}:
            gate, up = x[r, c].double().item(), x[r, width + c].double().item()
            want = gate / (1 + math.exp(-gate)) * up
            assert got[r, c].item() == pytest.approx(want, abs=TOLERANCE[dtype], rel=TOLERANCE[dtype])
