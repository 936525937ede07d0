"""Make claims.csv: one row a claim of a paper, its number in print beside ours, and one word for what came out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd

from longdecode.evals.analysis.declaration import Claim, Declaration
from longdecode.evals.analysis.query import AmbiguousQueryError, Found, Tables

COLUMNS = (
    "paper", "claim", "published", "like_for_like", "low", "high", "unit", "conditions", "best_variant", "best",
    "verdict", "why", "source", "revision",
)  # fmt: skip
Outcome = Literal["reproduced", "partly", "not", "not comparable", "cannot tell", "not run"]
MOST_OF_IT = 0.5
"""Share of the printed effect from which on a claim holds partly."""


def claims_table(papers: Mapping[str, Declaration], tables: Tables) -> pd.DataFrame:
    """Return a row for every claim of every paper; what was not run, or fits several rows, says so.

    Raises:
        QueryError: a claim's query names an unknown column.
    """
    rows = [_row(name, paper, claim, tables) for name, paper in papers.items() for claim in paper.claims]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def outcome(printed: float, claim: Claim, found: Found | None, digits: int) -> Outcome:
    """Return what came out of a claim under the paper's own conditions.

    At least so much: ``reproduced`` where the interval reaches the printed figure (as rounded there), ``partly`` where
    it reaches half of the printed effect, ``not`` where it stays below. At most so much: ``reproduced`` where the whole
    interval lies below, ``not`` where none of it does. ``cannot tell``: there is no interval, it holds both the
    printed figure and no effect, or forks of one training each stand behind it. The best variant has no say.
    """
    if found is None:
        return "not run"
    if not claim.comparable:
        return "not comparable"
    if not (math.isfinite(found.low) and math.isfinite(found.high)) or (claim.trainings or 2) < 2:
        return "cannot tell"
    rounding = 0.5 * 10.0**-digits
    if claim.direction == "at_most":
        if found.high <= printed + rounding:
            return "reproduced"
        return "not" if found.low > printed + rounding else "cannot tell"
    sign = 1.0 if printed >= claim.no_effect else -1.0
    most = sign * (found.high if sign > 0 else found.low)
    least = sign * (found.low if sign > 0 else found.high)
    goal, nothing = sign * printed, sign * claim.no_effect
    if most >= goal - rounding:
        return "cannot tell" if least <= nothing else "reproduced"
    return "partly" if most >= nothing + MOST_OF_IT * (goal - nothing) else "not"


def _row(name: str, paper: Declaration, claim: Claim, tables: Tables) -> dict[str, Any]:
    table, row, column = paper.printed(claim)
    why = claim.why
    try:
        found = tables.find(claim.like)
    except AmbiguousQueryError as error:
        found, why = None, f"Not read: {error}."
    best = tables.find(claim.best) if claim.best else None
    return {
        "paper": name, "claim": claim.claim, "published": table.text(row, column), "conditions": claim.conditions,
        "like_for_like": found and found.value, "low": found and found.low, "high": found and found.high,
        "unit": found.unit if found else table.unit, "best_variant": best and _variant(best, found),
        "best": best and best.value, "why": why, "source": table.mark(row, column),
        "verdict": outcome(float(row[column]), claim, found, row.get("digits", table.digits)),
        "revision": found and found.row.get("revision"),
    }  # fmt: skip


def _variant(best: Found, like: Found | None) -> str:
    """Return a variant with the context and batch at which it is best, where they are not those of like for like."""
    other = like.row if like else {}
    places = [
        f"{name} {int(best.row[name]):,}"
        for name in ("context", "batch")
        if not pd.isna(best.row.get(name)) and best.row[name] != other.get(name)
    ]
    return ", ".join([best.variant, *places])
