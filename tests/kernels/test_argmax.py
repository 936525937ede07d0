"""Argmax against torch, in plain torch and in Triton."""

from __future__ import annotations

import math

import pytest
import torch

from kernel_inputs import DEVICE
from longdecode.kernels.argmax.gpu import argmax_gpu
from longdecode.kernels.argmax.naive import argmax

BOTH = pytest.mark.parametrize("op", [argmax, argmax_gpu])


@BOTH
@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 4096), (1, 4097), (2, 9001)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_value_is_found(rng: torch.Generator, op, shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=rng).to(dtype)
    got = op(x.to(DEVICE)).cpu()
    assert got.dtype == torch.int64
    for row, index in enumerate(got.tolist()):
        assert x[row, index] == x[row].max() and not (x[row, :index] == x[row].max()).any()


@BOTH
def test_of_equal_values_the_first_wins(op) -> None:
    x = torch.full((2, 5000), -2.0)
    x[0, [4321, 4322]] = 0.0
    x[0, 4321] = -0.0
    assert op(x.to(DEVICE)).tolist() == [4321, 0]


@BOTH
def test_infinities_and_any_strides(rng: torch.Generator, op) -> None:
    x = torch.randn(100, 2, generator=rng)
    x[7, 0], x[:, 1] = math.inf, -math.inf
    assert op(x.to(DEVICE).T).tolist() == [7, 0]
