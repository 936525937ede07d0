"""Say when a method can be judged: Full must do the task, and differences are held against one margin."""

from __future__ import annotations

from longdecode.reporting.wording import is_fraction

MARGIN = 0.02
"""Within 0.02 of Full (2 points of a percentage, 0.02 of a loss) counts as equal: about what papers call lossless."""
SOLVED = 0.5
"""Full must answer this share, or a method that answers as little would be called as good."""
_BY_OVERLAP = ("rouge", "qa_f1", "code_similarity")


def full_does(metric: str, unit: str, value: float) -> bool:
    """Return whether Full does a task; scores by overlap with a reference are low for everybody."""
    return not is_fraction(unit) or metric.startswith(_BY_OVERLAP) or value >= SOLVED
