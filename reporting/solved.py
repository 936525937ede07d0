"""Tell whether Full does a task, so that a method can be judged on it."""

from __future__ import annotations

from longdecode.reporting.wording import is_fraction

SOLVED = 0.5
"""Full must answer this share, or a method that answers as little would be called as good."""
_BY_OVERLAP = ("rouge", "qa_f1", "code_similarity")


def full_does(metric: str, unit: str, value: float) -> bool:
    """Return whether Full does a task; scores by overlap with a reference are low for everybody."""
    return not is_fraction(unit) or metric.startswith(_BY_OVERLAP) or value >= SOLVED
