"""Rows of results/ that two variants share, as the command prints them; nothing is computed but the choice of rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from longdecode.engine.errors import ConfigError
from longdecode.evals.config_values import unknown_name

Rows = list[tuple[str, ...]]


def compared(results: Path, a: str, b: str, context: int | None, profile: str | None) -> tuple[Rows, Rows]:
    """Return rows of quality (comparisons.csv) and of whole steps (speed.csv) in which both variants stand.

    Raises:
        ConfigError: no run has tables, or none has a variant of that name.
    """
    folders = [path for path in sorted(results.iterdir()) if path.is_dir() and profile in (None, path.name)]
    pairs, steps = _tables(folders, "comparisons.csv"), _tables(folders, "speed.csv")
    known = {*pairs.get("a", ()), *pairs.get("b", ()), *steps.get("variant", ())}
    for name in (a, b):
        if name not in known:
            raise ConfigError(unknown_name("variant", name, map(str, known)))
    if context is not None:
        pairs, steps = (table[table["context"] == context] if len(table) else table for table in (pairs, steps))
    return _quality(pairs, a, b), _speed(steps, a, b)


def _tables(folders: list[Path], name: str) -> pd.DataFrame:
    paths = [folder / name for folder in folders if (folder / name).is_file()]
    found = [pd.read_csv(path, low_memory=False).assign(run=path.parent.name) for path in paths]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def _quality(pairs: pd.DataFrame, a: str, b: str) -> Rows:
    """Return the pairs of the two, the difference as a minus b whichever way the table has it."""
    rows: Rows = []
    for _, row in pairs.iterrows():
        if {row.a, row.b} != {a, b}:
            continue
        turned = row.a != a
        gap = (-row.difference, -row.high, -row.low) if turned else (row.difference, row.low, row.high)
        values = (row.b_value, row.a_value) if turned else (row.a_value, row.b_value)
        shown = f"{gap[0]:+.3f} ({gap[1]:+.3f} to {gap[2]:+.3f})"
        verdict = f"{row.verdict} ({row.a} beside {row.b})" if isinstance(row.verdict, str) else "-"
        budget = str(row.budget) if row.budget == row.b_budget else f"{row.budget} / {row.b_budget}"
        rows.append(
            (row.run, row.task, f"{row.context:,}", budget, str(row.n), *(f"{v:.3f}" for v in values), shown, verdict)
        )
    return rows


def _speed(steps: pd.DataFrame, a: str, b: str) -> Rows:
    """Return by place how many times as fast as Full the two take a step."""
    if not len(steps):
        return []
    steps = steps[(steps["stage"] == "step") & (steps["status"] == "ok") & steps["variant"].isin((a, b))]
    place = ["run", "model", "context", "batch", "budget"]
    wide = steps.pivot_table("ratio", place, "variant", aggfunc="first").reset_index()
    if a not in wide or b not in wide:
        return []
    both = wide.dropna(subset=[a, b])
    return [
        (str(r.run), str(r.model), f"{r.context:,}", str(r.batch), str(r.budget), f"{r[a]:.2f}", f"{r[b]:.2f}")
        for _, r in both.iterrows()
    ]
