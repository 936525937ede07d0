"""Cases of layers whose heads differ: what they read and score by hand, bytes, gates, dense peers, cells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from longdecode.engine.errors import GateError, UnsupportedCellError
from longdecode.evals.budgets import Budget
from longdecode.evals.throughput import hybrid_cases, kernel_case
from longdecode.evals.throughput.hybrid_cases import BLOCK
from longdecode.evals.throughput.kernel_case import Case, Inputs, Size
from longdecode.evals.throughput.kernels import kernel_cells, make_case
from longdecode.evals.throughput.models import shape_config
from longdecode.evals.throughput.peers import peers_of
from longdecode.evals.throughput.spec import HybridSpec, KernelSpec

CPU = torch.device("cpu")
HEADS, GROUP, DIM = 4, 2, 32


def size_of(full_heads: int = 2, context: int = 700, batch: int = 2, budget: int | None = 200) -> Size:
    return Size(shape_config("miniature-shape"), context, batch, budget, CPU, torch.float32, {"full_heads": full_heads})


def by_hand(x: Inputs, row: int, head: int, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of a KV head's queries over some tokens, in float64, and the mean logit of each token."""
    q = x["q"][row, head * GROUP : (head + 1) * GROUP, 0].double()
    keys, values = (x[name][row, head, tokens].double() for name in ("k", "v"))
    logits = q @ keys.T / DIM**0.5
    return logits.softmax(dim=-1) @ values, logits.mean(dim=0)


def tokens_of(x: Inputs, row: int, head: int, full: set[int]) -> Tensor:
    length = int(x["lengths"][row])
    if head in full:
        return torch.arange(length)
    listed = x["indices"][row, head, : int(x["counts"][row, head])]
    tokens = (listed[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
    return tokens[tokens < length]


@pytest.mark.parametrize(
    ("op", "full_heads", "full"),
    [
        ("hybrid_attention", 0, set()),
        ("hybrid_attention", 1, {3}),
        ("hybrid_attention", 4, {0, 1, 2, 3}),
        ("hybrid_attention_scored", 2, {1, 3}),
        ("hybrid_attention_random", 2, {1, 3}),
    ],
)
def test_some_heads_read_everything_and_the_others_their_blocks(
    op: str, full_heads: int, full: set[int], seed: int
) -> None:
    torch.manual_seed(seed)
    case = make_case(op, size_of(full_heads))
    (x,) = case.make_sets(1)
    if "scores" in x:
        x["scores"].fill_(float("nan"))
    out, scores = case.ours(x)
    case.check(x, (out, scores))
    read = 0
    for row in range(2):
        for head in range(HEADS):
            tokens = tokens_of(x, row, head, full)
            assert len(tokens.unique()) == len(tokens)
            want, logits = by_hand(x, row, head, tokens)
            mine = out[row, head * GROUP : (head + 1) * GROUP, 0].double()
            torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-5)
            read += len(tokens)
            if scores is not None and head in full:
                best = [float(part.max()) for part in logits.split(BLOCK)]
                assert scores[row, sorted(full).index(head)].tolist() == pytest.approx(best, abs=1e-5)
    lists = 2 * (HEADS - len(full)) * 3 * 8
    scored = 2 * len(full) * 11 * 4 if scores is not None else 0
    # The last block of a row may be cut short: bytes count it whole.
    kv = 2 * DIM * 4
    assert read * kv <= case.read_bytes - lists - scored <= (read + 2 * HEADS * BLOCK) * kv


@pytest.mark.parametrize(
    ("op", "full_heads", "uneven"),
    [
        ("hybrid_attention", 0, [False]), ("hybrid_attention", 1, [True]), ("hybrid_attention", 4, [True]),
        ("hybrid_attention_scored", 1, [True]), ("hybrid_attention_scored", 4, [False]),
    ],
)  # fmt: skip
def test_lists_of_different_lengths_are_announced(
    monkeypatch: pytest.MonkeyPatch, op: str, full_heads: int, uneven: list[bool]
) -> None:
    """As methods do: where all heads read everything, it is the scores that tell the launch how long lists are."""
    case, said = make_case(op, size_of(full_heads)), []
    good = hybrid_cases.sparse_decode_attention
    monkeypatch.setattr(
        hybrid_cases,
        "sparse_decode_attention",
        lambda *args, **rest: said.append(rest["uneven"]) or good(*args, **rest),
    )
    case.ours(case.make_sets(1)[0])
    assert said == uneven


def test_bytes_by_hand() -> None:
    """704 tokens are 11 blocks; a budget of 200 tokens is 3 blocks. 4 KV heads of 32 in float32, batch 2."""
    token = 2 * DIM * 4
    sparse = make_case("hybrid_attention", size_of(0, 704))
    assert sparse.read_bytes == 2 * 4 * (192 * token + 3 * 8)
    hybrid = make_case("hybrid_attention", size_of(1, 704))
    assert hybrid.read_bytes == 2 * (704 * token + 3 * (192 * token + 3 * 8))
    scored = make_case("hybrid_attention_scored", size_of(1, 704))
    assert scored.read_bytes - hybrid.read_bytes == 2 * 11 * 4
    assert {case.peer_bytes["torch_flash"] for case in (sparse, hybrid, scored)} == {2 * 4 * 704 * token}
    assert make_case("topk_select_into", size_of(2, 704)).read_bytes == 2 * 2 * (11 * 4 + 3 * 8)


def test_random_lengths_lie_below_the_context_and_are_the_same_every_time() -> None:
    case = make_case("hybrid_attention_random", size_of(2, batch=4))
    first, second = case.make_sets(2)
    lengths = first["lengths"]
    assert torch.equal(lengths, second["lengths"])
    assert int(lengths.min()) >= 1 and int(lengths.max()) < 700 and len(lengths.unique()) > 1
    for x in (first, second):
        used = (lengths + BLOCK - 1) // BLOCK
        for row, head in ((row, head) for row in range(4) for head in (0, 2)):
            assert int(x["counts"][row, head]) == min(3, int(used[row]))
            assert int(x["indices"][row, head, : int(x["counts"][row, head])].max()) < int(used[row])


def wrong_out(good: Any, *args: Any, **rest: Any) -> Any:
    out, lse = good(*args, **rest)
    return out.roll(1, 1), lse


def wrong_scores(good: Any, *args: Any, **rest: Any) -> Any:
    found = good(*args, **rest)
    rest["scores"][:, 0, -1] += 1.0
    return found


def no_scores(good: Any, *args: Any, **rest: Any) -> Any:
    rest["scores"].fill_(float("nan"))
    return good(*args, **rest | {"scores": None, "score_rows": None, "score_block": 1})


@pytest.mark.parametrize("wrong", [wrong_out, wrong_scores, no_scores])
def test_a_wrong_kernel_fails_its_gate(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    case = make_case("hybrid_attention_scored", size_of())
    (x,) = case.make_sets(1)
    good = hybrid_cases.sparse_decode_attention
    monkeypatch.setattr(hybrid_cases, "sparse_decode_attention", lambda *args, **rest: wrong(good, *args, **rest))
    got = case.ours(x)
    monkeypatch.setattr(hybrid_cases, "sparse_decode_attention", good)
    with pytest.raises(GateError, match="hybrid_attention"):
        case.check(x, got)


def test_selection_goes_into_the_lists_of_the_heads_that_retrieve(seed: int) -> None:
    torch.manual_seed(seed)
    case = make_case("topk_select_into", size_of(2, context=64 * 40, budget=64 * 12))
    (x,) = case.make_sets(1)
    got = case.ours(x)
    case.check(x, got)
    assert bool((got[:, [0, 2]] == -1).all())
    for row in range(2):
        for number, head in enumerate((1, 3)):
            free = x["scores"][row, number, 2:35].topk(12 - 7).indices + 2
            assert got[row, head].tolist() == sorted([0, 1, *free.tolist(), *range(35, 40)])
    got[0, 0, 0] = 3
    with pytest.raises(GateError, match="other lists"):
        case.check(x, got)


@pytest.mark.parametrize("op", ["hybrid_attention", "hybrid_attention_scored"])
def test_peers_are_held_against_the_heads_that_read_what_they_read(op: str, seed: int) -> None:
    torch.manual_seed(seed)
    case = make_case(op, size_of(2))
    sets = case.make_sets(2)
    mine = case.ours(sets[0])
    assert case.same is not None
    for label in set(peers_of(op)) - {"torch_cudnn", "flashinfer"}:
        calls = peers_of(op)[label](case, sets)
        assert len(calls) == 2
        found = calls[0]()
        assert case.same(found, mine), label
        found[:, 2:4] += 1.0  # queries of KV head 1, which reads everything
        assert not case.same(found, mine)


def test_dense_peers_read_a_shared_cache_once() -> None:
    size = size_of(0)
    case = make_case("hybrid_attention", size)
    one, two, three = (case.make_sets(1)[0] for _ in range(3))
    shared = [one, two | {"k": one["k"], "v": one["v"]}, three]
    assert len(peers_of("hybrid_attention")["torch_flash"](case, shared)) == 2


def test_a_head_that_reads_everything_has_a_cache_of_its_own_in_every_set() -> None:
    def case(full_heads: int) -> Case:
        device = torch.device("cuda")  # never touched: sizes only
        size = Size(shape_config("llama3-8b"), 16000, 1, 1600, device, torch.bfloat16, {"full_heads": full_heads})
        return make_case("hybrid_attention", size)

    cache = 2 * 8 * 16000 * 128 * 2
    sparse, mixed = case(0), case(1)
    assert sparse.cold and mixed.cold
    assert sparse.base_bytes == 3 * cache and sparse.set_bytes < cache / 100
    assert mixed.base_bytes == 0 and mixed.set_bytes > cache
    assert mixed.sets * mixed.read_bytes >= kernel_case.COLD_BYTES


@pytest.mark.parametrize(
    ("op", "size", "says"),
    [
        ("hybrid_attention", size_of(budget=704), "704"),
        ("hybrid_attention", size_of(budget=63), "63"),
        ("hybrid_attention_scored", size_of(0), "none can be scored"),
        ("topk_select_into", size_of(0), "none selects"),
    ],
)
def test_what_has_nothing_to_do_is_unsupported(op: str, size: Size, says: str) -> None:
    with pytest.raises(UnsupportedCellError, match=says):
        make_case(op, size)


def test_hybrid_cells_have_sizes_of_their_own() -> None:
    hybrid = HybridSpec((16000, 32000), (1,), (Budget(0.1),), (0, 2), ("full", "random"))
    ops = ("add_rms_norm", "hybrid_attention", "hybrid_attention_scored", "topk_select_into")
    spec = KernelSpec(ops, contexts=(512,), budgets=(Budget(64),), hybrid=hybrid)
    cells = [cell for cell in kernel_cells(spec, CPU) if cell.bench == "kernel"]
    assert len({cell.key for cell in cells}) == len(cells)
    ours = [(c.subject, c.context, c.params.get("full_heads")) for c in cells if c.label == "longdecode"]
    assert ours == [
        ("add_rms_norm", 0, None),
        ("hybrid_attention", 16000, 0), ("hybrid_attention", 16000, 2),
        ("hybrid_attention", 32000, 0), ("hybrid_attention", 32000, 2),
        ("hybrid_attention_random", 16000, 0), ("hybrid_attention_random", 16000, 2),
        ("hybrid_attention_random", 32000, 0), ("hybrid_attention_random", 32000, 2),
        ("hybrid_attention_scored", 16000, 2), ("hybrid_attention_scored", 32000, 2),
        ("topk_select_into", 16000, 2), ("topk_select_into", 32000, 2),
    ]  # fmt: skip
    assert not [cell for cell in kernel_cells(KernelSpec(ops), CPU) if cell.subject.startswith("hybrid")]
