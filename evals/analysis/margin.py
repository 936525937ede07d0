"""Decide whether a paired difference lies within a margin: within, worse, or cannot tell."""

from __future__ import annotations

import math
from typing import Literal

Verdict = Literal["within", "worse", "cannot tell"]

MARGIN_POINTS = 2.0
MARGIN_NATS = 0.02
FEWEST_UNITS = 10
"""Below so many prompts, books or problems a resample is too alike the data for its bounds to decide anything."""


def margin_of(unit: str) -> float | None:
    """Return the margin of a unit of differences: 2 points, 0.02 nats; ``None`` for a unit that has none."""
    if unit == "points":
        return MARGIN_POINTS
    return MARGIN_NATS if unit.startswith("nats") else None


def judge(
    low: float, high: float, p_holm: float, margin: float | None, higher_is_better: bool, units: int, alpha: float
) -> Verdict:
    """Return the verdict on a difference, a minus b, with its interval.

    ``within``: the whole interval of the loss lies below the margin; a gain is no loss. ``worse``: it does not, the
    interval of the loss excludes 0, and the p-value corrected over the table's variants is below ``alpha``. Otherwise
    ``cannot tell``, as where there are too few units. A small sure loss, such as 0.4 points [0.2, 0.7], is ``within``.
    """
    least, most = (-high, -low) if higher_is_better else (low, high)
    if margin is None or units < FEWEST_UNITS or not (math.isfinite(least) and math.isfinite(most)):
        return "cannot tell"
    if most <= margin:
        return "within"
    return "worse" if least > 0 and p_holm < alpha else "cannot tell"
