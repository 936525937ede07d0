"""Tell the tasks that full attention itself cannot do, so that they take part in no mean and no verdict."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from longdecode.evals.analysis.cells import Cells, Samples, is_bounded, method_of, paired_units, same_prompts
from longdecode.evals.run_config import REFERENCE_METHOD
from longdecode.evals.stats import Spread, generator, paired_interval

TaskStatus = Literal["ok", "baseline_fails", "short", "low_ceiling"]

WINDOW_METHOD = "streaming"
NEARLY_ALL = 0.9
"""A window that reads this share of what Full reads holds prompt and answer: the task tests no selection."""
LOW_CEILING = 0.5
"""Below this share of right answers, Full leaves little to lose."""


def task_statuses(cells: Cells, spread: Spread) -> dict[tuple[Any, ...], TaskStatus]:
    """Return the status of each task by model, suite, task, context and batch.

    It comes from full attention and the window that read least. A fork without a window of its own is held against that
    of another fork on the same prompts.
    """
    windows = [cell for cell, samples in cells.items() if method_of(samples) == WINDOW_METHOD]
    found: dict[tuple[Any, ...], TaskStatus] = {}
    for cell, full in cells.items():
        if method_of(full) == REFERENCE_METHOD:
            own = [cells[w] for w in windows if w[:5] == cell[:5]]
            others = [cells[w] for w in windows if w[1:5] == cell[1:5] and same_prompts(cells[w], full)]
            window = min(own or others, key=_tokens_read, default=None)
            found[cell[:5]] = task_status(full, window, spread, generator(spread.seed, "status", *cell))
    return found


def task_status(full: Samples, window: Samples | None, spread: Spread, rng: np.random.Generator) -> TaskStatus:
    """Return whether a task says something of methods that read less than full attention.

    ``baseline_fails``: Full is not shown to be better than a window of the smallest budget (the interval of their
    paired difference reaches 0). ``short``: that window reads nearly all; never called a failure. ``low_ceiling``:
    Full is better, but below half right. Without a window the first two cannot be told.

    Args:
        full: samples of full attention.
        window: samples of the sliding window that read least on the same task, if one ran.
        spread: of the interval.
        rng: draws it.
    """
    bounded = is_bounded(full.values())
    if window is not None:
        if _tokens_read(window) >= NEARLY_ALL * _tokens_read(full):
            return "short"
        ours, theirs = paired_units(full, window)
        better = 1 if next(iter(full.values())).higher_is_better else -1
        if not paired_interval([better * (ours - theirs)], bounded, spread, rng).low > 0:
            return "baseline_fails"
    mean = float(np.mean([r.score for r in full.values()]))
    return "low_ceiling" if bounded and mean < LOW_CEILING else "ok"


def _tokens_read(samples: Samples) -> float:
    """Return the mean tokens that a step reads per KV head; NaN where no sample says so."""
    read = [r.measures["kv_tokens_read"] for r in samples.values() if "kv_tokens_read" in r.measures]
    return float(np.mean(read)) if read else float("nan")
