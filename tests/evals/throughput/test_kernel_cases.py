"""Kernel cases: bytes by hand, rotations that do not overlap, gates that catch a wrong kernel, peers that agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from longdecode.engine.errors import GateError, UnsupportedCellError
from longdecode.evals.throughput import attention_cases, kernel_case, step_cases
from longdecode.evals.throughput.kernel_case import Size, rotated_blocks
from longdecode.evals.throughput.kernels import make_case
from longdecode.evals.throughput.models import parameters, shape_config
from longdecode.evals.throughput.peers import PeerUnavailableError, peers_of
from longdecode.evals.throughput.shapes import RAW_SHAPES
from longdecode.evals.throughput.spec import OPS, ROWS_OP

CPU = torch.device("cpu")


def size_of(context: int = 512, batch: int = 2, budget: int | None = 64) -> Size:
    return Size(shape_config("miniature-shape"), context, batch, budget, CPU, torch.float32, {"full_heads": 1})


ROWS = ("decode_attention_rows2", "decode_attention_rows41", "decode_attention_rows41_tree")


@pytest.mark.parametrize("op", [*(op for op in OPS if op != ROWS_OP), *ROWS])
def test_every_op_passes_its_gate_and_agrees_with_its_peers(op: str, seed: int) -> None:
    torch.manual_seed(seed)
    case = make_case(op, size_of())
    sets = case.make_sets(2)
    case.check(sets[0], case.ours(sets[0]))
    if op == "rope_append":
        sets = case.make_sets(2)  # the check has written into the first
    mine = case.ours(sets[0])
    for label, setup in peers_of(op).items():
        if label in ("flashinfer", "torch_cudnn"):
            with pytest.raises(PeerUnavailableError, match="CUDA"):
                setup(case, sets)
            continue
        if label == "torch_flash" and op.endswith("_tree"):
            with pytest.raises(PeerUnavailableError, match="no tree mask"):
                setup(case, sets)
            continue
        calls = setup(case, sets)
        assert len(calls) == 2
        if case.same is not None:
            assert case.same(calls[0](), mine), label


@pytest.mark.parametrize(
    ("op", "name", "wrong"),
    [
        ("decode_attention", "decode_attention", lambda out: (out[0] * 1.05, out[1])),
        ("sparse_decode_attention", "sparse_decode_attention", lambda out: (out[0].roll(1, 1), out[1])),
        ("token_logits", "token_logits", lambda out: out.nan_to_num()),
        ("page_score", "page_score", lambda out: out + 1),
        ("topk_select", "topk_select", lambda out: (out[0] + 1, out[1])),
        ("selection", "topk_select", lambda out: (out[0], out[1] - 1)),
    ],
)
def test_a_wrong_kernel_fails_its_gate(monkeypatch: pytest.MonkeyPatch, op: str, name: str, wrong: Any) -> None:
    good = getattr(attention_cases, name)
    case = make_case(op, size_of())
    (inputs,) = case.make_sets(1)
    if op == "token_logits":
        inputs["lengths"] -= 5  # so that there is something past the length
    monkeypatch.setattr(attention_cases, name, lambda *args, **kwargs: wrong(good(*args, **kwargs)))
    got = case.ours(inputs)
    monkeypatch.setattr(attention_cases, name, good)
    with pytest.raises(GateError):
        case.check(inputs, got)


def test_a_wrong_append_fails_its_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("rope_append", size_of())
    (inputs,) = case.make_sets(1)
    got = case.ours(inputs)
    inputs["keys"][0, 0, 3] = 0.0
    case.check(inputs, got)  # a slot that the op does not touch is the caller's
    inputs["keys"][0, 0, step_cases._SLOTS // 2] = 0.0
    with pytest.raises(GateError, match="output 1"):
        case.check(inputs | {"keys": inputs["keys"]}, got)


def test_bytes_by_hand() -> None:
    """4 KV heads of 32 in float32; 512 tokens in 32 pages of 16, batch 2, a budget of 64 tokens."""
    kv_token = 2 * (2 * 4 * 32 * 4)  # keys and values of batch x heads x channels
    assert make_case("decode_attention", size_of()).read_bytes == 512 * kv_token
    assert make_case("sparse_decode_attention", size_of()).read_bytes == 64 * kv_token + 2 * 4 * 4 * 8
    assert make_case("sparse_decode_attention_tokens", size_of()).read_bytes == 64 * kv_token + 2 * 4 * 64 * 8
    assert make_case("page_score", size_of()).read_bytes == 32 * kv_token + 2 * 4 * 32 * 4
    assert make_case("topk_select", size_of()).read_bytes == 2 * 4 * (32 * 4 + 4 * 8)
    assert make_case("linear_down", size_of()).read_bytes == 4 * (256 * 640 + 2 * (640 + 256))


def test_rows_see_the_prefix_and_their_own_part_of_the_block(seed: int) -> None:
    torch.manual_seed(seed)
    mask, depths = kernel_case.random_tree(41, CPU)
    parents = [int(row[:node].nonzero()[-1]) if node else -1 for node, row in enumerate(mask)]
    assert mask.diagonal().all() and not mask.triu(1).any() and depths[0] == 0
    for node in range(1, 41):
        assert mask[node, :node].equal(mask[parents[node], :node]) and depths[node] == depths[parents[node]] + 1
    case = make_case("decode_attention_rows41_tree", size_of())
    (x,) = case.make_sets(1)
    visible = attention_cases.whole_mask(x)
    assert visible.shape == (41, 512) and visible[:, :471].all() and visible[:, 471:].equal(mask)
    want = torch.nn.functional.scaled_dot_product_attention(
        x["q"].double(), x["k"].double(), x["v"].double(), attn_mask=visible, enable_gqa=True
    )
    torch.testing.assert_close(case.ours(x).double(), want, atol=1e-5, rtol=1e-5)
    assert case.params == {"rows": 41, "mask": "tree"}
    assert case.read_bytes == make_case("decode_attention", size_of()).read_bytes


def test_a_budget_that_covers_the_context_is_unsupported() -> None:
    with pytest.raises(UnsupportedCellError, match="512"):
        make_case("sparse_decode_attention", size_of(budget=512))


def test_turns_share_no_block_until_all_are_used() -> None:
    size = size_of()
    turns = [rotated_blocks(size, 32, 5, turn) for turn in range(6)]
    for lists in zip(*(turn.reshape(-1, 5) for turn in turns), strict=True):
        used = torch.cat(lists)
        assert len(used.unique()) == 30 and int(used.max()) < 32
        assert all(bool((part.diff() > 0).all()) for part in lists)
    assert torch.equal(rotated_blocks(size, 32, 5, 6), turns[0])


def test_a_rotation_is_larger_than_the_last_level_cache_three_times() -> None:
    device = torch.device("cuda")  # never touched: sizes only
    size = Size(shape_config("llama3-8b"), 8192, 1, 4096, device, torch.bfloat16)
    case = make_case("decode_attention", size)
    assert case.sets == 6 and case.cold  # 33.6 MB a set
    assert case.sets * case.read_bytes >= 3 * kernel_case.L2_BYTES
    small = make_case("topk_select", size)
    assert small.sets == kernel_case.MAX_SETS and not small.cold


def test_shapes_are_the_published_ones() -> None:
    counted = {name: parameters(shape_config(name)) for name in RAW_SHAPES}
    assert counted["llama3-8b"] == pytest.approx(8.03e9, rel=1e-3)
    assert counted["qwen3-8b"] == pytest.approx(8.19e9, rel=1e-3)
    assert shape_config("llama3-8b", 524288).max_positions == 524288
