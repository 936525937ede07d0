"""Several miniatures of different seeds are one instrument: its scores with their spread over the seeds."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from longdecode.reporting.results import Results
from longdecode.reporting.wording import budget, budget_order, difference_unit, gap, short_tokens

HEADS = ("Suite or task", "Context", "Method", "Budget", "Difference to Full, mean", "Least", "Most", "Unit", "Models")
NUMERIC = (4, 5, 6, 8)


def spread(results: Results, models: Sequence[str], labels: Sequence[str]) -> list[tuple[str, ...]]:
    """Return each method's difference to Full over the models: mean, least and most, at the budget nearest to 10 %.

    Args:
        results: the run.
        models: the miniatures; fewer than two have no spread.
        labels: methods shown.
    """
    if len(models) < 2:
        return []
    table = results.summary
    table = table[table["model"].isin(models) & (table["status"] == "ok") & table["diff_to_full"].notna()]
    topics = {(topic.suite, topic.task): topic for model in models for topic in results.topics(model)}
    table = table[[pair in topics for pair in zip(table["suite"], table["task"], strict=True)]]
    rows: list[tuple[str, ...]] = []
    for label in labels:
        mine = table[table["method"] == label]
        if mine.empty:
            continue
        text = min(set(mine["budget"]), key=lambda b: (abs(_size(b) - 0.1), budget_order(b)))
        for (suite, task, context), found in mine[mine["budget"] == text].groupby(
            ["suite", "task", "context"], sort=False
        ):
            if found["model"].nunique() > 1:
                rows.append(_row(topics[str(suite), str(task)].name, int(context), label, text, found))
    return sorted(rows, key=lambda row: (row[0], row[1]))


def _row(name: str, context: int, label: str, text: str, found: pd.DataFrame) -> tuple[str, ...]:
    gaps, unit = found["diff_to_full"], str(found["unit"].iloc[0])
    sizes = (gap(value, unit) for value in (gaps.mean(), gaps.min(), gaps.max()))
    return name, short_tokens(context), label, budget(text), *sizes, difference_unit(unit), str(len(gaps))


def _size(text: str) -> float:
    kind, value = budget_order(text)
    return value if kind == 1 else 9.0
