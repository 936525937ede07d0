"""Choose what pages recommend: from verdicts and measured speeds alone, and never a variant of which nothing is proven."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from longdecode.reporting.runs import REFERENCE, Run

PLACE = ["run", "model", "context", "batch"]
NEEDED = 300
"""Prompts a task that decide at a margin of 2 points where at most 3 % of the answers differ."""


@dataclass(frozen=True)
class Choice:
    """What to take at one model, context and batch.

    ``state`` is ``proven`` (within the margin on every task), ``open`` (no loss proven, but none excluded either) or
    ``none`` (every faster variant loses more than the margin). ``rows`` are the chosen variant's, one a task.
    """

    state: Literal["proven", "open", "none"]
    rows: pd.DataFrame

    @property
    def first(self) -> pd.Series:
        """The row that has what all rows of the variant share."""
        return self.rows.iloc[0]

    @property
    def prompts(self) -> tuple[int, int]:
        """The fewest and the most prompts a task."""
        return int(self.rows.n.min()), int(self.rows.n.max())


def choose(rows: pd.DataFrame) -> Choice:
    """Choose among the variants of one place: of those faster than Full, the fastest of the best state.

    Args:
        rows: joined rows of one run, model, context and batch. Tasks that say nothing have an empty verdict and no say.
    """
    telling = rows[(rows.verdict != "") & (rows.family != "reference") & (rows.speed > 1)]
    tasks = telling.groupby(["suite", "task"]).ngroups
    states: dict[str, list[pd.DataFrame]] = {"proven": [], "open": []}
    for _, part in telling.groupby(["variant", "budget_tokens"]):
        verdicts = set(part.verdict)
        if verdicts == {"within"} and len(part) == tasks:
            states["proven"].append(part)
        elif "worse" not in verdicts:
            states["open"].append(part)
    for state, parts in states.items():
        if parts:
            return Choice(state, max(parts, key=lambda part: part.speed.iloc[0]))  # type: ignore[arg-type]
    return Choice("none", telling.iloc[:0])


def fastest(rows: pd.DataFrame) -> pd.Series | None:
    """Return the row of the fastest variant of a place on the task on which it loses most; none where Full is fastest."""
    faster = rows[(rows.speed > 1) & (rows.family != "reference") & (rows.unit == "points")]
    if faster.empty:
        return None
    mine = faster[faster.speed == faster.speed.max()]
    return mine.loc[mine.loss.idxmax()]


def front(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one task that no other row beats in both speed and loss, from slow to fast."""
    kept, best = [], float("inf")
    for row in rows[rows.speed > 1].sort_values(["speed", "loss"], ascending=[False, True]).itertuples():
        if row.loss < best:
            kept.append(row.Index)
            best = row.loss
    return rows.loc[kept[::-1]]


def smallest_budgets(run: Run) -> pd.DataFrame:
    """Return, by model, suite, task, context and variant, the smallest budget within the margin.

    ``state`` is ``holds`` (``budget_tokens`` says from where), ``open`` where no budget is proven and one may hold, or
    ``fails`` where all are worse. Variants that are named as their method alone, and tasks that say something.
    """
    losses = run.losses
    if losses.empty:
        return pd.DataFrame()
    sizes = run.summary[["model", "suite", "task", "context", "variant", "budget", "budget_tokens"]].drop_duplicates()
    rows = losses.merge(sizes, on=["model", "suite", "task", "context", "variant", "budget"])
    plain = [run.methods.get(v) == v and v != REFERENCE for v in rows.variant]
    rows = rows[(rows.verdict != "") & rows.budget_tokens.notna() & pd.Series(plain, index=rows.index, dtype=bool)]
    found = []
    for key, part in rows.groupby(["model", "suite", "task", "context", "variant"], sort=False):
        if key[2] not in run.headline(key[1]):
            continue
        holds = part[part.verdict == "within"].budget_tokens
        state = "holds" if len(holds) else "fails" if (part.verdict == "worse").all() else "open"
        found.append((*key, state, holds.min() if len(holds) else None, int(part.n.max())))
    return pd.DataFrame(
        found, columns=["model", "suite", "task", "context", "variant", "state", "budget_tokens", "n"]
    )
