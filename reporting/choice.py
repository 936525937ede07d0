"""Choose what pages recommend, from verdicts and measured speeds alone; what is not proven is never called the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from longdecode.reporting.runs import REFERENCE, Run, groups, top

PLACE = ["run", "model", "context", "batch"]
FEW = 16
"""Units below which an interval is too narrow to exclude a variant."""
NEEDED = 300
"""Prompts a task that decide at a margin of 2 points where at most 3 % of the answers differ."""


@dataclass(frozen=True)
class Choice:
    """The variant to take at one model, context and batch.

    ``state`` is ``proven`` (within the margin on every task), ``open`` (no loss proven, none excluded either) or
    ``none`` (every faster variant is worse on some task). ``rows`` are the chosen variant's, one a task; ``others`` are
    further candidates, each faster than the one before and with a larger loss.
    """

    state: Literal["proven", "open", "none"]
    rows: pd.DataFrame
    others: Sequence[pd.DataFrame] = ()

    @property
    def first(self) -> pd.Series:
        """The row that has what all rows of the variant share."""
        return self.rows.iloc[0]

    @property
    def prompts(self) -> tuple[int, int]:
        """The fewest and the most prompts a task."""
        return int(self.rows.n.min()), int(self.rows.n.max())


def choose(rows: pd.DataFrame) -> Choice:
    """Choose among the variants of one place that are faster than Full.

    Of those within the margin on every task, the fastest. Where there is none, of those without a proven loss whose
    intervals reach the margin, the one whose largest loss, in margins, is smallest; faster ones follow as candidates.

    Args:
        rows: joined rows of one run, model, context and batch. Tasks that say nothing have an empty verdict and no say.
    """
    telling = rows[(rows.verdict != "") & (rows.family != "reference") & (rows.speed > 1)]
    tasks = telling.groupby(["suite", "task"]).ngroups
    parts = [part for _, part in groups(telling, ["variant", "budget_tokens"]) if len(part) == tasks]
    proven = [part for part in parts if (part.verdict == "within").all()]
    if proven:
        return Choice("proven", max(proven, key=_speed))
    reaching = [
        part for part in parts if ((part.verdict != "worse") & ((part.loss_low <= part.margin) | (part.n < FEW))).all()
    ]
    candidates = sorted(reaching, key=lambda part: (largest_loss(part), -_speed(part)))
    leading: list[pd.DataFrame] = []
    for part in candidates:
        if not leading or _speed(part) > _speed(leading[-1]):
            leading.append(part)
    return Choice("open", leading[0], leading[1:3]) if leading else Choice("none", telling.iloc[:0])


def largest_loss(part: pd.DataFrame) -> float:
    """Return the largest loss of a variant's tasks, in margins."""
    return float((part.loss / part.margin).max())


def _speed(part: pd.DataFrame) -> float:
    return float(part.speed.iloc[0])


def fastest(rows: pd.DataFrame) -> pd.Series | None:
    """Return the fastest variant of a place, on the task on which it loses most; none where Full is fastest."""
    faster = rows[(rows.speed > 1) & (rows.family != "reference") & (rows.unit == "points")]
    if faster.empty:
        return None
    mine = faster[faster.speed == faster.speed.max()]
    return top(mine, mine.loss)


def front(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one task that no other row beats in both speed and loss, from slow to fast."""
    fast_first = rows[rows.speed > 1].sort_values(["speed", "loss"], ascending=[False, True])
    best_so_far = fast_first.loss.cummin().shift(fill_value=float("inf"))
    return fast_first[fast_first.loss < best_so_far][::-1]


def smallest_budgets(run: Run) -> pd.DataFrame:
    """Return, by model, suite, task, context and variant, the smallest budget within the margin.

    ``state`` is ``holds`` (``budget_tokens`` says from where), ``open`` where no budget is proven and one may hold, or
    ``fails`` where all are worse. Variants that are named as their method alone, with budgets that do not grow, and
    tasks that say something.
    """
    losses = run.losses
    if losses.empty:
        return pd.DataFrame()
    sizes = run.summary[["model", "suite", "task", "context", "variant", "budget", "budget_tokens"]].drop_duplicates()
    rows = losses.merge(sizes, on=["model", "suite", "task", "context", "variant", "budget"])
    plain = [run.methods.get(v) == v and v != REFERENCE and v not in run.growing for v in rows.variant]
    rows = run.leading(
        rows[(rows.verdict != "") & rows.budget_tokens.notna() & pd.Series(plain, index=rows.index, dtype=bool)]
    )
    found = []
    for key, part in groups(rows, ["model", "suite", "task", "context", "variant"], sort=False):
        holds = part[part.verdict == "within"].budget_tokens
        state = "holds" if len(holds) else "fails" if (part.verdict == "worse").all() else "open"
        found.append((*key, state, holds.min() if len(holds) else None, int(part.n.max())))
    return pd.DataFrame(found, columns=["model", "suite", "task", "context", "variant", "state", "budget_tokens", "n"])
