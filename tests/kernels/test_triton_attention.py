"""Attention in Triton against float64: in its interpreter where there is no GPU, on the device where there is one."""

from __future__ import annotations

import math
from itertools import cycle

import pytest
import torch
from torch import Tensor

from longdecode.kernels.decode_attention.gpu import decode_attention_gpu
from longdecode.kernels.decode_attention.launch import DecodeLaunch
from longdecode.kernels.sparse_decode_attention import EVERYTHING
from longdecode.kernels.sparse_decode_attention import launch as sparse_launch
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu
from longdecode.kernels.sparse_decode_attention.launch import SparseLaunch
from longdecode.kernels.split_kv import COUNTERS, arrival_counters

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
NAN = float("nan")
SHARPNESS = 3.0
"""Factor on the queries: outputs of plain random ones are averages near zero, which any tolerance forgives."""


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.cpu().double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def attend(
    q: Tensor, k: Tensor, v: Tensor, tokens: Tensor, scale: float, bias: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """Attention of rows ``[..., D]`` over the chosen tokens of one KV head in float64."""
    if not len(tokens):
        return torch.zeros(q.shape, dtype=torch.float64), torch.full(q.shape[:-1], -math.inf, dtype=torch.float64)
    scores = scale * q.double() @ k[tokens].double().T + bias
    return scores.softmax(-1) @ v[tokens].double(), scores.logsumexp(-1)


def ragged(
    rng: torch.Generator, batch: int, kv: int, group: int, dim: int, size: int, dtype: torch.dtype, rows: int = 1
):
    """Queries, a cache with NaN past random lengths, and the lengths: one row full, the last empty or of one token."""
    q = (SHARPNESS * torch.randn(batch, kv * group, rows, dim, generator=rng)).to(dtype)
    k, v = (torch.randn(batch, kv, size, dim, generator=rng).to(dtype) for _ in range(2))
    lengths = torch.randint(1, size + 1, (batch,), generator=rng)
    lengths[-1] = int(torch.randint(0, 2, (), generator=rng))
    lengths[0] = size
    for row, length in enumerate(lengths.tolist()):
        k[row, :, length:], v[row, :, length:] = NAN, NAN
    return q, k, v, lengths


def check_dense(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float | None = None, launch: DecodeLaunch | None = None
) -> None:
    kv_tokens_read = torch.arange(len(lengths), device=DEVICE)
    out, lse = decode_attention_gpu(
        *(x.to(DEVICE) for x in (q, k, v, lengths)), scale=scale, kv_tokens_read=kv_tokens_read, launch=launch
    )  # fmt: skip
    assert kv_tokens_read.cpu().equal(torch.arange(len(lengths)) + lengths * k.shape[1])
    assert out.dtype == q.dtype and out.shape == q.shape and lse.dtype == torch.float32
    group = q.shape[1] // k.shape[1]
    for b, length in enumerate(lengths.tolist()):
        for h in range(q.shape[1]):
            tokens = torch.arange(length)
            want, want_lse = attend(q[b, h], k[b, h // group], v[b, h // group], tokens, scale or q.shape[-1] ** -0.5)
            close(out[b, h], want, q.dtype)
            torch.testing.assert_close(lse[b, h].cpu().double(), want_lse, atol=1e-4, rtol=1e-4)


# batch, KV heads, group, head dimension, capacity, query rows: each of the odd sizes once.
DENSE = [
    (1, 1, 1, 32, 1, 1),
    (2, 2, 2, 64, 15, 1),
    (3, 1, 4, 128, 63, 1),
    (2, 2, 8, 32, 257, 1),
    (1, 1, 1, 128, 257, 1),
    (2, 1, 7, 80, 130, 1),
    (1, 2, 16, 20, 200, 1),
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", DENSE, ids=str)
def test_decode_attention(rng: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    *sizes, rows = shape
    check_dense(*ragged(rng, *sizes, dtype, rows=rows))


@pytest.mark.parametrize("fused", [False, True])
def test_launches_leave_no_trace_for_the_next(rng: torch.Generator, fused: bool) -> None:
    """Counters are zero again after each launch, whatever the number of lists and parts of the one before."""
    for splits in (3, 2):
        check_dense(*ragged(rng, 2, 2, 1, 16, 70, torch.float32), launch=DecodeLaunch(16, 16, 4, 2, splits, fused))
    assert not arrival_counters(1, DEVICE).any()


def test_counters_have_an_end() -> None:
    with pytest.raises(ValueError, match=f"has {COUNTERS} arrival counters, {COUNTERS + 1} are needed"):
        arrival_counters(COUNTERS + 1, DEVICE)


def test_decode_attention_takes_any_strides(rng: torch.Generator) -> None:
    q, k, v, lengths = ragged(rng, 2, 2, 2, 32, 40, torch.float32)
    apart = q.transpose(1, 2).contiguous().transpose(1, 2), k.transpose(2, 3).contiguous().transpose(2, 3)
    check_dense(*apart, v.transpose(1, 2).contiguous().transpose(1, 2), lengths)


def test_lengths_past_the_capacity_count_as_the_capacity(rng: torch.Generator) -> None:
    q, k, v, _ = ragged(rng, 1, 1, 2, 32, 40, torch.float32)
    full = [x.to(DEVICE) for x in (q, k, v)]
    lists = torch.arange(3, device=DEVICE).view(1, 1, 3), torch.tensor([[3]], device=DEVICE)
    want, _ = decode_attention_gpu(*full, torch.tensor([40], device=DEVICE))
    over = torch.tensor([41], device=DEVICE, dtype=torch.int32)
    torch.testing.assert_close(decode_attention_gpu(*full, over)[0], want)
    got, _ = sparse_decode_attention_gpu(*full, *lists, block_size=16, kv_lengths=over)
    torch.testing.assert_close(got, want)


def test_a_nan_within_the_length_reaches_the_output(rng: torch.Generator) -> None:
    q, k, v, _ = ragged(rng, 2, 1, 2, 32, 20, torch.float32)
    k[0, 0, 3] = NAN
    k[1], v[1] = 1.0, 1.0
    out, lse = decode_attention_gpu(*(x.to(DEVICE) for x in (q, k, v)), torch.tensor([20, 20], device=DEVICE))
    assert out[0].isnan().all() and lse[0].isnan().all() and out[1].isfinite().all()


def test_decode_attention_refuses_mixed_dtypes(rng: torch.Generator) -> None:
    q, k, v, lengths = ragged(rng, 1, 1, 1, 32, 4, torch.float32)
    with pytest.raises(ValueError, match="one dtype"):
        decode_attention_gpu(q.half(), k, v, lengths)


def lists_of_blocks(
    rng: torch.Generator, batch: int, lists: int, blocks: int, width: int, counts: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Distinct random blocks in random order, with entries past each count that point far outside the cache."""
    order = torch.rand(batch, lists, blocks, generator=rng).argsort(-1)[..., :width].contiguous()
    number = torch.randint(0, width + 1, (batch, lists), generator=rng)
    if counts is not None:
        number.view(-1)[: len(counts)] = torch.tensor(counts)
    order[torch.arange(width) >= number[..., None]] = 1 << 40
    return order, number


def check_sparse(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, indices: Tensor, counts: Tensor, block: int,
    bias: Tensor | None = None, launch: SparseLaunch | None = None,
) -> None:  # fmt: skip
    kv_tokens_read = torch.arange(len(lengths), device=DEVICE)
    out, lse = sparse_decode_attention_gpu(
        *(x.to(DEVICE) for x in (q, k, v, indices, counts)), block_size=block, kv_lengths=lengths.to(DEVICE),
        bias=None if bias is None else bias.to(DEVICE), kv_tokens_read=kv_tokens_read, launch=launch,
    )  # fmt: skip
    assert out.dtype == q.dtype and out.shape == q.shape and lse.dtype == torch.float32
    group, served = q.shape[1] // k.shape[1], q.shape[1] // indices.shape[1]
    for b, length in enumerate(lengths.tolist()):
        read = b
        for h in range(q.shape[1]):
            number = int(counts[b, h // served])
            blocks = torch.arange(-(-length // block)) if number < 0 else indices[b, h // served, :number]
            tokens = (blocks[:, None] * block + torch.arange(block)).flatten()
            tokens = tokens[tokens < length]
            read += len(tokens) if h % served == 0 else 0
            add = 0.0 if bias is None else bias[b, h // served, tokens].double()
            want, want_lse = attend(q[b, h], k[b, h // group], v[b, h // group], tokens, q.shape[-1] ** -0.5, add)
            close(out[b, h], want, q.dtype)
            torch.testing.assert_close(lse[b, h].cpu().double(), want_lse, atol=1e-4, rtol=1e-4)
        assert kv_tokens_read[b].item() == read


# batch, KV heads, group, head dimension, capacity, block, one list a query head
SPARSE = [
    (1, 1, 1, 32, 1, 16, False),
    (2, 2, 4, 64, 15, 1, False),
    (2, 1, 8, 128, 63, 16, False),
    (2, 2, 2, 32, 257, 16, True),
    (2, 2, 2, 32, 257, 64, False),
    (1, 1, 4, 64, 257, 1, True),
    (2, 1, 7, 80, 150, 3, False),
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SPARSE, ids=str)
def test_sparse_decode_attention(rng: torch.Generator, shape: tuple, dtype: torch.dtype) -> None:
    *sizes, block, per_query_head = shape
    batch, kv, group, _, size = sizes
    blocks = -(-size // block)
    width = max(1, blocks * 3 // 4)
    lists = kv * group if per_query_head else kv
    indices, counts = lists_of_blocks(rng, batch, lists, blocks, width, [width])
    check_sparse(*ragged(rng, *sizes, dtype), indices, counts, block)


# Dealt out a list at a time or evenly over all; one program, fewer than lists, more than tiles; either merge.
SPARSE_LAUNCHES = [
    SparseLaunch(16, 16, 4, 2, 1),
    SparseLaunch(16, 16, 4, 3, 3),
    SparseLaunch(16, 64, 8, 2, 33),
    SparseLaunch(16, 32, 4, 2, 5, fused_merge=False),
    SparseLaunch(16, 16, 4, 2, 1, balanced=True),
    SparseLaunch(16, 32, 4, 2, 3, balanced=True),
    SparseLaunch(16, 16, 4, 3, 17, balanced=True),
    SparseLaunch(16, 64, 4, 2, 64, balanced=True),
]


@pytest.mark.parametrize(("launch", "block"), zip(SPARSE_LAUNCHES, cycle((1, 16))), ids=str)
def test_unequal_lists_share_one_launch(rng: torch.Generator, launch: SparseLaunch, block: int) -> None:
    """Everything, every block, one block, none, only blocks past the length; an empty row; a bias, NaN where unread."""
    q, k, v, _ = ragged(rng, 2, 5, 2, 16, 100, torch.float32)
    lengths = torch.tensor([84, 0])
    k[0, :, 84:], v[0, :, 84:], k[1], v[1] = NAN, NAN, NAN, NAN
    blocks = -(-100 // block)
    indices, counts = lists_of_blocks(rng, 2, 5, blocks, blocks, [EVERYTHING, blocks, 1, 0, 2, 3, EVERYTHING])
    indices[0, 4, :2] = torch.tensor([blocks - 1, blocks - 2])
    bias = torch.randn(2, 5, 100, generator=rng)
    bias[0, :, 84:], bias[1] = NAN, NAN
    check_sparse(q, k, v, lengths, indices, counts, block, bias, launch)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_uneven_lists_of_a_long_batch(rng: torch.Generator, dtype: torch.dtype) -> None:
    """The launch that the hint chooses, with a list a query head."""
    q, k, v, lengths = ragged(rng, 3, 2, 2, 64, 130, dtype)
    indices, counts = lists_of_blocks(rng, 3, 4, 9, 4, [EVERYTHING, 1, 4])
    launch = sparse_launch.choose_launch(12, 1, 64, 64, 130, dtype, torch.device("cpu"), uneven=True)
    assert launch.balanced
    check_sparse(q, k, v, lengths, indices, counts, 16, launch=launch)


def test_a_balanced_launch_merges_itself() -> None:
    with pytest.raises(ValueError, match="fused_merge"):
        SparseLaunch(16, 16, 4, 2, 1, balanced=True, fused_merge=False)


def test_sparse_takes_expanded_lists(rng: torch.Generator) -> None:
    q, k, v, lengths = ragged(rng, 3, 2, 2, 32, 50, torch.float32)
    counts = -(-lengths // 16)[:, None].expand(3, 2)
    check_sparse(q, k, v, lengths, torch.arange(4).expand(3, 2, 4), counts, 16)


def test_sparse_refuses_what_it_cannot_mean(rng: torch.Generator) -> None:
    q, k, v, lengths = ragged(rng, 1, 2, 2, 32, 8, torch.float32)
    three = torch.zeros(1, 3, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="3 index lists"):
        sparse_decode_attention_gpu(q, k, v, three, three[..., 0], block_size=1, kv_lengths=lengths)
