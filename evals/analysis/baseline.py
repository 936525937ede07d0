"""Tell the tasks that full attention itself cannot do, so that they take part in no verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from longdecode.evals.analysis.cells import Sample, is_bounded, paired_units, tokens_read
from longdecode.evals.analysis.intervals import paired_interval
from longdecode.evals.records import Record

Status = Literal["ok", "baseline_fails", "short", "low_ceiling"]

NEARLY_ALL = 0.9
"""A window that reads this share of what Full reads holds prompt and answer: the task tests no selection."""
LOW_CEILING = 0.5
"""Below this share of right answers, Full leaves little to lose."""


def task_status(
    full: Mapping[Sample, Record],
    window: Mapping[Sample, Record] | None,
    confidence: float,
    resamples: int,
    rng: np.random.Generator,
) -> Status:
    """Return whether a task says something of methods that read less than full attention.

    ``baseline_fails``: Full is not shown to be better than a window of the smallest budget (the interval of their
    paired difference reaches 0). ``short``: that window reads nearly all; never called a failure. ``low_ceiling``:
    Full is better, but below half right. Without a window the first two cannot be told.

    Args:
        full: samples of full attention.
        window: samples of the sliding window that read least on the same task, if one ran.
        confidence: coverage of the interval.
        resamples: bootstrap draws.
        rng: draws them.
    """
    if window is not None:
        if tokens_read(window) >= NEARLY_ALL * tokens_read(full):
            return "short"
        ours, theirs = paired_units(full, window)
        better = 1 if next(iter(full.values())).higher_is_better else -1
        found = paired_interval([better * (ours - theirs)], is_bounded(full), confidence, resamples, rng)
        if not found.low > 0:
            return "baseline_fails"
    mean = float(np.mean([r.score for r in full.values()]))
    return "low_ceiling" if is_bounded(full) and mean < LOW_CEILING else "ok"
