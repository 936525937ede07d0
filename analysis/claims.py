"""Answer the claims of papers from a run's tables: print beside ours, and one word for what came out (claims.csv)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd

from longdecode.reporting.papers.declaration import AmbiguousQueryError, Claim, Declaration, Found, Tables

COLUMNS = (
    "paper", "claim", "published", "like_for_like", "low", "high", "unit", "conditions", "bound", "best_variant",
    "best", "verdict", "why", "source", "run", "revision",
)  # fmt: skip
Outcome = Literal["reproduced", "partly", "not reproduced", "not comparable", "cannot tell", "not run"]
UNPROVEN = 0.05
"""Corrected p-value above which a sign is not proven."""
MOST_OF_IT = 0.5
"""Share of the printed effect from which on a claim holds partly."""


def claims_table(papers: Mapping[str, Declaration], tables: Tables, profile: str) -> pd.DataFrame:
    """Return a row for every claim of every paper; what was not run, or fits several rows, says so.

    A claim has one answer among the committed runs: that of the run it names. A run that no claim names answers all.

    Raises:
        QueryError: a claim's query names an unknown column.
    """
    named = {claim.run for paper in papers.values() for claim in paper.claims}
    rows = [
        _claim_row(name, paper, claim, tables, claim.run == profile or profile not in named)
        for name, paper in papers.items()
        for claim in paper.claims
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def outcome(printed: float | None, claim: Claim, found: Found | None, digits: int) -> Outcome:
    """Return what came out of a claim under the paper's own conditions.

    At least so much: ``reproduced`` where the interval reaches the printed figure (as rounded there), ``partly`` where
    it reaches half of the printed effect, ``not reproduced`` where it stays below; of words without a number the sign
    alone decides, where its corrected p-value proves it. At most so much: ``reproduced`` where the whole interval lies
    below, ``not reproduced`` where none of it does. ``cannot tell``: there is no interval, it holds no effect as well
    as half of the printed one, or forks of one training each stand behind it. The best variant has no say.
    """
    if found is None:
        return "not run"
    if not claim.comparable:
        return "not comparable"
    if not (math.isfinite(found.low) and math.isfinite(found.high)) or (claim.trainings or 2) < 2:
        return "cannot tell"
    rounding, by_sign = 0.0 if printed is None else 0.5 * 10.0**-digits, printed is None
    printed = claim.no_effect if printed is None else printed
    if claim.direction == "at_most":
        if found.high <= printed + rounding:
            return "reproduced"
        return "not reproduced" if found.low > printed + rounding else "cannot tell"
    sign = 1.0 if printed >= claim.no_effect else -1.0
    least, most = sorted((sign * found.low, sign * found.high))
    goal, nothing = sign * printed, sign * claim.no_effect
    if most < nothing + MOST_OF_IT * (goal - nothing):
        return "not reproduced"
    if least <= nothing or (by_sign and found.row.get("p_holm", 0.0) > UNPROVEN):
        return "cannot tell"
    return "reproduced" if most >= goal - rounding else "partly"


def _claim_row(name: str, paper: Declaration, claim: Claim, tables: Tables, answers: bool) -> dict[str, Any]:
    printed = paper.printed(claim)
    found, best, bound, why = None, None, None, ""
    if answers:
        try:
            found, best, bound = map(tables.find, (claim.like, claim.best, claim.bound))
            if found is None and claim.instead and (found := tables.find(claim.instead.query)):
                claim = claim.model_copy(update=claim.instead.model_dump(include={"comparable", "conditions", "why"}))
        except AmbiguousQueryError as error:
            why = f"Not read: {error}."
    elif claim.run:
        why = f"The run {claim.run} answers it."
    if found:
        why = claim.why.format(bound=bound.value if bound else math.nan, **found.row)
    return {
        "paper": name, "claim": claim.claim, "published": printed.text, "conditions": claim.conditions,
        "like_for_like": found and found.value, "low": found and found.low, "high": found and found.high,
        "unit": found.unit if found else printed.unit, "bound": bound and bound.value,
        "best_variant": best and _variant(best, found), "best": best and best.value, "why": why,
        "source": printed.mark, "run": claim.run,
        "verdict": outcome(printed.number, claim, found, printed.digits),
        "revision": found and found.row.get("revision"),
    }  # fmt: skip


def _variant(best: Found, like: Found | None) -> str:
    """Return a variant with the task, context and batch at which it is best, where those of like for like differ."""
    other = like.row if like else {}
    places = [
        f"{name} {value if isinstance(value, str) else format(int(value), ',')}"
        for name in ("task", "context", "batch")
        if not pd.isna(value := best.row.get(name)) and value != other.get(name)
    ]
    return ", ".join([best.variant, *places])
