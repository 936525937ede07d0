"""Block selection: the prompt follows the decode rule, indexes are renewed, two steps share what the bound says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import CheckpointError, ConfigError, UnsupportedCellError
from longdecode.kernels.block_score import newest_first
from longdecode.kernels.importance import Importance, ImportanceWeights, block_importance, token_importance
from longdecode.kernels.pooled_keys import Pooling, build_pooled_keys
from longdecode.methods.block_plan import BlockPlan, Split, plan_blocks
from longdecode.methods.block_selection import BlockSelection
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.importance_heads import write_heads
from longdecode.methods.registry import get_method, get_rule
from longdecode.methods.rewritten_index import renew_importance, renew_pooled_keys

BUDGET = 40
PARAMS = {"infllm2": {}, "nosa": {"heads": "random:3"}, "dma": {"heads": "random:3"}}


def build(name: str, **more: object) -> AttentionMethod:
    return get_method(name).from_budget(BUDGET, CONFIG, **{**PARAMS.get(name, {}), **more})


@pytest.mark.parametrize("name", PARAMS)
def test_every_prompt_token_follows_the_rule_of_a_step(rng: torch.Generator, name: str) -> None:
    """Two pieces of a prompt; each query's output is softmax over what the rule reads at its place."""
    n, first, dim = 131, 70, CONFIG.head_dim
    q = 2 * torch.randn(1, CONFIG.num_heads, n, dim, generator=rng, dtype=torch.float64)
    k, v = (torch.randn(1, CONFIG.num_kv_heads, n, dim, generator=rng, dtype=torch.float64) for _ in range(2))
    method, found = build(name), get_rule(name)
    assert found is not None
    rule, layer = found(method.params, BUDGET, CONFIG), 2
    cuts = ((0, first), (first, n))
    pieces = [method.attend_prompt(layer, q[:, :, at:to], k[:, :, :to], v[:, :, :to], at) for at, to in cuts]
    got = torch.cat(pieces, dim=2)[0]
    for at in (0, 5, 39, 40, 44, 69, 70, 103, 130):
        keys, values = k[0, :, : at + 1], v[0, :, : at + 1]
        bias = rule.bias(layer, values)
        for kv_head, tokens in enumerate(rule.reads(layer, q[0, :, at], keys)):
            assert len(tokens) <= BUDGET
            for head in rule.group(kv_head):
                logits = keys[kv_head, tokens] @ q[0, head, at] * dim**-0.5
                logits = logits if bias is None else logits + bias[kv_head, tokens]
                torch.testing.assert_close(got[head, at], logits.softmax(0) @ values[kv_head, tokens])


def test_a_dense_prefill_reads_everything_and_keeps_the_bias(rng: torch.Generator) -> None:
    n, first, dim = 131, 70, CONFIG.head_dim
    q = 2 * torch.randn(1, CONFIG.num_heads, n - first, dim, generator=rng, dtype=torch.float64)
    k, v = (torch.randn(1, CONFIG.num_kv_heads, n, dim, generator=rng, dtype=torch.float64) for _ in range(2))
    method, found = build("nosa", prefill="dense"), get_rule("nosa")
    assert found is not None
    bias = found(method.params, BUDGET, CONFIG).bias(2, v[0])
    got = method.attend_prompt(2, q, k, v, first)[0]
    for head in range(CONFIG.num_heads):
        kv_head = head // (CONFIG.num_heads // CONFIG.num_kv_heads)
        logits = q[0, head] @ k[0, kv_head].T * dim**-0.5 + bias[kv_head]
        known = torch.arange(n) <= torch.arange(first, n)[:, None]
        torch.testing.assert_close(got[head], logits.where(known, -torch.inf).softmax(1) @ v[0, kv_head])


def test_equal_importances_leave_the_newest_blocks() -> None:
    """All scores equal, in the torch path and in the kernel: sink, then the latest blocks without a gap."""
    method = build("nosa", heads="zero")
    assert isinstance(method, BlockSelection)
    for in_use in (9, 10, 11, 30):
        equal = torch.zeros(1, 2, 32)
        chosen, counts = method.plan.choose(equal, equal, torch.tensor([in_use]))
        want = sorted({0, *range(max(0, in_use - method.plan.blocks + 1), in_use)})
        for head in range(2):
            assert sorted(chosen[0, head, : int(counts[0, head])].tolist()) == want


def test_budgets_are_those_of_the_paper_and_of_the_code() -> None:
    paper = plan_blocks("nosa", 4096, None, None, None, "paper", True)
    assert (paper.block_size, *paper.pooling) == (64, 32, 16)
    assert (paper.sink, paper.window, paper.by_query, paper.by_importance) == (1, 16, 16, 31)
    code = plan_blocks("nosa", 4096, 64, 32, 16, "code", True)
    assert (code.sink, code.window, code.by_query, code.by_importance) == (1, 17, 15, 31)
    code = plan_blocks("infllm2", 4096, 64, 32, 16, "code", False)
    assert (code.sink, code.window, code.by_query) == (1, 17, 46)
    quarter = plan_blocks("nosa", 1024, None, None, None, "paper", True)
    assert (quarter.block_size, *quarter.pooling, quarter.blocks) == (16, 8, 4, 64)


def test_misuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCellError, match=r"no importance heads.*nosa_train"):
        build("nosa", heads="model")
    with pytest.raises(ConfigError, match="random:<seed>"):
        build("nosa", heads="guess")
    with pytest.raises(ConfigError, match="multiple of the window"):
        build("infllm2", block_size=4, pool_tokens=3)
    with pytest.raises(UnsupportedCellError, match="8 blocks of 16"):
        build("infllm2", block_size=16)
    file = tmp_path / "importance.safetensors"
    write_heads(file, torch.zeros(7, 2, 32), torch.zeros(7, 2))
    config = type(CONFIG)(**{name: getattr(CONFIG, name) for name in CONFIG.__slots__} | {"importance_file": str(file)})
    with pytest.raises(CheckpointError, match=r"\[7, 2, 32\].*needs \[7, 2, 64\]"):
        get_method("nosa").from_budget(BUDGET, config)


@pytest.mark.parametrize("name", ["nosa", "dma"])
def test_the_kernel_breaks_ties_as_torch_does(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Few distinct scores, lists shorter and longer than the budget, junk past every row's end."""
    method, size = build(name), 300
    in_use = torch.tensor([size, 57, 41, 40, 9, 2])
    levels = torch.randint(0, 3, (2, len(in_use), 2, size), generator=rng) * 0.25
    levels[torch.arange(size).expand(levels.shape) >= in_use[:, None, None]] = float("nan")
    query, importance = (newest_first(x, in_use, float("nan")) for x in levels)

    def chosen() -> list[tuple[Tensor, Tensor]]:
        if isinstance(method, BlockSelection):
            return [method.plan.choose(query, importance, in_use)]
        return [method.choose(levels[0], in_use)]

    plain = chosen()
    monkeypatch.setattr("longdecode.kernels.dispatch.kernel_path", lambda *given: "triton")
    for want, got in zip(plain, chosen(), strict=True):
        assert got[1].equal(want[1])
        for row in range(len(in_use)):
            count = int(want[1][row, 0])
            assert got[0][row, :, :count].equal(want[0][row, :, :count])


BLOCK_TOKENS, ROWS, MOST = 8, 64, 400
GENERATIONS, STEPS = 3, 157


def shared_blocks(plan: BlockPlan, rng: torch.Generator, steps: int, by_importance: bool) -> tuple[Tensor, Tensor]:
    """Decode with hostile queries; blocks shared with the step before ``[steps, ROWS]``, and whether a block began.

    A query wants blocks that were not read, or those whose importance put them there, so that they are taken out of
    that ranking; sometimes it wants anything. Importances tie now and then, and are fixed for every block.
    """
    fixed = torch.randint(0, 40, (ROWS, 1, MOST), generator=rng).float()
    fixed[::2] = torch.randn(ROWS // 2, 1, MOST, generator=rng)
    tokens = torch.randint(120 * BLOCK_TOKENS, (MOST - 40) * BLOCK_TOKENS, (ROWS,), generator=rng)
    before = torch.zeros(ROWS, MOST, dtype=torch.bool)
    found, began = [], []
    for step in range(steps + 1):
        in_use = plan.in_use(tokens + step)
        want = torch.rand(ROWS, 1, MOST, generator=rng)
        mood = torch.randint(0, 4, (ROWS, 1, 1), generator=rng)
        want += torch.where(mood == 0, 2.0 * ~before[:, None], 0.0)
        want += torch.where(mood == 1, 2.0 * before[:, None] + fixed, 0.0)
        want += torch.where(mood == 2, 2.0 * ~before[:, None] + fixed, 0.0)
        ranking = newest_first(fixed, in_use, float("-inf")) if by_importance else None
        places, counts = plan.choose(newest_first(want, in_use, 0.0), ranking, in_use)
        assert counts.eq(plan.blocks).all()
        chosen = torch.zeros(ROWS, MOST, dtype=torch.bool).scatter_(1, places[:, 0], True)
        assert chosen.sum(dim=1).eq(plan.blocks).all()
        if step:
            found.append((chosen & before).sum(dim=1))
            began.append((tokens + step - 1) % BLOCK_TOKENS == 0)
        before = chosen
    return torch.stack(found), torch.stack(began)


def keeps_the_bound(split: Split, rng: torch.Generator, steps: int) -> int:
    """Check one generation; return how many steps were tried."""
    plan = plan_blocks("nosa", 64 * BLOCK_TOKENS, BLOCK_TOKENS, None, None, split, True)
    shared, began = shared_blocks(plan, rng, steps, by_importance=True)
    bound = plan.blocks - plan.by_query
    assert int(shared[~began].min()) >= bound and int(shared[began].min()) >= bound - 1
    # The queries are hostile enough to reach it.
    assert int(shared.min()) <= bound
    return shared.numel()


@pytest.mark.parametrize(("split", "bound"), [("paper", 48), ("code", 49)])
def test_nosa_keeps_the_bound(rng: torch.Generator, split: Split, bound: int) -> None:
    """Thirty thousand steps; three quarters of 64 blocks, one less where a block begins."""
    plan = plan_blocks("nosa", 64 * BLOCK_TOKENS, BLOCK_TOKENS, None, None, split, True)
    assert plan.blocks - plan.by_query == bound
    assert sum(keeps_the_bound(split, rng, STEPS) for _ in range(GENERATIONS)) >= 30_000


def test_the_same_queries_break_it_for_infllm2(rng: torch.Generator) -> None:
    plan = plan_blocks("infllm2", 64 * BLOCK_TOKENS, BLOCK_TOKENS, None, None, "paper", False)
    shared, _ = shared_blocks(plan, rng, 20, by_importance=False)
    assert int(shared.min()) <= 18


CAPACITY, HEADS, DIM, BLOCK_SIZE = 96, 2, 8, 16
NAN = float("nan")


@pytest.mark.parametrize("pooling", [Pooling(8, 4), Pooling(4, 4), Pooling(16, 4)], ids=str)
@pytest.mark.parametrize("width", [1, 5, 9])
def test_it_is_what_a_build_from_scratch_has(rng: torch.Generator, pooling: Pooling, width: int) -> None:
    """Rows near their beginning, in the middle and near the end; a part of what was written is kept, or all of it."""
    before = torch.tensor([3, 40, 61, CAPACITY - width])
    kept = torch.tensor([min(2, width), width, 0, width])
    k, v = (torch.full((4, HEADS, CAPACITY, DIM), NAN, dtype=torch.float64) for _ in range(2))
    for row, tokens in enumerate((before + width).tolist()):
        for x in (k, v):
            x[row, :, :tokens] = torch.randn(HEADS, tokens, DIM, generator=rng, dtype=torch.float64)
    weights = ImportanceWeights(torch.randn(HEADS, HEADS * DIM, generator=rng), torch.ones(HEADS))
    pooled = build_pooled_keys(k, before + width, pooling, CAPACITY)
    tokens = token_importance(v, weights)
    own = Importance(tokens, block_importance(tokens, before + width, pooling, BLOCK_SIZE))
    for row, first in enumerate(before.tolist()):
        for x in (k, v):
            x[row, :, first : first + width] = torch.randn(HEADS, width, DIM, generator=rng, dtype=torch.float64)
    lengths = before + kept

    renew_pooled_keys(pooled, k, before, width, lengths, pooling)
    renew_importance(own, v, weights, before, width, lengths, pooling, BLOCK_SIZE)

    fresh, weighed = build_pooled_keys(k, lengths, pooling, CAPACITY), token_importance(v, weights)
    for row, length in enumerate(lengths.tolist()):
        complete = int(pooling.complete(lengths)[row])
        torch.testing.assert_close(pooled.means[row, :, :complete], fresh.means[row, :, :complete])
        held = [place % pooling.window for place in range(max(0, length - pooling.window), length)]
        torch.testing.assert_close(pooled.ring[row][:, held], fresh.ring[row][:, held])
        torch.testing.assert_close(own.tokens[row, :, :length], weighed[row, :, :length])
        torch.testing.assert_close(own.blocks[row], block_importance(weighed, lengths, pooling, BLOCK_SIZE)[row])
