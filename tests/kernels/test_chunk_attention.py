"""Attention of a chunk at ragged starts: the masked definition against loops over tokens, the split form against it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from longdecode.kernels import dispatch
from longdecode.kernels.dispatch import VARIABLE
from longdecode.kernels.prefill_attention import chunk_attention, chunk_naive
from longdecode.kernels.prefill_attention.chunk_split import chunk_attention_split

NAN = float("nan")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# (starts, T, Hkv, group, D, S); a row may start at 0 and end at the last slot.
SHAPES = [
    ([0], 1, 1, 1, 32, 1),
    ([0, 5, 12], 4, 2, 3, 20, 16),
    ([63, 0, 17], 15, 1, 7, 64, 80),
    ([31, 2], 33, 2, 4, 32, 64),
]


@pytest.fixture
def rng(seed: int) -> torch.Generator:
    """A generator of random inputs."""
    return torch.Generator().manual_seed(seed)


def inputs(
    rng: torch.Generator, starts: list[int], rows: int, kv: int, group: int, dim: int, size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random queries and a cache with NaN past each row's chunk."""
    q = torch.randn(len(starts), kv * group, rows, dim, generator=rng).to(dtype)
    k, v = (torch.randn(len(starts), kv, size, dim, generator=rng).to(dtype) for _ in range(2))
    for row, start in enumerate(starts):
        k[row, :, start + rows :] = NAN
        v[row, :, start + rows :] = NAN
    return q, k, v, torch.tensor(starts)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("attend", [chunk_attention, chunk_attention_split], ids=["dispatched", "split"])
def test_each_query_sees_what_lies_up_to_it(rng: torch.Generator, shape: tuple, dtype: torch.dtype, attend) -> None:
    q, k, v, starts = inputs(rng, *shape, dtype)
    out = attend(q, k, v, starts)
    assert out.dtype == dtype and out.shape == q.shape
    group = shape[3]
    for row, start in enumerate(shape[0]):
        for head in {0, q.shape[1] // 2, q.shape[1] - 1}:
            keys, values = k[row, head // group].double(), v[row, head // group].double()
            for t in range(shape[1]):
                n = start + t + 1
                weights = (keys[:n] @ q[row, head, t].double() / math.sqrt(shape[4])).softmax(0)
                torch.testing.assert_close(
                    out[row, head, t].double(), weights @ values[:n], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
                )


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, so CPU tensors cannot run them")
def test_through_triton(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decode kernel takes the prefix with more query rows than one of its tiles holds, and an empty one."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(dispatch, "kernel_path", lambda device, dtype=torch.float32: "triton")
    q, k, v, starts = inputs(rng, [40, 0, 21], 8, 2, 4, 20, 50, torch.float32)
    want = chunk_naive.chunk_attention(q, k, v, starts)
    torch.testing.assert_close(chunk_attention(q, k, v, starts), want, atol=2e-5, rtol=2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 32, 45])
def test_on_cuda(rng: torch.Generator, dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    shape = ([1900, 0, 63], rows, 8, 4, 128, 2047)
    q, k, v, starts = (tensor.cuda() for tensor in inputs(rng, *shape, dtype))
    want = chunk_naive.chunk_attention(q.double(), k.double(), v.double(), starts)
    got = chunk_attention(q, k, v, starts).double()
    torch.testing.assert_close(got, want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
