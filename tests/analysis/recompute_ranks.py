"""Recompute ranks.csv and orders.csv from the records, as ``recompute.py`` does, which calls this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from recompute import Pairs, differences, equal, holm, near, unit_draws
from scipy import stats


def rank_ranges(draws: np.ndarray, alpha: float) -> np.ndarray:
    """Return the least and the largest rank of each column of draws ``[draws, rows]``, apart where Holm's p < alpha."""
    i, j = np.triu_indices(draws.shape[1], 1)
    gap, spread = draws.mean(axis=0)[i] - draws.mean(axis=0)[j], np.atleast_2d(np.cov(draws.T))
    error = np.sqrt(np.clip(spread[i, i] + spread[j, j] - 2 * spread[i, j], 1e-18, None))
    apart = (holm(pd.Series(2 * stats.norm.sf(np.abs(gap) / error))) < alpha).to_numpy() & (np.abs(gap) > 1e-9)
    better, worse = np.where(gap < 0, i, j)[apart], np.where(gap < 0, j, i)[apart]
    rows = range(draws.shape[1])
    return np.array([[1 + (worse == row).sum(), len(rows) - (better == row).sum()] for row in rows])


def differing_ranks(folder: Path, scored: dict[Any, pd.DataFrame], status: dict[Any, str]) -> Iterator[str]:
    """Yield the rows of ranks.csv and orders.csv that the records do not give; a rank may hang on a p near 5 %."""
    ranks, orders, compared = (
        pd.read_csv(folder / f"{name}.csv", dtype={"budget": str, "b_budget": str}, low_memory=False)
        for name in ("ranks", "orders", "comparisons")
    )
    pairs, lost = Pairs(scored, status, compared), {}
    for place, rows in ranks.groupby(["model", "suite", "context"]):
        able = [p for p in pairs.fulls if (p[0], p[1], p[3]) == place and pairs.task_status[p] != "baseline_fails"]
        keys = [[(*p, row.variant, row.budget) for p in able] for row in rows.itertuples()]
        losses, draws, full = [], [], [pairs.scored[pairs.fulls[p]] for p in able]
        for at, cell in enumerate(full):
            sign = (-1 if cell.higher_is_better.all() else 1) * (100 if (cell.unit == "fraction").all() else 1)
            units = sign * np.array([np.subtract(*pairs.units(key[at], pairs.fulls[able[at]])) for key in keys])
            losses.append(units.mean(axis=1))
            draws.append(unit_draws(units.shape[1], able[at]) @ units.T)
        by = {"rank": np.mean(draws, axis=0), "worst": np.max(draws, axis=0)}
        ranges = {name: [rank_ranges(drawn, alpha) for alpha in (0.03, 0.08)] for name, drawn in by.items()}
        for at, (row, key) in enumerate(zip(rows.itertuples(), keys, strict=True)):
            lost[row.suite, row.context, row.budget, row.variant] = np.mean(losses, axis=0)[at], by["rank"][:, at]
            share = bytes_read([pairs.scored[k] for k in key]) / bytes_read(full)
            tasks = dict(zip([p[2] for p in able], np.array(losses)[:, at], strict=True))
            ours = {"tasks": len(able), "bytes_share": share, "worst_task": max(tasks, key=tasks.get)}
            if equal([tasks[row.worst_task]], [max(tasks.values())]):
                ours["worst_task"] = row.worst_task  # one of several
            for name, (wide, narrow) in ranges.items():
                for end, word in enumerate(("low", "high")):
                    found = sorted((wide[at][end], narrow[at][end]))
                    ours[f"{name}_{word}"] = np.clip(getattr(row, f"{name}_{word}"), *found)
            if wrong := differences(pd.Series(row._asdict()), ours):
                yield f"ranks.csv {row.model}, {row.suite}, {row.context}, {row.variant}, {row.budget}: {wrong}"
    for row in orders.itertuples():
        (a, a_draws), (b, b_draws) = (lost[row.suite, row.context, row.budget, name] for name in (row.a, row.b))
        share = (a_draws < b_draws).mean()
        word = "same" if row.share >= 0.975 else "reversed" if row.share <= 0.025 else "cannot tell"
        if not (equal([row.a_loss, row.b_loss, row.share], [a, b, near(share, row.share)]) and row.outcome == word):
            yield f"orders.csv {row}: ours {a}, {b}, {share}"


def bytes_read(cells: Sequence[pd.DataFrame]) -> float:
    """Return the mean bytes of the cache that a step of these cells reads, the selector's included."""
    measures = [dict(each) for cell in cells for each in cell.measures]
    return float(np.mean([m.get("kv_bytes_per_step", 0) + m.get("metadata_bytes_per_step", 0) for m in measures]))
