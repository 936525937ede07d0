"""The pace of two trees under planted costs: which one steps take, and what may not bend it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from longdecode.engine.pace import LOOK, TRY, Pace

ROUND = LOOK * TRY


class Text:
    """Two rows that write three tokens a step with the wide tree, two with the narrow one, on a clock of its own."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.active = torch.ones(2, dtype=torch.int64)
        self.written = SimpleNamespace(counts=torch.ones(2, dtype=torch.int64), steps=torch.ones(2, dtype=torch.int64))
        self.pace = Pace(cast(Any, self.written), clock=lambda: self.seconds)

    def write(self, steps: int, wide: float, narrow: float, renewing: int = 0) -> list[bool]:
        """Take steps of these costs, every ``renewing``-th a hundred times as dear; which were narrow."""
        taken = []
        for step in range(steps):
            renews = bool(renewing) and step % renewing == 0
            taken.append(self.pace.takes_narrow(renews))
            assert not (renews and taken[-1])
            self.written.counts += self.active * (2 if taken[-1] else 3)
            self.written.steps += self.active
            self.seconds += (narrow if taken[-1] else wide) * (100 if renews else 1)
        return taken


def test_steps_change_to_the_tree_that_pays_within_two_tries() -> None:
    text = Text()
    assert sum(text.write(4 * ROUND, wide=1.0, narrow=1.0)) == 4 * LOOK
    text.write(2 * ROUND, wide=2.0, narrow=1.0)
    assert sum(text.write(4 * ROUND, wide=2.0, narrow=1.0)) == 4 * (ROUND - LOOK)
    text.write(2 * ROUND, wide=1.0, narrow=1.0)
    assert sum(text.write(4 * ROUND, wide=1.0, narrow=1.0)) == 4 * LOOK


def test_at_equal_rates_steps_stay_with_the_wide_tree() -> None:
    assert sum(Text().write(4 * ROUND, wide=1.5, narrow=1.0)) == 4 * LOOK


def test_rows_that_end_and_renewals_bend_nothing() -> None:
    """A row's end halves what a step writes; a renewal takes as long as a hundred steps."""
    text = Text()
    text.write(LOOK * 5 // 2, wide=1.0, narrow=0.7)  # both trees are rated, a wide window is under way
    text.active[1] = 0
    assert sum(text.write(ROUND, wide=1.0, narrow=0.7)) == LOOK
    rest = 8  # of the steps between renewals, which are no window
    assert sum(text.write(TRY * (LOOK + rest), wide=1.0, narrow=0.7, renewing=LOOK + rest)) == LOOK + rest - 1


def test_a_try_ends_where_a_cache_is_built_anew_too_often_to_rate_it() -> None:
    text = Text()
    assert text.write(LOOK + 1, wide=1.0, narrow=5.0)[-1]  # a try of the narrow tree
    assert not any(text.write(4 * ROUND, wide=1.0, narrow=5.0, renewing=LOOK // 2)[LOOK:])
