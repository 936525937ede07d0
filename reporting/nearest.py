"""Say which method comes nearest to Full where none stays within the margin, from cells that ran and no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from longdecode.evals.budgets import bytes_share
from longdecode.reporting.quality import with_traffic
from longdecode.reporting.results import REFERENCE_METHOD, Results, Topic
from longdecode.reporting.verdicts import margin
from longdecode.reporting.wording import (
    NARROW,
    budget_of,
    budget_order,
    difference_unit,
    gap,
    gap_interval,
    listing,
    number,
    short_tokens,
)

ORACLE = "oracle_topk"
"""The limit of choosing tokens: it reads every key to choose, so no one would run it."""

_BUDGETS = 4
Place = tuple[Topic, int]


@dataclass(frozen=True, slots=True)
class Nearest:
    """Hold one cell: its budget as configured, its bytes as a share of Full's, its difference and interval in words."""

    topic: Topic
    context: int
    label: str
    budget: str
    share: float
    difference: str

    @property
    def at(self) -> str:
        """The budget in words."""
        return f"at {budget_of(self.budget)}"

    @property
    def reads(self) -> str:
        """Bytes read, selector included; empty where they were not counted."""
        return "" if pd.isna(self.share) else f"{number(100 * self.share, 0)}{NARROW}%"


def cells(results: Results, topic: Topic, context: int) -> pd.DataFrame:
    """Return a topic's cells of real methods at one context, the nearest to Full first, of equals the least bytes.

    A cell that is better than Full counts as equal: what it is over is noise, and would hide a cheaper one.
    """
    rows = with_traffic(results.rows_of(topic, context))
    rows = rows[(rows["status"] == "ok") & rows["diff_to_full"].notna()]
    rows = rows[~rows["kind"].isin([REFERENCE_METHOD, ORACLE])]
    loss = rows["diff_to_full"] * (-1.0 if topic.higher_is_better else 1.0)
    # Rounded, as equal scores differ by the noise of summation.
    return rows.assign(loss=loss.clip(lower=0).round(9)).sort_values(["loss", "bytes_share"], kind="stable")


def leaders(results: Results, places: Sequence[Place]) -> set[str]:
    """Return the labels that come nearest to Full on some topic at some budget."""
    tables = {place: rows for place in places if len(rows := cells(results, *place))}
    budgets = {text for rows in tables.values() for text in rows["budget"]}
    return {found.label for text in budgets for found in _at_budget(tables, text)}


def sentences(results: Results, model: str, tuned: str, places: Sequence[Place], asked: int) -> list[str]:
    """Return two sentences: the nearest cell of every topic, and the nearest at each budget.

    Args:
        results: without ablations.
        model: as sentences name it.
        tuned: how knobs were chosen, in words.
        places: topics that Full does, each with its context; those at the context asked for come first.
        asked: the context of the sentence; another one is named beside its topic.
    """
    tables = {place: rows for place in places if len(rows := cells(results, *place))}
    if not tables:
        return []
    best = [_nearest(place, rows.iloc[0]) for place, rows in tables.items()]
    margins = listing(sorted({margin(topic.unit) for topic, _ in places}, key=len)).replace(" and ", " or ")
    winners = list(dict.fromkeys(found.label for found in best))
    which = "depends on the suite" if len(winners) > 1 else f"is {winners[0]} on every suite"
    parts = [
        f"{_named(found, asked)}: {found.label} {found.at}, {found.reads + ' of bytes, ' if _tells(found) else ''}"
        f"{found.difference}"
        for found in best
    ]
    said = [
        f"At {short_tokens(asked)} tokens of {model} ({tuned}) no method stays within {margins} of Full on every "
        f"suite, and which comes nearest {which} ({ORACLE} aside; bytes as a share of Full's, selector included): "
        f"{_lines(parts)}."
    ]
    budgets = sorted({text for rows in tables.values() for text in rows["budget"]}, key=budget_order)
    by_budget = [(text, _at_budget(tables, text)) for text in _few(budgets)]
    if len(budgets) > 1 and len({found.label for _, each in by_budget for found in each}) > 1:
        told = [f"at {budget_of(text)}: {_grouped(each, asked)}" for text, each in by_budget if each]
        said.append(f"Nearest at {short_tokens(asked)} tokens by budget, {tuned}:{_lines(told)}.")
    return said


def _few(budgets: Sequence[str]) -> list[str]:
    """The budgets, or where there are many a few of them from the smallest to the largest."""
    last = len(budgets) - 1
    if last < _BUDGETS:
        return list(budgets)
    return [budgets[round(place * last / (_BUDGETS - 1))] for place in range(_BUDGETS)]


def _lines(parts: Sequence[str]) -> str:
    """The parts of a sentence, each on a line of its own; pages list them."""
    return "".join(f"\n{part}" for part in [f"{part};" for part in parts[:-1]] + [parts[-1]])


def _nearest(place: Place, row: pd.Series) -> Nearest:
    topic, context = place
    bounds = gap_interval(row["diff_low"], row["diff_high"], topic.unit)
    words = f"{gap(row['diff_to_full'], topic.unit)} {difference_unit(topic.unit)} {bounds}"
    return Nearest(topic, context, str(row["method"]), str(row["budget"]), float(row["bytes_share"]), words)


def _at_budget(tables: dict[Place, pd.DataFrame], text: str) -> list[Nearest]:
    """The nearest cell of every topic at one budget."""
    found = [(place, rows[rows["budget"] == text]) for place, rows in tables.items()]
    return [_nearest(place, rows.iloc[0]) for place, rows in found if len(rows)]


def _tells(found: Nearest) -> bool:
    """Tell whether the bytes say more than the budget does."""
    return bool(found.reads) and bytes_share(found.budget) is None


def _grouped(found: Iterable[Nearest], asked: int) -> str:
    """The winners with their topics: ``a on s and t (17 % of bytes), b on u (50 %)``."""
    by_label: dict[str, list[Nearest]] = {}
    for each in found:
        by_label.setdefault(each.label, []).append(each)
    parts = []
    for label, mine in by_label.items():
        low, high = (number(100 * pick(each.share for each in mine), 0) for pick in (min, max))
        share = low if low == high else f"{low} to {high}"
        reads = f" ({share}{NARROW}% of bytes)" if all(_tells(each) for each in mine) else ""
        parts.append(f"{label} on {listing([_named(each, asked) for each in mine])}{reads}")
    return ", ".join(parts)


def _named(found: Nearest, asked: int) -> str:
    """The topic, with its context where that is not the one asked for."""
    where = "" if found.context == asked else f" (at {short_tokens(found.context)})"
    return found.topic.name + where
