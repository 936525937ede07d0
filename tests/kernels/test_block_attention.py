"""Attention of a block of rows, dense, sparse and as weights, against float64 sums over explicit sets of slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from longdecode.kernels import attention_weights as weights_room
from longdecode.kernels import decode_attention as dense_room
from longdecode.kernels import sparse_decode_attention as sparse_room
from longdecode.kernels.decode_attention.gpu import decode_attention_gpu
from longdecode.kernels.decode_attention.launch import DecodeLaunch
from longdecode.kernels.sparse_decode_attention import EVERYTHING
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu
from longdecode.kernels.sparse_decode_attention.launch import SparseLaunch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAN = float("nan")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
# batch, KV heads, group, head dimension, capacity, T
SHAPES = [
    (1, 1, 1, 32, 1, 1),
    (2, 2, 3, 64, 15, 2),
    (2, 1, 4, 128, 63, 3),
    (2, 2, 4, 32, 1000, 8),
    (1, 1, 16, 48, 130, 41),
    (1, 1, 2, 32, 2047, 41),
]


def cache_of(
    rng: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, per_head: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random queries, a cache with NaN past each length, and the lengths: one full, one of the block alone."""
    batch, kv, group, dim, size, rows = shape
    q = 3.0 * torch.randn(batch, kv * group, rows, dim, generator=rng)
    k, v = (torch.randn(batch, kv, size, dim, generator=rng).to(dtype) for _ in range(2))
    lengths = torch.randint(rows, size + 1, (batch, kv), generator=rng)
    lengths[0, 0], lengths[-1, -1] = size, rows if batch * kv > 1 else size
    if not per_head:
        lengths = lengths[:, :1].expand(batch, kv)
    past = torch.arange(size) >= lengths[..., None]
    k[past], v[past] = NAN, NAN
    return q.to(dtype), k, v, lengths if per_head else lengths[:, 0].contiguous()


def tree(rng: torch.Generator, rows: int) -> Tensor:
    """A random draft tree: each node sees itself and the ancestors of a parent before it."""
    mask = torch.eye(rows, dtype=torch.bool)
    for row in range(1, rows):
        parent = int(torch.randint(-1, row, (), generator=rng))
        if parent >= 0:
            mask[row] |= mask[parent]
    return mask


def read_by(length: int, rows: int, row: int, mask: Tensor | None) -> list[int]:
    """Slots that a row of the block reads."""
    first = length - rows
    allowed = [u for u in range(rows) if (u <= row if mask is None else bool(mask[row, u]))]
    return [*range(first), *(first + u for u in allowed if first + u >= 0)] if length else []


def attend(q: Tensor, k: Tensor, v: Tensor, slots: list[int], bias: Tensor | None = None) -> tuple[Tensor, float]:
    """One query vector over named slots of one KV head, in float64."""
    if not slots:
        return torch.zeros(len(q), dtype=torch.float64), float("-inf")
    scores = k[slots].double() @ q.double() * len(q) ** -0.5
    if bias is not None:
        scores = scores + bias[slots].double()
    return scores.softmax(0) @ v[slots].double(), float(scores.logsumexp(0))


def sampled(heads: int, rows: int) -> list[tuple[int, int]]:
    """Heads and rows worth checking: the ends and the middle of each."""
    return [(h, t) for h in {0, heads // 2, heads - 1} for t in {0, rows // 2, max(0, rows - 2), rows - 1}]


def on_device(op: Callable[..., Any]) -> Callable[..., Any]:
    """Run an op on the device: without a GPU in Triton's interpreter."""

    def run(*tensors: Tensor, kv_tokens_read: Tensor | None = None, **options: Any) -> Any:
        moved = {name: x.to(DEVICE) if isinstance(x, Tensor) else x for name, x in options.items()}
        if kv_tokens_read is not None:
            moved["kv_tokens_read"] = kv_tokens_read.to(DEVICE)
        found = op(*(x.to(DEVICE) for x in tensors), **moved)
        if kv_tokens_read is not None:
            kv_tokens_read.copy_(moved["kv_tokens_read"])
        return found.cpu() if isinstance(found, Tensor) else tuple(x.cpu() for x in found)

    return run


ATTEND: dict[str, Callable[..., Any]] = {
    "naive": dense_room.naive.decode_attention,
    "dispatched": dense_room.decode_attention,
}


@pytest.mark.parametrize("masked", [False, True], ids=["causal", "tree"])
@pytest.mark.parametrize("per_head", [False, True], ids=["row", "head"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("path", ATTEND)
def test_dense(
    rng: torch.Generator, path: str, shape: tuple[int, ...], dtype: torch.dtype, per_head: bool, masked: bool
) -> None:
    rows = shape[-1]
    q, k, v, lengths = cache_of(rng, shape, dtype, per_head)
    mask = tree(rng, rows) if masked else None
    read = torch.arange(shape[0])
    out, lse = ATTEND[path](q, k, v, lengths, mask=mask, kv_tokens_read=read)
    assert out.dtype == dtype and out.shape == q.shape and lse.shape == q.shape[:-1]
    each = lengths if per_head else lengths[:, None].expand(-1, k.shape[1])
    assert read.tolist() == (torch.arange(shape[0]) + each.sum(1)).tolist()
    for b in range(shape[0]):
        for h, t in sampled(q.shape[1], rows):
            kv = h // shape[2]
            want, want_lse = attend(q[b, h, t], k[b, kv], v[b, kv], read_by(int(each[b, kv]), rows, t, mask))
            torch.testing.assert_close(out[b, h, t].double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
            assert lse[b, h, t].item() == pytest.approx(want_lse, abs=1e-4)


# The rule's choice, fused or separate merge, splits without a tile, tiles that end in the block, two tiles of rows.
TRITON = [
    ((2, 2, 2, 32, 40, 1), torch.float32, None),
    ((2, 2, 3, 64, 15, 2), torch.float32, None),
    ((1, 1, 4, 128, 63, 3), torch.bfloat16, None),
    ((1, 2, 4, 32, 70, 8), torch.float16, DecodeLaunch(32, 32, 4, 3, 3, fused_merge=False)),
    ((2, 1, 4, 32, 90, 25), torch.float32, DecodeLaunch(64, 32, 4, 2, 2)),
    ((1, 1, 4, 48, 80, 41), torch.float32, DecodeLaunch(128, 16, 8, 2, 2, fused_merge=False, extra_rows=64)),
    ((1, 1, 2, 32, 60, 5), torch.float32, DecodeLaunch(16, 16, 4, 2, 9)),
    ((1, 1, 16, 32, 40, 4), torch.float32, DecodeLaunch(16, 16, 4, 2, 1, fused_merge=False, extra_rows=16)),
]


@pytest.mark.parametrize("masked", [False, True], ids=["causal", "tree"])
@pytest.mark.parametrize(("shape", "dtype", "launch"), TRITON, ids=str)
def test_dense_in_triton(
    rng: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, launch: DecodeLaunch | None, masked: bool
) -> None:
    """Against the definition in float64; where a row has two heads, one holds fewer tokens than the block."""
    q, k, v, lengths = cache_of(rng, shape, dtype, masked)
    if masked and shape[1] == 2 and shape[-1] > 2:
        lengths[-1, 0], k[-1, 0, 2:], v[-1, 0, 2:] = 2, NAN, NAN
    mask = tree(rng, shape[-1]) if masked else None
    want = dense_room.naive.decode_attention(q.double(), k.double(), v.double(), lengths, mask=mask)
    read = torch.zeros(shape[0], dtype=torch.int64)
    out, lse = on_device(decode_attention_gpu)(q, k, v, lengths, mask=mask, kv_tokens_read=read, launch=launch)
    assert out.dtype == dtype and read.equal(lengths.sum(1) if masked else lengths * shape[1])
    torch.testing.assert_close(out.double(), want[0], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    torch.testing.assert_close(lse.double(), want[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_dense_in_triton_refuses_a_scale(rng: torch.Generator, scale: float) -> None:
    q, k, v, lengths = cache_of(rng, (1, 1, 2, 32, 9, 3), torch.float32, False)
    with pytest.raises(ValueError, match="scale"):
        decode_attention_gpu(q, k, v, lengths, scale=scale)


@pytest.mark.parametrize("path", ATTEND)
def test_dense_of_an_empty_head_gives_zeros(rng: torch.Generator, path: str) -> None:
    q, k, v, _ = cache_of(rng, (2, 2, 2, 32, 9, 3), torch.float32, False)
    k[1, 1], v[1, 1] = NAN, NAN
    k[:, 0], v[:, 0] = 1.0, 1.0
    lengths = torch.tensor([[9, 9], [9, 0]])
    out, lse = ATTEND[path](q, k, v, lengths)
    assert out[1, 2:].eq(0).all() and lse[1, 2:].eq(float("-inf")).all()
    assert out[0].isfinite().all() and out[1, :2].isfinite().all()


@pytest.mark.parametrize("mask", [torch.ones(2, 2, dtype=torch.bool), torch.ones(3, 3)], ids=["shape", "dtype"])
@pytest.mark.parametrize("path", ATTEND)
def test_dense_refuses_another_mask(rng: torch.Generator, path: str, mask: Tensor) -> None:
    q, k, v, lengths = cache_of(rng, (1, 1, 2, 32, 9, 3), torch.float32, False)
    with pytest.raises(ValueError, match="mask"):
        ATTEND[path](q, k, v, lengths, mask=mask)


SPARSE: dict[str, Callable[..., Any]] = {
    "naive": sparse_room.naive.sparse_decode_attention,
    "dispatched": sparse_room.sparse_decode_attention,
}


@pytest.mark.parametrize("per_query_head", [False, True])
@pytest.mark.parametrize("limits", [False, True], ids=["one length", "a limit a row"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "row mask"])
@pytest.mark.parametrize(("block", "shape"), [(1, SHAPES[2]), (16, SHAPES[3]), (16, SHAPES[4]), (7, SHAPES[1])])
@pytest.mark.parametrize("path", SPARSE)
def test_sparse(
    rng: torch.Generator, path: str, shape: tuple[int, ...], block: int, masked: bool, limits: bool,
    per_query_head: bool,
) -> None:  # fmt: skip
    batch, kv, group, _, size, rows = shape
    q, k, v, lengths = cache_of(rng, shape, torch.float32, False)
    lists, blocks = kv * group if per_query_head else kv, -(-size // block)
    width = min(blocks, 5)
    indices = torch.rand(batch, lists, blocks, generator=rng).argsort(-1)[..., :width].contiguous()
    counts = torch.randint(0, width + 1, (batch, lists), generator=rng)
    counts[0, 0], counts[-1, -1] = EVERYTHING, width
    indices[torch.arange(width) >= counts[..., None]] = 1 << 40
    each = (lengths[:, None] - torch.arange(rows).flip(0)) if limits else lengths[:, None].expand(-1, rows)
    row_mask = torch.rand(batch, lists, rows, width, generator=rng) < 0.6 if masked else None
    read = torch.zeros(batch, dtype=torch.int64)
    out, lse = SPARSE[path](
        q, k, v, indices, counts,
        block_size=block, kv_lengths=each if limits else lengths, row_mask=row_mask, kv_tokens_read=read,
    )  # fmt: skip
    total = torch.zeros(batch, dtype=torch.int64)
    for b in range(batch):
        for i in range(lists):
            number, entries = int(counts[b, i]), indices[b, i].tolist()
            listed = [(n, j * block + o) for n, j in enumerate(entries[: max(0, number)]) for o in range(block)]
            if number == EVERYTHING:
                listed = [(-1, j) for j in range(size)]
            total[b] += sum(slot < int(lengths[b]) for _, slot in listed)
            for g, t in sampled(q.shape[1] // lists, rows):
                h = i * (q.shape[1] // lists) + g
                seen = [
                    slot for n, slot in listed
                    if slot < int(each[b, t]) and (n < 0 or row_mask is None or bool(row_mask[b, i, t, n]))
                ]  # fmt: skip
                want, want_lse = attend(q[b, h, t], k[b, h // group], v[b, h // group], seen)
                torch.testing.assert_close(out[b, h, t].double(), want, atol=2e-5, rtol=2e-5)
                assert lse[b, h, t].item() == pytest.approx(want_lse, abs=1e-4)
    assert read.equal(total)


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
def test_sparse_in_triton(
    rng: torch.Generator, shape: tuple[int, ...], launch: SparseLaunch | None, masked: bool, per_query_head: bool
) -> None:
    """Against the definition in float64, with a list of everything, and with limits and a mask or without."""
    batch, kv, group, _, _, rows = shape
    q, k, v, lengths = cache_of(rng, shape, torch.float32, False)
    lists, block = kv * group if per_query_head else kv, 16
    indices = torch.rand(batch, lists, 5, generator=rng).argsort(-1)[..., :4].contiguous()
    counts = torch.randint(1, 5, (batch, lists), generator=rng)
    counts[0, -1] = EVERYTHING
    plan: dict[str, Any] = {"block_size": block, "kv_lengths": lengths}
    if masked:
        plan["kv_lengths"] = lengths[:, None] - torch.arange(rows).flip(0)
        plan["row_mask"] = torch.rand(batch, lists, rows, 4, generator=rng) < 0.6
    tokens = [torch.zeros(batch, dtype=torch.int64) for _ in range(2)]
    wide = (x.double() for x in (q, k, v))
    want = sparse_room.naive.sparse_decode_attention(*wide, indices, counts, **plan, kv_tokens_read=tokens[0])
    attend_gpu = on_device(sparse_decode_attention_gpu)
    found = attend_gpu(q, k, v, indices, counts, **plan, kv_tokens_read=tokens[1], launch=launch)
    assert tokens[0].equal(tokens[1])
    for got, expected in zip(found, want, strict=True):
        torch.testing.assert_close(got.double(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("path", SPARSE)
def test_sparse_scores_take_one_row(rng: torch.Generator, path: str) -> None:
    q, k, v, lengths = cache_of(rng, (1, 2, 1, 32, 16, 2), torch.float32, False)
    lists = torch.zeros(1, 2, 1, dtype=torch.int64), torch.full((1, 2), EVERYTHING)
    with pytest.raises(ValueError, match="one query row"):
        SPARSE[path](
            q, k, v, *lists, block_size=16, kv_lengths=lengths, scores=torch.zeros(1, 2, 16),
            score_rows=torch.tensor([0, 1]),
        )  # fmt: skip


WEIGHTS: dict[str, Callable[..., Tensor]] = {
    "naive": weights_room.naive.attention_weights,
    "dispatched": weights_room.attention_weights,
}


@pytest.mark.parametrize("group", ["sum", "mean", "max"])
@pytest.mark.parametrize("given", [False, True], ids=["own lse", "given lse"])
@pytest.mark.parametrize("per_head", [False, True], ids=["row", "head"])
@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
@pytest.mark.parametrize("path", WEIGHTS)
def test_weights(
    rng: torch.Generator, path: str, shape: tuple[int, ...], per_head: bool, given: bool, group: str
) -> None:
    batch, kv, heads, dim, size, rows = shape
    q, k, v, lengths = cache_of(rng, shape, torch.float32, per_head)
    mask = tree(rng, rows) if per_head else None
    lse = dense_room.naive.decode_attention(q, k, v, lengths, mask=mask)[1] if given else None
    got = WEIGHTS[path](q, k, lengths, group=group, mask=mask, lse=lse)
    assert got.shape == (batch, kv, size)
    each = lengths if per_head else lengths[:, None].expand(-1, kv)
    for b in range(batch):
        for h in range(kv):
            summed = torch.zeros(heads, size, dtype=torch.float64)
            for g in range(heads):
                for t in range(rows):
                    slots = read_by(int(each[b, h]), rows, t, mask)
                    summed[g, slots] += (k[b, h, slots].double() @ q[b, h * heads + g, t].double() * dim**-0.5).softmax(
                        0
                    )
            want = {"sum": summed.sum(0), "mean": summed.mean(0), "max": summed.amax(0)}[group]
            torch.testing.assert_close(got[b, h].double(), want, atol=1e-5, rtol=1e-4)
