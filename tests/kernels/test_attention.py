"""Decode, sparse decode and prefill attention against loops over tokens in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from longdecode.kernels.decode_attention import decode_attention, naive
from longdecode.kernels.merge_attention import merge_attention
from longdecode.kernels.prefill_attention import prefill_attention
from longdecode.kernels.sparse_decode_attention import EVERYTHING, sparse_decode_attention

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
NAN = float("nan")


def reference(q: Tensor, k: Tensor, v: Tensor, tokens: list[int], bias: Tensor | None = None) -> tuple[Tensor, float]:
    """Attention of one query vector over the named tokens of one KV head, a token at a time in float64."""
    scores = [float(q.double() @ k[i].double()) / math.sqrt(len(q)) for i in tokens]
    if bias is not None:
        scores = [s + float(bias[i]) for i, s in zip(tokens, scores, strict=True)]
    top = max(scores)
    total = sum(math.exp(s - top) for s in scores)
    out = torch.zeros(len(q), dtype=torch.float64)
    for i, s in zip(tokens, scores, strict=True):
        out += math.exp(s - top) / total * v[i].double()
    return out, top + math.log(total)


def ragged(
    rng: torch.Generator, batch: int, kv: int, group: int, dim: int, size: int, dtype: torch.dtype, rows: int = 1
):
    """Random queries, a cache with NaN past random lengths, and the lengths: one row full, one of a single token."""
    q = torch.randn(batch, kv * group, rows, dim, generator=rng).to(dtype)
    k = torch.randn(batch, kv, size, dim, generator=rng).to(dtype)
    v = torch.randn(batch, kv, size, dim, generator=rng).to(dtype)
    lengths = torch.randint(1, size + 1, (batch,), generator=rng)
    lengths[0] = size
    lengths[-1] = 1 if batch > 1 else size
    for b, n in enumerate(lengths.tolist()):
        k[b, :, n:] = NAN
        v[b, :, n:] = NAN
    return q, k, v, lengths


SHAPES = [(1, 1, 1, 32, 1), (3, 2, 4, 64, 15), (2, 1, 16, 128, 63), (3, 4, 2, 32, 200), (2, 1, 7, 64, 1000)]


def test_an_empty_row_gives_zeros_and_minus_infinity(rng: torch.Generator) -> None:
    q, k, v, _ = ragged(rng, 2, 1, 2, 32, 9, torch.float32)
    k[1], v[1] = NAN, NAN
    out, lse = decode_attention(q, k, v, torch.tensor([9, 0]))
    assert out[1].eq(0).all() and lse[1].eq(float("-inf")).all() and out[0].isfinite().all()


def test_scale_is_used(rng: torch.Generator) -> None:
    q, k, v, lengths = ragged(rng, 1, 1, 1, 32, 20, torch.float32)
    torch.testing.assert_close(
        decode_attention(q, k, v, lengths, scale=0.5)[0], decode_attention(q * 0.5 * math.sqrt(32), k, v, lengths)[0]
    )


@pytest.mark.parametrize("attend", [decode_attention, naive.decode_attention], ids=["dispatched", "naive"])
def test_dense_adds_what_it_read_to_the_tally(rng: torch.Generator, attend: Callable) -> None:
    kv_tokens_read = torch.tensor([5, 0, 7])
    q, k, v, lengths = ragged(rng, 3, 2, 4, 32, 15, torch.float32)
    attend(q, k, v, lengths, kv_tokens_read=kv_tokens_read)
    assert kv_tokens_read.tolist() == [5 + 2 * 15, 2 * lengths[1].item(), 7 + 2 * 1]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("per_query_head", [False, True])
@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_sparse_decode_attention(
    rng: torch.Generator, shape: tuple[int, ...], block: int, per_query_head: bool, dtype: torch.dtype
) -> None:
    batch, kv, group, _, size = shape
    q, k, v, lengths = ragged(rng, *shape, dtype)
    lists = kv * group if per_query_head else kv
    blocks = -(-size // block)
    width = min(blocks, 5)
    indices = torch.stack(
        [torch.randperm(blocks, generator=rng)[:width] for _ in range(batch * lists)]
    ).view(batch, lists, width)  # fmt: skip
    counts = torch.randint(0, width + 1, (batch, lists), generator=rng)
    out, lse = sparse_decode_attention(q, k, v, indices, counts, block_size=block, kv_lengths=lengths)
    assert out.dtype == dtype and out.shape == q.shape
    for b, n in enumerate(lengths.tolist()):
        for h in range(q.shape[1]):
            owner = h if per_query_head else h // group
            chosen = indices[b, owner, : counts[b, owner]].tolist()
            tokens = [i for j in chosen for i in range(j * block, (j + 1) * block) if i < n]
            if not tokens:
                assert out[b, h].eq(0).all() and lse[b, h].item() == float("-inf")
                continue
            want, want_lse = reference(q[b, h, 0], k[b, h // group], v[b, h // group], tokens)
            torch.testing.assert_close(out[b, h, 0].double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
            assert lse[b, h].item() == pytest.approx(want_lse, abs=1e-4)


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("block", [1, 16, 64])
def test_sparse_reads_everything_adds_the_bias_and_tallies(rng: torch.Generator, block: int, everything: bool) -> None:
    """The second list of the first row reads all of it, whatever its indices hold; NaN in the bias of unread tokens."""
    q, k, v, lengths = ragged(rng, 2, 3, 2, 32, 100, torch.float32)
    lengths[1], k[1, :, 37:], v[1, :, 37:] = 37, NAN, NAN
    k[1, :, 1:37], v[1, :, 1:37] = torch.randn(2, 3, 36, 32, generator=rng)
    indices = torch.stack([torch.randperm(-(-100 // block), generator=rng)[:2] for _ in range(6)]).view(2, 3, -1)
    counts = torch.tensor([[1, EVERYTHING if everything else 1, 0], [min(2, indices.shape[2])] * 3])
    indices[torch.arange(indices.shape[2]) >= counts[..., None]] = 1 << 40
    bias = torch.full((2, 3, 100), NAN)
    lists = {}
    for b, h in ((b, h) for b in range(2) for h in range(3)):
        chosen = range(100) if counts[b, h] == EVERYTHING else indices[b, h, : counts[b, h]].tolist()
        width = 1 if counts[b, h] == EVERYTHING else block
        lists[b, h] = [i for j in chosen for i in range(j * width, (j + 1) * width) if i < lengths[b]]
        bias[b, h, lists[b, h]] = torch.randn(len(lists[b, h]), generator=rng)
    kv_tokens_read = torch.tensor([3, 0])
    out, lse = sparse_decode_attention(
        q,
        k,
        v,
        indices,
        counts,
        block_size=block,
        kv_lengths=lengths,
        bias=bias,
        kv_tokens_read=kv_tokens_read,
        uneven=everything,
    )
    assert kv_tokens_read.tolist() == [
        3 + sum(len(lists[0, h]) for h in range(3)),
        sum(len(lists[1, h]) for h in range(3)),
    ]
    for (b, h), tokens in lists.items():
        if not tokens:
            assert out[b, 2 * h].eq(0).all() and lse[b, 2 * h].item() == float("-inf")
            continue
        want, want_lse = reference(q[b, 2 * h, 0], k[b, h], v[b, h], tokens, bias[b, h])
        torch.testing.assert_close(out[b, 2 * h, 0].double(), want, atol=2e-5, rtol=2e-5)
        assert lse[b, 2 * h].item() == pytest.approx(want_lse, abs=1e-4)


@pytest.mark.parametrize("capacity", [64, 70])
def test_sparse_on_meta_keeps_to_fixed_shapes(capacity: int) -> None:
    """Values that cannot be looked at, as under a CUDA graph, still have shapes."""
    q, k = torch.empty(2, 4, 1, 32, device="meta"), torch.empty(2, 2, capacity, 32, device="meta")
    indices, counts = (torch.empty(*shape, dtype=torch.int64, device="meta") for shape in ((2, 2, 9), (2, 2)))
    lengths = torch.empty(2, dtype=torch.int64, device="meta")
    out, lse = sparse_decode_attention(
        q, k, k, indices, counts, block_size=16, kv_lengths=lengths, kv_tokens_read=lengths.clone()
    )
    assert out.shape == q.shape and lse.shape == (2, 4, 1)


def test_sparse_with_every_block_equals_dense(rng: torch.Generator) -> None:
    q, k, v, lengths = ragged(rng, 3, 2, 2, 32, 50, torch.float32)
    indices = torch.arange(4).expand(3, 2, 4)
    counts = -(-lengths // 16)[:, None].expand(3, 2)
    for got, want in zip(
        sparse_decode_attention(q, k, v, indices, counts, block_size=16, kv_lengths=lengths),
        decode_attention(q, k, v, lengths),
        strict=True,
    ):
        torch.testing.assert_close(got, want)


def test_sparse_gives_zeros_for_an_empty_row(rng: torch.Generator) -> None:
    q, k, v, _ = ragged(rng, 2, 1, 2, 32, 20, torch.float32)
    k[1], v[1] = NAN, NAN
    indices, counts = torch.zeros(2, 1, 2, dtype=torch.int64), torch.ones(2, 1, dtype=torch.int64)
    out, lse = sparse_decode_attention(q, k, v, indices, counts, block_size=4, kv_lengths=torch.tensor([20, 0]))
    assert out[1].eq(0).all() and lse[1].eq(float("-inf")).all() and out[0].isfinite().all()


def test_sparse_refuses_lists_that_fit_no_head() -> None:
    q, k = torch.randn(1, 4, 1, 32), torch.randn(1, 2, 8, 32)
    with pytest.raises(ValueError, match="3 index lists"):
        sparse_decode_attention(
            q, k, k, torch.zeros(1, 3, 1, dtype=torch.int64), torch.ones(1, 3, dtype=torch.int64),
            block_size=1, kv_lengths=torch.tensor([8]),
        )  # fmt: skip


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("start", "rows", "spare"), [(0, 1, 0), (0, 15, 3), (7, 8, 2), (60, 3, 5), (200, 40, 0)])
@pytest.mark.parametrize("group", [1, 2, 8])
def test_prefill_attention(
    rng: torch.Generator, start: int, rows: int, spare: int, group: int, dtype: torch.dtype
) -> None:
    size, dim, kv = start + rows + spare, 32, 2
    q = torch.randn(2, kv * group, rows, dim, generator=rng).to(dtype)
    k, v = (torch.randn(2, kv, size, dim, generator=rng).to(dtype) for _ in range(2))
    k[:, :, start + rows :] = NAN
    v[:, :, start + rows :] = NAN
    out = prefill_attention(q, k, v, start)
    for t in {0, rows // 2, rows - 1}:
        for h in {0, kv * group - 1}:
            want, _ = reference(q[1, h, t], k[1, h // group], v[1, h // group], list(range(start + t + 1)))
            torch.testing.assert_close(out[1, h, t].double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_prefill_refuses_a_chunk_past_the_cache() -> None:
    q, k = torch.randn(1, 1, 4, 32), torch.randn(1, 1, 8, 32)
    with pytest.raises(ValueError, match=r"5\.\.9"):
        prefill_attention(q, k, k, 5)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("cut", [0, 1, 15, 40])
def test_merging_two_halves_equals_attention_over_both(rng: torch.Generator, cut: int, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, heads, size, 32, generator=rng).to(dtype) for heads, size in ((4, 1), (2, 40), (2, 40)))

    def part(start: int, stop: int) -> tuple[Tensor, Tensor]:
        return decode_attention(q, k[:, :, start:stop], v[:, :, start:stop], torch.full((2,), stop - start))

    out, lse = merge_attention(*part(0, cut), *part(cut, 40))
    for b, h in ((0, 0), (1, 3)):
        want, want_lse = reference(q[b, h, 0], k[b, h // 2], v[b, h // 2], list(range(40)))
        torch.testing.assert_close(out[b, h, 0].double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert lse[b, h, 0].item() == pytest.approx(want_lse, abs=1e-4)


def test_merging_nothing_with_nothing_gives_zeros() -> None:
    empty, none = torch.zeros(1, 2, 1, 8), torch.full((1, 2, 1), float("-inf"))
    out, lse = merge_attention(empty, none, empty, none)
    assert out.eq(0).all() and lse.eq(float("-inf")).all()
