"""Attention in Triton against plain torch on a CUDA device, at sizes that the interpreter cannot reach."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor

from longdecode.kernels.decode_attention import naive as dense_naive
from longdecode.kernels.decode_attention.gpu import decode_attention_gpu
from longdecode.kernels.sparse_decode_attention import EVERYTHING
from longdecode.kernels.sparse_decode_attention import naive as sparse_naive
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu

pytestmark = pytest.mark.gpu
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
NAN = float("nan")
SHARPNESS = 6.0
"""Factor on the queries: outputs of plain random ones are averages near zero, which any tolerance forgives."""


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 128])
@pytest.mark.parametrize("size", [1, 15, 63, 1000, 2047, 70_000])
@pytest.mark.parametrize(
    ("batch", "kv", "group", "dim"), [(1, 8, 4, 128), (5, 4, 2, 32), (3, 2, 16, 64), (2, 3, 1, 96)]
)
def test_dense_equals_naive_on_the_device(
    seed: int, batch: int, kv: int, group: int, dim: int, size: int, rows: int, dtype: torch.dtype
) -> None:
    q, k, v, lengths = on_the_device(seed, batch, kv, group, dim, size, dtype, rows)
    close_on_the_device(decode_attention_gpu(q, k, v, lengths), dense_naive.decode_attention(q, k, v, lengths))


def on_the_device(
    seed: int, batch: int, kv: int, group: int, dim: int, size: int, dtype: torch.dtype, rows: int = 1
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As ``ragged``, made on the device."""
    rng = torch.Generator("cuda").manual_seed(seed)
    q = (SHARPNESS * torch.randn(batch, kv * group, rows, dim, generator=rng, device="cuda")).to(dtype)
    k, v = (torch.randn(batch, kv, size, dim, generator=rng, device="cuda").to(dtype) for _ in range(2))
    lengths = torch.randint(0, size + 1, (batch,), generator=rng, device="cuda")
    lengths[0] = size
    past = (torch.arange(size, device="cuda") >= lengths[:, None])[:, None, :, None]
    return q, k.masked_fill_(past, NAN), v.masked_fill_(past, NAN), lengths


def close_on_the_device(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> None:
    """Outputs within the dtype's rounding; the log-sum-exp, float32 in both, always closely."""
    tolerance = max(1e-4, TOLERANCE[want[0].dtype])
    torch.testing.assert_close(got[0], want[0], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(got[1], want[1], atol=1e-3, rtol=1e-5)


def lists_of_blocks(seed: int, batch: int, lists: int, blocks: int, width: int) -> tuple[Tensor, Tensor]:
    """Distinct random blocks in random order; the first list is everything; entries past a count point far outside."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.rand(batch, lists, blocks, generator=rng).argsort(-1)[..., :width].contiguous()
    counts = torch.randint(0, width + 1, (batch, lists), generator=rng)
    counts[0, 0] = EVERYTHING
    order[torch.arange(width) >= counts[..., None]] = 1 << 40
    return order.cuda(), counts.cuda()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("per_query_head", [False, True])
@pytest.mark.parametrize(("size", "block"), [(63, 1), (1000, 16), (2047, 64), (70_000, 16), (70_000, 1)])
@pytest.mark.parametrize(
    ("batch", "kv", "group", "dim"), [(1, 8, 4, 128), (5, 4, 2, 32), (3, 2, 16, 64), (2, 3, 1, 96)]
)
def test_sparse_equals_naive_on_the_device(
    seed: int,
    batch: int,
    kv: int,
    group: int,
    dim: int,
    size: int,
    block: int,
    per_query_head: bool,
    dtype: torch.dtype,
) -> None:
    q, k, v, lengths = on_the_device(seed, batch, kv, group, dim, size, dtype)
    blocks = -(-size // block)
    lists = kv * group if per_query_head else kv
    indices, counts = lists_of_blocks(seed, batch, lists, blocks, min(blocks, 4096 // block))
    plan: dict[str, Any] = {"block_size": block, "kv_lengths": lengths}
    want = sparse_naive.sparse_decode_attention(q, k, v, indices, counts, **plan)
    for uneven in (False, True):
        close_on_the_device(sparse_decode_attention_gpu(q, k, v, indices, counts, **plan, uneven=uneven), want)


def test_a_captured_graph_follows_lengths_and_lists(seed: int) -> None:
    """One capture, replayed after lengths, lists and counts changed in place, equals the eager results bit by bit."""
    q, k, v, lengths = on_the_device(seed, 2, 4, 4, 128, 3000, torch.bfloat16)
    k.nan_to_num_(), v.nan_to_num_()
    indices, counts = lists_of_blocks(seed, 2, 4, 188, 40)

    def both() -> tuple[Tensor, ...]:
        plan: dict[str, Any] = {"block_size": 16, "kv_lengths": lengths}
        sparse = (sparse_decode_attention_gpu(q, k, v, indices, counts, **plan, uneven=x) for x in (False, True))
        return *decode_attention_gpu(q, k, v, lengths), *chain(*sparse)

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for trial in range(3):
        lengths.random_(0, 3001)
        new_indices, new_counts = lists_of_blocks(seed + trial, 2, 4, 188, 40)
        indices.copy_(new_indices), counts.copy_(new_counts)
        for tensor in captured:
            tensor.fill_(NAN)
        graph.replay()
        for got, want in zip(captured, both(), strict=True):
            assert got.equal(want)
