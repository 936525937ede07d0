"""The bound on what two steps of NOSA share, under queries that try to break it, and how far InfLLM-V2 falls below."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longdecode.kernels.block_score import newest_first
from longdecode.methods.block_plan import BlockPlan, Split, plan_blocks

BLOCK, ROWS, MOST = 8, 64, 400
GENERATIONS, STEPS = 10, 157


def shared_blocks(plan: BlockPlan, rng: torch.Generator, steps: int, by_importance: bool) -> tuple[Tensor, Tensor]:
    """Decode with hostile queries; blocks shared with the step before ``[steps, ROWS]``, and whether a block began.

    A query wants blocks that were not read, or those whose importance put them there, so that they are taken out of
    that ranking; sometimes it wants anything. Importances tie now and then, and are fixed for every block.
    """
    fixed = torch.randint(0, 40, (ROWS, 1, MOST), generator=rng).float()
    fixed[::2] = torch.randn(ROWS // 2, 1, MOST, generator=rng)
    tokens = torch.randint(120 * BLOCK, (MOST - 40) * BLOCK, (ROWS,), generator=rng)
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
            began.append((tokens + step - 1) % BLOCK == 0)
        before = chosen
    return torch.stack(found), torch.stack(began)


def check(split: Split, rng: torch.Generator, steps: int) -> int:
    """Check one generation; return how many steps were tried."""
    plan = plan_blocks("nosa", 64 * BLOCK, BLOCK, None, None, split, True)
    shared, began = shared_blocks(plan, rng, steps, by_importance=True)
    bound = plan.blocks - plan.by_query
    assert int(shared[~began].min()) >= bound and int(shared[began].min()) >= bound - 1
    # The queries are hostile enough to reach it.
    assert int(shared.min()) <= bound
    return shared.numel()


@pytest.mark.parametrize(("split", "bound"), [("paper", 48), ("code", 49)])
def test_nosa_keeps_the_bound(rng: torch.Generator, split: Split, bound: int) -> None:
    """A hundred thousand steps; three quarters of 64 blocks, one less where a block begins."""
    plan = plan_blocks("nosa", 64 * BLOCK, BLOCK, None, None, split, True)
    assert plan.blocks - plan.by_query == bound
    assert sum(check(split, rng, STEPS) for _ in range(GENERATIONS)) >= 100_000


def test_the_same_queries_break_it_for_infllm2(rng: torch.Generator) -> None:
    plan = plan_blocks("infllm2", 64 * BLOCK, BLOCK, None, None, "paper", False)
    shared, _ = shared_blocks(plan, rng, 20, by_importance=False)
    assert int(shared.min()) <= 18
