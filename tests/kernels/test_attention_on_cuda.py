"""Attention on a CUDA device against the naive ops there: sizes and dtypes that the interpreter cannot reach."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from kernel_inputs import HALF_AND_SINGLE, NAN, captured, lists_of_blocks, on_device, ragged, same
from longdecode.kernels.decode_attention import naive as dense_naive
from longdecode.kernels.decode_attention.gpu import decode_attention_gpu
from longdecode.kernels.sparse_decode_attention import EVERYTHING
from longdecode.kernels.sparse_decode_attention import naive as sparse_naive
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
BY_DTYPE = pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)
BY_HEADS = pytest.mark.parametrize("heads", [(1, 8, 4, 128), (5, 4, 2, 32), (3, 2, 16, 64), (2, 3, 1, 96)], ids=str)


@pytest.fixture
def cuda_rng(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def check(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> None:
    """Outputs within the dtype's rounding; the log-sum-exp, float32 in both, always closely."""
    tolerance = TOLERANCE[want[0].dtype]
    torch.testing.assert_close(got[0], want[0], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(got[1], want[1], atol=1e-3, rtol=1e-5)


@BY_DTYPE
@pytest.mark.parametrize("rows", [1, 5, 128])
@pytest.mark.parametrize("size", [1, 15, 63, 1000, 2047, 70_000])
@BY_HEADS
def test_dense(cuda_rng: torch.Generator, heads: tuple[int, ...], size: int, rows: int, dtype: torch.dtype) -> None:
    cache = ragged(cuda_rng, *heads, size, rows, dtype=dtype, sharpness=6.0)
    check(decode_attention_gpu(*cache), dense_naive.decode_attention(*cache))


@BY_DTYPE
@pytest.mark.parametrize("per_query_head", [False, True])
@pytest.mark.parametrize(("size", "block"), [(63, 1), (1000, 16), (2047, 64), (70_000, 16), (70_000, 1)])
@BY_HEADS
def test_sparse(
    rng: torch.Generator, cuda_rng: torch.Generator, heads: tuple[int, ...], size: int, block: int,
    per_query_head: bool, dtype: torch.dtype,
) -> None:  # fmt: skip
    *inputs, lengths = ragged(cuda_rng, *heads, size, dtype=dtype, sharpness=6.0)
    batch, kv, group, _ = heads
    blocks, lists = -(-size // block), kv * group if per_query_head else kv
    inputs += on_device(*lists_of_blocks(rng, batch, lists, blocks, min(blocks, 4096 // block), [EVERYTHING]))
    plan: dict[str, Any] = {"block_size": block, "kv_lengths": lengths}
    want = sparse_naive.sparse_decode_attention(*inputs, **plan)
    for uneven in (False, True):
        check(sparse_decode_attention_gpu(*inputs, **plan, uneven=uneven), want)


def test_a_captured_graph_follows_lengths_and_lists(rng: torch.Generator, cuda_rng: torch.Generator) -> None:
    """One capture, replayed after lengths, lists and counts changed in place, equals the eager results bit by bit."""
    q, k, v, lengths = ragged(cuda_rng, 2, 4, 4, 128, 3000, dtype=torch.bfloat16, sharpness=6.0, fewest=3000)
    indices, counts = on_device(*lists_of_blocks(rng, 2, 4, 188, 40, [EVERYTHING]))

    def both() -> tuple[Tensor, ...]:
        plan: dict[str, Any] = {"block_size": 16, "kv_lengths": lengths}
        sparse = (sparse_decode_attention_gpu(q, k, v, indices, counts, **plan, uneven=x) for x in (False, True))
        return *decode_attention_gpu(q, k, v, lengths), *chain(*sparse)

    graph, found = captured(both)
    for _ in range(3):
        lengths.random_(0, 3001)
        for old, new in zip((indices, counts), lists_of_blocks(rng, 2, 4, 188, 40, [EVERYTHING]), strict=True):
            old.copy_(new)
        for tensor in found:
            tensor.fill_(NAN)
        graph.replay()
        same(found, both())
