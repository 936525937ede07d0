"""Rank methods at one context by what they lose to Full where they lose most, from cells that ran and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from longdecode.evals.budgets import bytes_share
from longdecode.reporting.quality import with_traffic
from longdecode.reporting.results import REFERENCE_METHOD, Results, Topic
from longdecode.reporting.verdicts import MARGIN, Level, levelled
from longdecode.reporting.wording import NARROW, budget_of, difference_unit, gap, gap_interval, number

ORACLE = "oracle_topk"
"""The limit of choosing tokens: it reads every key to choose, so no one would run it."""

Place = tuple[Topic, int]


@dataclass(frozen=True, slots=True)
class Found:
    """One cell in words; ``loss`` counts margins, and being better than Full is no loss."""

    topic: Topic
    loss: float
    level: Level
    words: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A method at a budget, over several topics.

    Args:
        label: the method.
        text: the budget as configured.
        tokens: the budget in tokens.
        share: the most bytes read on any topic, as a share of Full's.
        params: as recorded.
        found: its cell on every topic.
    """

    label: str
    text: str
    tokens: int
    share: float
    params: str
    found: Sequence[Found]

    @property
    def loss(self) -> float:
        """Margins lost where it loses most; rounded, as equal scores differ by the noise of summation."""
        return round(max(each.loss for each in self.found), 9)

    @property
    def is_native(self) -> bool:
        """True for a budget in tokens: one in bytes is each method's own and takes no part in a search."""
        return bytes_share(self.text) is None

    @property
    def budget(self) -> str:
        """The budget in words, in tokens where the configuration gives bytes."""
        return budget_of(self.text) if self.is_native else f"{self.tokens:,} tokens"

    @property
    def reads(self) -> str:
        """Bytes read in words; empty where they were not counted."""
        return "" if pd.isna(self.share) else f"{number(100 * self.share, 0)}{NARROW}%"


def choices(results: Results, places: Sequence[Place]) -> list[Choice]:
    """Return every method and budget that ran on all places, the least loss first, of equals the fewest bytes.

    Full, the oracle, and methods whose correctness gate failed are left out.
    """
    tables = [(topic, cells(results, topic, context)) for topic, context in places]
    if not tables:
        return []
    by_key: dict[tuple[str, str], list[tuple[Topic, Any]]] = {}
    for topic, rows in tables:
        for _, row in rows.iterrows():
            by_key.setdefault((str(row["method"]), str(row["budget"])), []).append((topic, row))
    found = [
        Choice(
            label, text, int(mine[0][1]["budget_tokens"]), max(float(row["bytes_share"]) for _, row in mine),
            str(mine[0][1]["params"]), [_found(topic, row) for topic, row in mine],
        )
        for (label, text), mine in by_key.items()
        if len(mine) == len(places)
    ]  # fmt: skip
    return sorted(found, key=lambda choice: (choice.loss, choice.share))


def leaders(results: Results, places: Sequence[Place]) -> set[str]:
    """Return the labels that come nearest to Full on some topic at some budget."""
    found: dict[tuple[Place, str], str] = {}
    for place in places:
        for choice in choices(results, [place]):
            found.setdefault((place, choice.text), choice.label)
    return set(found.values())


def cells(results: Results, topic: Topic, context: int) -> pd.DataFrame:
    """Return a topic's cells of real methods at one context with their levels, those of failed gates left out."""
    rows = with_traffic(results.rows_of(topic, context))
    rows = rows[(rows["status"] == "ok") & rows["diff_to_full"].notna()]
    rows = rows[~rows["kind"].isin([REFERENCE_METHOD, ORACLE]) & ~rows["method"].isin(results.failed(topic.model))]
    return levelled(results, topic, rows)


def _found(topic: Topic, row: pd.Series) -> Found:
    sign = -1.0 if topic.higher_is_better else 1.0
    bounds = gap_interval(row["diff_low"], row["diff_high"], topic.unit)
    words = f"{gap(row['diff_to_full'], topic.unit)} {difference_unit(topic.unit)} {bounds} on {topic.name}"
    return Found(topic, max(0.0, sign * float(row["diff_to_full"])) / MARGIN, row["level"], words)
