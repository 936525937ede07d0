"""Kernel ops: bytes by hand, gates that catch a wrong kernel, peers that agree, rotations that are cold."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from longdecode.evals.throughput.kernels import COLD_BYTES, MAX_SETS, sets_of
from longdecode.evals.throughput.spec import OPS
from longdecode.evals.throughput.steps import random_tree
from longdecode.kernels.bench import ops, peers
from longdecode.kernels.bench.ops import HYBRID_BLOCK, Inputs, Size, make_op, whole_mask
from longdecode.kernels.bench.peers import PEERS

CPU = torch.device("cpu")
HEADS, GROUP, DIM = 4, 2, 32
TREE = random_tree(41, CPU)[0]


@pytest.fixture(autouse=True)
def _seeded(seed: int) -> None:
    torch.manual_seed(seed)


def size_of(context: int = 512, batch: int = 2, budget: int | None = 64, **sizes: Any) -> Size:
    return Size(8, HEADS, DIM, 256, 640, 264, context, batch, budget, CPU, torch.float32, **sizes)


CASES = [
    *((op, size_of(full_heads=int(op == "hybrid_attention"))) for op in OPS if op != "decode_attention_rows"),
    *(("decode_attention_rows", size_of(rows=rows, mask=mask)) for rows, mask in ((2, None), (41, None), (41, TREE))),
]


@pytest.mark.parametrize(("op", "size"), CASES)
def test_every_op_passes_its_gate_and_agrees_with_its_peers(op: str, size: Size) -> None:
    made = make_op(op, size)
    made.gate(size.dtype)
    inputs = made.draw()
    mine = made.ours(inputs)
    for label, peer in PEERS[op].items():
        if label in ("flashinfer", "torch_cudnn") or (label == "torch_flash" and size.mask is not None):
            with pytest.raises(NotImplementedError, match=r"CUDA|tree mask"):
                peer(size, inputs)
            continue
        found = peer(size, inputs)()
        made.require_same(found, mine, size.dtype)
        wrong = found.roll(1, -1) + 1
        with pytest.raises(AssertionError, match="another result"):
            made.require_same(wrong, mine, size.dtype)


@pytest.mark.parametrize(
    ("op", "name", "wrong"),
    [
        ("decode_attention", "decode_attention", lambda out: (out[0] * 1.05, out[1])),
        ("sparse_decode_attention", "sparse_decode_attention", lambda out: (out[0].roll(1, 1), out[1])),
        ("hybrid_attention", "sparse_decode_attention", lambda out: (out[0].roll(1, 1), out[1])),
        ("page_score", "page_score", lambda out: out + 1),
        ("topk_select", "topk_select", lambda out: (out[0] + 1, out[1])),
        ("linear_o", "linear", lambda out: out * float("nan")),
    ],
)
def test_a_wrong_kernel_fails_its_gate(monkeypatch: pytest.MonkeyPatch, op: str, name: str, wrong: Any) -> None:
    """The first call is ours, the second the definition's."""
    good, calls = getattr(ops, name), []

    def broken(*args: Any, **rest: Any) -> Any:
        calls.append(name)
        return wrong(good(*args, **rest)) if len(calls) == 1 else good(*args, **rest)

    monkeypatch.setattr(ops, name, broken)
    with pytest.raises(AssertionError, match="differs from its definition"):
        make_op(op, size_of(full_heads=int(op == "hybrid_attention"))).gate(torch.float32)
    assert len(calls) == 2


def test_a_tolerance_is_a_share_of_the_largest_value() -> None:
    nan, inf = float("nan"), float("inf")
    want = torch.tensor([0.0, 4.0, -inf, nan])
    ops.require_close(torch.tensor([0.9, 4.0, -inf, nan]), want, 0.25, "x")
    wrong = [1.1, 4.0, -inf, nan], [0.0, 4.0, inf, nan], [0.0, 4.0, -inf, 0.0], [0.0, nan, -inf, nan], [0.0, 4.0, -inf]
    for got, tensor in (*((got, want) for got in wrong), ([1, 2], torch.tensor([1, 3]))):
        with pytest.raises(AssertionError, match=r"^says so: "):
            ops.require_close(torch.tensor(got), tensor, 0.25, "says so")


def test_bytes_by_hand() -> None:
    """4 KV heads of 32 in float32; 512 tokens in 32 pages of 16, batch 2, a budget of 64 tokens."""
    kv_token = 2 * (2 * 4 * 32 * 4)  # keys and values of batch x heads x channels
    read = {op: make_op(op, size).read_bytes for op, size in CASES}
    assert read["decode_attention"] == read["decode_attention_rows"] == 512 * kv_token
    assert read["sparse_decode_attention"] == 64 * kv_token + 2 * 4 * 4 * 8
    assert read["sparse_decode_attention_tokens"] == 64 * kv_token + 2 * 4 * 64 * 8
    assert read["page_score"] == 32 * kv_token + 2 * 4 * 32 * 4 and read["topk_select"] == 2 * 4 * (32 * 4 + 4 * 8)
    assert read["linear_down"] == 4 * (256 * 640 + 2 * (640 + 256))
    token = 2 * DIM * 4
    hybrid = make_op("hybrid_attention", size_of(704, budget=200, full_heads=1))  # 11 blocks, of which a list has 3
    assert hybrid.read_bytes == 2 * (704 * token + 3 * (192 * token + 3 * 8))
    assert hybrid.peer_bytes == 2 * 4 * 704 * token
    mixed = make_op("hybrid_attention", size_of(1024, batch=3, budget=200, full_heads=1, mixed=True))
    tokens, listed = 128 + 576 + 1024, 2 + 3 + 3  # the first row has two blocks
    assert mixed.read_bytes == tokens * token + 3 * listed * (64 * token + 8) and mixed.peer_bytes == 4 * tokens * token


def by_hand(x: Inputs, row: int, head: int, tokens: Tensor) -> Tensor:
    """Outputs of a KV head's queries over some tokens, in float64."""
    q = x["q"][row, head * GROUP : (head + 1) * GROUP, 0].double()
    keys, values = (x[name][row, head, tokens].double() for name in ("k", "v"))
    return (q @ keys.T / DIM**0.5).softmax(dim=-1) @ values


@pytest.mark.parametrize("lengths", [(700, 700), (80, 688)])
@pytest.mark.parametrize(("full_heads", "full"), [(0, set()), (1, {3}), (2, {1, 3}), (4, {0, 1, 2, 3})])
def test_some_heads_read_everything_and_the_others_their_blocks(full_heads: int, full: set[int], lengths: Any) -> None:
    op = make_op("hybrid_attention", size_of(700, budget=200, full_heads=full_heads, mixed=lengths[0] < 700))
    x = op.draw()
    out = op.ours(x)
    for row, length in enumerate(lengths):
        for head in range(HEADS):
            listed = x["indices"][row, head, : int(x["counts"][row, head])]
            tokens = (listed[:, None] * HYBRID_BLOCK + torch.arange(HYBRID_BLOCK)).flatten()
            tokens = torch.arange(length) if head in full else tokens[tokens < length]
            assert len(tokens.unique()) == len(tokens)
            assert head in full or 0 <= min(length, 192) - len(tokens) < HYBRID_BLOCK
            mine = out[row, head * GROUP : (head + 1) * GROUP, 0].double()
            torch.testing.assert_close(mine, by_hand(x, row, head, tokens), rtol=1e-4, atol=1e-5)


def test_dense_peers_of_a_hybrid_layer_are_held_against_the_heads_that_read_everything() -> None:
    op, size = make_op("hybrid_attention", size_of(full_heads=2)), size_of(full_heads=2)
    x = op.draw()
    found, mine = peers.flash(size, x)(), op.ours(x)
    found[:, 0] += 1.0  # queries of KV head 0, which reads a list
    op.require_same(found, mine, size.dtype)
    found[:, 1] += 1.0  # of KV head 1, which reads everything
    with pytest.raises(AssertionError):
        op.require_same(found, mine, size.dtype)


def test_rows_see_the_prefix_and_their_own_part_of_the_block() -> None:
    mask, depths = random_tree(41, CPU)
    parents = [int(row[:node].nonzero()[-1]) if node else -1 for node, row in enumerate(mask)]
    assert mask.diagonal().all() and not mask.triu(1).any() and depths[0] == 0
    for node in range(1, 41):
        assert mask[node, :node].equal(mask[parents[node], :node]) and depths[node] == depths[parents[node]] + 1
    op = make_op("decode_attention_rows", size := size_of(rows=41, mask=mask))
    x, visible = op.draw(), whole_mask(size)
    assert visible.shape == (41, 512) and visible[:, :471].all() and visible[:, 471:].equal(mask)
    wide = (x[name].double() for name in "qkv")
    want = F.scaled_dot_product_attention(*wide, attn_mask=visible, enable_gqa=True)
    torch.testing.assert_close(op.ours(x).double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("op", "budget"), [("sparse_decode_attention", 512), ("hybrid_attention", 63), ("topk_select", 15)]
)
def test_a_budget_that_leaves_nothing_to_select_is_unsupported(op: str, budget: int) -> None:
    with pytest.raises(NotImplementedError, match=f"{budget} tokens"):
        make_op(op, size_of(budget=budget))


def test_a_rotation_is_larger_than_the_last_level_cache_three_times() -> None:
    device = torch.device("cuda")  # never touched: sizes only
    size = Size(32, 8, 128, 4096, 14336, 128256, 8192, 1, 4096, device, torch.bfloat16)
    op = make_op("decode_attention", size)
    assert sets_of(op, device) == 6 and 6 * op.read_bytes >= COLD_BYTES == 3 * 60 * 2**20  # 33.6 MB a set
    assert sets_of(make_op("topk_select", size), device) == MAX_SETS and sets_of(op, CPU) == 1


class PagedWrapper:
    """FlashInfer's wrappers in plain torch: NHD pages, planned before they run; causal aligns last row and last key."""

    def __init__(self, workspace: Tensor, layout: str, **buffers: Any):
        assert layout == "NHD" and not bool(workspace.any()), "the workspace must start at zero"
        self.buffers = buffers

    def set(
        self, starts: Tensor, indptr: Tensor, indices: Tensor, last: Tensor, heads: int, kv_heads: int, dim: int,
        page: int, mask: Tensor | None,
    ) -> None:  # fmt: skip
        assert indptr.dtype == indices.dtype == last.dtype == starts.dtype == torch.int32
        assert len(indptr) == len(last) + 1 and (last == page).all()
        self.planned = starts.tolist(), indptr.tolist(), indices.long(), mask
        self.shapes = (heads, dim), (page, kv_heads, dim), heads // kv_heads

    def run(self, q: Tensor, kv: tuple[Tensor, Tensor]) -> Tensor:
        (starts, pages, indices, mask), (rows_of, page_of, group) = self.planned, self.shapes
        out, used = torch.empty_like(q), 0
        assert q.shape[1:] == rows_of and q.is_contiguous() and all(x.shape[1:] == page_of for x in kv)
        for request in range(len(starts) - 1):
            rows = slice(*starts[request : request + 2])
            found = [x[indices[slice(*pages[request : request + 2])]].flatten(0, 1) for x in kv]
            keys, values = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in found)
            count, tokens = rows.stop - rows.start, keys.shape[1]
            visible = torch.ones(count, tokens, dtype=torch.bool).tril(tokens - count)
            if mask is not None:
                visible = mask[used : used + count * tokens].view(count, tokens)
                used += count * tokens
            out[rows] = F.scaled_dot_product_attention(q[rows].transpose(0, 1), keys, values, visible).transpose(0, 1)
        assert mask is None or used == len(mask)
        return out


class DecodeWrapper(PagedWrapper):
    """One row a request, in buffers of fixed size."""

    def plan(
        self, indptr: Tensor, indices: Tensor, last: Tensor, heads: int, kv_heads: int, dim: int, page: int, *,
        q_data_type: torch.dtype, kv_data_type: torch.dtype,
    ) -> None:  # fmt: skip
        assert self.buffers["use_cuda_graph"] and self.buffers["use_tensor_cores"]
        assert len(self.buffers["paged_kv_indptr_buffer"]) == len(indptr)
        assert len(self.buffers["paged_kv_indices_buffer"]) >= len(indices)
        self.set(torch.arange(len(indptr)).int(), indptr, indices, last, heads, kv_heads, dim, page, None)


class PrefillWrapper(PagedWrapper):
    """Several rows a request, causal or under a mask."""

    def plan(self, *sizes: Any, custom_mask: Tensor | None, causal: bool, **dtypes: torch.dtype) -> None:
        assert causal == (custom_mask is None)
        self.set(*sizes, custom_mask)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashInfer replaced by wrappers that keep its contract."""
    found = SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=DecodeWrapper, BatchPrefillWithPagedKVCacheWrapper=PrefillWrapper,
        top_k=lambda scores, k: torch.topk(scores, k, dim=-1, sorted=False),
    )  # fmt: skip
    monkeypatch.setattr(peers, "flashinfer", lambda: found)
    monkeypatch.setattr(peers, "_workspace", lambda device: torch.zeros(64, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        ("decode_attention", {}), ("sparse_decode_attention", {}), ("sparse_decode_attention_tokens", {}),
        ("topk_select", {}), ("hybrid_attention", {"full_heads": 4, "budget": 64}),
        ("hybrid_attention", {"full_heads": 4, "budget": 64, "mixed": True}),
        ("decode_attention_rows", {"rows": 8}), ("decode_attention_rows", {"rows": 41, "mask": TREE}),
    ],
)  # fmt: skip
def test_flashinfer_gets_the_same_to_do(library: None, op: str, sizes: dict[str, Any]) -> None:
    size = size_of(**{"context": 128, "batch": 3, "budget": 48, **sizes})
    made = make_op(op, size)
    inputs = made.draw()
    call: Callable[[], Tensor] = PEERS[op]["flashinfer"](size, inputs)
    made.require_same(call(), made.ours(inputs), torch.float32)
