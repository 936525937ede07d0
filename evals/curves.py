"""Scores along a generation and losses by position: the parts of the records, averaged index by index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from longdecode.evals.problems import problem_of
from longdecode.evals.records import Record
from longdecode.evals.stats import wilson_interval

COLUMNS = (
    "suite", "task", "model", "method", "budget", "budget_tokens", "context", "metric", "unit", "index", "n",
    "value", "low", "high",
)  # fmt: skip


def along_generation(records: Iterable[Record], confidence: float) -> pd.DataFrame:
    """Mean score by question or step (``index`` from 1) for every cell whose samples have more than one part."""
    return _curves([r for r in records if r.higher_is_better and len(r.parts or ()) > 1], confidence)


def loss_by_position(records: Iterable[Record], confidence: float) -> pd.DataFrame:
    """Mean loss by segment of the text (``index`` from 1) for every cell scored by a loss."""
    return _curves([r for r in records if not r.higher_is_better and r.parts], confidence)


def _curves(records: Sequence[Record], confidence: float) -> pd.DataFrame:
    cells: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for r in records:
        if r.status == "ok":
            key = (r.suite, r.task, r.model, r.variant, r.budget, r.budget_tokens, r.context, r.metric, r.unit)
            cells[key].append(r)
    rows = []
    for key in sorted(cells, key=lambda k: tuple(map(str, k))):
        longest = max(len(r.parts or ()) for r in cells[key])
        for i in range(longest):
            reach = [r for r in cells[key] if r.parts and len(r.parts) > i]
            values = [r.parts[i] for r in reach if r.parts]
            by_problem: dict[Any, list[float]] = defaultdict(list)
            for record, value in zip(reach, values, strict=True):
                by_problem[problem_of(record)].append(value)
            means = np.array([np.mean(found) for found in by_problem.values()])
            rows.append((*key, i + 1, len(values), float(np.mean(values)), *_interval(means, confidence)))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype({"budget_tokens": "Int64"})


def _interval(values: np.ndarray, confidence: float) -> tuple[float, float]:
    """Wilson's for right-or-wrong items, Student's for anything else; a value each problem, as its samples depend."""
    n, mean = len(values), float(values.mean())
    if np.isin(values, (0.0, 1.0)).all():
        return wilson_interval(mean, n, confidence)
    if n < 2:
        return float("nan"), float("nan")
    half = float(student.ppf(0.5 + confidence / 2, n - 1) * values.std(ddof=1) / np.sqrt(n))
    return mean - half, mean + half
