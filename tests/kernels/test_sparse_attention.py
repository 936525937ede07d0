"""Sparse attention over lists of blocks, naive and in Triton, against sums over explicit tokens in float64."""

from __future__ import annotations

from functools import partial
from itertools import cycle, product
from typing import Any

import pytest
import torch

from kernel_inputs import (
    CPU,
    DEVICE,
    HALF_AND_SINGLE,
    NAN,
    check_sparse,
    listed_tokens,
    lists_of_blocks,
    poison_past,
    ragged,
    same,
)
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.decode_attention.gpu import decode_attention_gpu
from longdecode.kernels.sparse_decode_attention import EVERYTHING, sparse_decode_attention
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu
from longdecode.kernels.sparse_decode_attention.launch import SparseLaunch

BOTH = pytest.mark.parametrize("op", [sparse_decode_attention, sparse_decode_attention_gpu], ids=["entrance", "triton"])
# batch, KV heads, group, head dimension, capacity, rows; tokens a block
SHAPES = [
    ((1, 1, 1, 32, 1, 1), 16), ((3, 2, 4, 64, 15, 1), 1), ((3, 4, 2, 32, 200, 1), 16), ((2, 1, 7, 64, 400, 1), 1),
    ((2, 1, 4, 128, 63, 3), 1), ((2, 2, 4, 32, 400, 8), 16), ((1, 1, 16, 48, 130, 41), 16), ((2, 2, 3, 64, 15, 2), 7),
]  # fmt: skip


def check(
    op: Any, rng: torch.Generator, shape: tuple[int, ...], block: int, per_query_head: bool, dtype: torch.dtype,
    masked: bool, limits: bool, counts: list[int], width: int,
) -> None:  # fmt: skip
    """Random lists over a ragged cache; some rows see fewer tokens than others and not every listed block."""
    batch, kv, group, _, size, rows = shape
    cache = ragged(rng, *shape, dtype=dtype, fewest=rows if limits else 0)
    lists, blocks = kv * group if per_query_head else kv, -(-size // block)
    indices, number = lists_of_blocks(rng, batch, lists, blocks, min(width, blocks), counts[: batch * lists])
    each = cache[3][:, None] - torch.arange(rows).flip(0) if limits else None
    mask = torch.rand(batch, lists, rows, indices.shape[2], generator=rng) < 0.6 if masked else None
    check_sparse(op, cache, indices, number, block, limits=each, row_mask=mask)


@pytest.mark.parametrize("per_query_head", [False, True])
@pytest.mark.parametrize(
    ("dtype", "masked", "limits"),
    [*product(HALF_AND_SINGLE, [False], [False]), *product([torch.float32], [False, True], [True])],
    ids=str,
)
@pytest.mark.parametrize(("shape", "block"), SHAPES, ids=str)
def test_listed_blocks_are_read(
    rng: torch.Generator, shape: tuple[int, ...], block: int, dtype: torch.dtype, masked: bool, limits: bool,
    per_query_head: bool,
) -> None:  # fmt: skip
    check(sparse_decode_attention, rng, shape, block, per_query_head, dtype, masked, limits, [EVERYTHING], 5)


# batch, KV heads, group, head dimension, capacity; tokens a block; one list a query head
ONE_ROW = [
    ((1, 1, 1, 32, 1, 1), 16, False), ((2, 2, 4, 64, 15, 1), 1, False), ((2, 1, 8, 128, 63, 1), 16, False),
    ((2, 2, 2, 32, 257, 1), 16, True), ((2, 2, 2, 32, 257, 1), 64, False), ((1, 1, 4, 64, 257, 1), 1, True),
    ((2, 1, 7, 80, 150, 1), 3, False),
]  # fmt: skip


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)
@pytest.mark.parametrize(("shape", "block", "per_query_head"), ONE_ROW, ids=str)
def test_one_row_in_triton(
    rng: torch.Generator, shape: tuple[int, ...], block: int, per_query_head: bool, dtype: torch.dtype
) -> None:
    width = max(1, -(-shape[4] // block) * 3 // 4)
    check(sparse_decode_attention_gpu, rng, shape, block, per_query_head, dtype, False, False, [width], width)


@pytest.mark.parametrize("per_query_head", [False, True])
@pytest.mark.parametrize(
    ("shape", "launch", "masked"),
    [
        ((2, 2, 2, 32, 70, 1), None, True),
        ((2, 1, 3, 32, 70, 2), SparseLaunch(16, 16, 4, 2, 3), True),
        ((1, 2, 2, 64, 70, 5), SparseLaunch(16, 32, 4, 2, 2, fused_merge=False), True),
        ((1, 2, 4, 32, 70, 9), SparseLaunch(16, 32, 4, 2, 3, balanced=True), True),
        ((2, 1, 2, 32, 70, 3), SparseLaunch(16, 32, 4, 2, 2), False),
    ],
    ids=str,
)
def test_rows_in_triton(
    rng: torch.Generator, shape: tuple[int, ...], launch: SparseLaunch | None, masked: bool, per_query_head: bool
) -> None:
    op = partial(sparse_decode_attention_gpu, launch=launch)
    check(op, rng, shape, 16, per_query_head, torch.float32, masked, masked, [EVERYTHING, 3], 4)


# Dealt out a list at a time or evenly over all; one program, fewer than lists, more than tiles; either merge.
LAUNCHES = [
    SparseLaunch(16, 16, 4, 2, 1), SparseLaunch(16, 16, 4, 3, 3), SparseLaunch(16, 64, 8, 2, 33),
    SparseLaunch(16, 32, 4, 2, 5, fused_merge=False), SparseLaunch(16, 16, 4, 2, 1, balanced=True),
    SparseLaunch(16, 32, 4, 2, 3, balanced=True), SparseLaunch(16, 16, 4, 3, 17, balanced=True),
    SparseLaunch(16, 64, 4, 2, 64, balanced=True, fused_merge=False),
]  # fmt: skip
CASES = [*product([None], (1, 16, 64)), *zip(LAUNCHES, cycle((1, 16)), strict=False)]


@pytest.mark.parametrize(("launch", "block"), CASES, ids=str)
def test_unequal_lists_with_a_bias_share_one_launch(
    rng: torch.Generator, launch: SparseLaunch | None, block: int
) -> None:
    """Everything, every block, one block, none, only blocks past the length; an empty row; a bias, NaN where unread.

    Without a launch it is the naive op.
    """
    q, k, v, _ = ragged(rng, 2, 5, 2, 16, 100, fewest=100)
    cache = q, k, v, torch.tensor([84, 0])
    poison_past(cache[3], k, v)
    blocks = -(-100 // block)
    first = [EVERYTHING, blocks, 1, 0, min(2, blocks), min(3, blocks), EVERYTHING]
    indices, counts = lists_of_blocks(rng, 2, 5, blocks, blocks, first)
    if blocks > 2:
        indices[0, 4, :2] = torch.tensor([blocks - 1, blocks - 2])
    bias = torch.full((2, 5, 100), NAN)
    for (row, one), entries in listed_tokens(cache, indices, counts, block).items():
        bias[row, one, [token for _, token in entries]] = torch.randn(len(entries), generator=rng)
    op, where = partial(sparse_decode_attention_gpu, launch=launch), DEVICE
    if launch is None:
        op, where = partial(sparse_decode_attention, uneven=True), CPU
    check_sparse(op, cache, indices, counts, block, bias=bias, where=where)


@BOTH
def test_every_block_in_expanded_lists_is_dense_attention(rng: torch.Generator, op: Any) -> None:
    *moved, lengths = (x.to(DEVICE) for x in ragged(rng, 3, 2, 2, 32, 50))
    lists = torch.arange(4, device=DEVICE).expand(3, 2, 4), -(-lengths // 16)[:, None].expand(3, 2)
    got = op(*moved, *lists, block_size=16, kv_lengths=lengths)
    for mine, theirs in zip(got, decode_attention(*moved, lengths), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=2e-5)


def test_lengths_past_the_capacity_count_as_the_capacity(rng: torch.Generator) -> None:
    """The cache is part of a larger one that holds NaN."""
    q, k, v, _ = ragged(rng, 1, 1, 2, 32, 41)
    full = torch.tensor([40])
    poison_past(full, k, v)
    q, k, v, full = (x.to(DEVICE) for x in (q, k, v, full))
    k, v = k[:, :, :40], v[:, :, :40]
    lists = torch.arange(3, device=DEVICE).view(1, 1, 3), torch.tensor([[3]], device=DEVICE)
    want, over = decode_attention_gpu(q, k, v, full), (full + 1).int()
    same(decode_attention_gpu(q, k, v, over), want)
    got, _ = sparse_decode_attention_gpu(q, k, v, *lists, block_size=16, kv_lengths=over)
    torch.testing.assert_close(got, want[0])


@BOTH
def test_what_cannot_be_meant_is_refused(rng: torch.Generator, op: Any) -> None:
    q, k, v, lengths = ragged(rng, 1, 2, 2, 32, 8, 2)
    three, two = torch.zeros(1, 3, 1, dtype=torch.int64), torch.zeros(1, 2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="3 index lists"):
        op(q, k, v, three, three[..., 0], block_size=1, kv_lengths=lengths)
    scored = {"scores": torch.zeros(1, 2, 8), "score_rows": torch.tensor([0, 1])}
    with pytest.raises(ValueError, match="one query row"):
        op(q, k, v, two, two[..., 0], block_size=1, kv_lengths=lengths, **scored)
