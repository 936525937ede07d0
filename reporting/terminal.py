"""Tables that the command prints, from those of results/; nothing is computed but the choice of rows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from longdecode.analysis.declaration import read_table
from longdecode.engine.errors import ConfigError, refuse_unknown
from longdecode.reporting.runs import REFERENCE, able

Rows = list[tuple[str, ...]]
ENDED = ("model", "task", "context", "method", "budget", "n", "score", "Full", "difference", "verdict", "times Full")
"""Columns of the table that ends a run; the first is left out where the run has one model."""
MOST_ROWS = 30
"""Longest table that ends a run; a longer one hides the answer, and the page has it with filters."""
POOLED = "all"
"""Task of a row that pools a suite's tasks."""


def show(console: Console, columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table, nothing where it has no row."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    if table.row_count:
        console.print(table)


def show_ended(console: Console, results: Path) -> None:
    """Print the table that ends a run, or where its rows stand if they are many."""
    rows = ended(results)
    if len(rows) <= MOST_ROWS:
        one = len({row[0] for row in rows}) == 1
        show(console, ENDED[one:], (row[one:] for row in rows))
    else:
        console.print(f"scores: {len(rows)} rows in {results / 'comparisons.csv'} and on the page", markup=False)


def ended(results: Path) -> Rows:
    """Return a row for each variant and budget beside full attention, best first: columns ``ENDED``.

    A suite whose tasks are pooled has that row alone. Speed is of a whole step, at the largest batch that was timed.
    """
    pairs, steps = _tables([results], "comparisons.csv"), _tables([results], "speed.csv")
    if not len(pairs):
        return []
    pairs = pairs[(pairs["b"] == "full") & pairs["difference"].notna()]
    pooled = pairs["suite"].isin(pairs.loc[pairs["task"] == POOLED, "suite"])
    pairs = pairs[~pooled | (pairs["task"] == POOLED)]
    pairs = pairs.assign(gain=pairs["difference"].where(pairs["better"] == "higher", -pairs["difference"]))
    pairs = pairs.sort_values(["suite", "task", "context", "gain"], ascending=[True, True, True, False])
    times: dict[tuple[Any, ...], str] = {}
    timed = steps[(steps["stage"] == "step") & (steps["status"] == "ok")] if len(steps) else steps
    for row in timed.sort_values("batch").itertuples() if len(timed) else ():
        times[row.model, row.variant, row.context, str(row.budget)] = f"{row.ratio:.2f} at batch {row.batch}"
    return [
        (
            str(row.model), str(row.suite if row.task == POOLED else row.task), f"{row.context:,}",
            str(row.a), str(row.budget), str(row.n),
            f"{row.a_value:.4g}", f"{row.b_value:.4g}",
            f"{row.difference:+.3g} ({row.low:+.3g} to {row.high:+.3g}) {row.unit}",
            str(row.verdict) if isinstance(row.verdict, str) else str(row.status),
            times.get((row.model, row.a, row.context, str(row.budget)), "-"),
        )
        for row in pairs.itertuples()
    ]  # fmt: skip


def answer(results: Path) -> str:
    """Say which variants stay within the margin of full attention, from comparisons.csv alone."""
    table = _tables([results], "comparisons.csv")
    beside = table[(table["b"] == "full") & table["verdict"].notna()] if len(table) else table
    if beside.empty and set(table.get("status", ())) == {"baseline_fails"}:
        return "full attention is not shown to beat a small window on any task here: no difference tells of a method"
    if beside.empty:
        return f"no comparison with full attention yet; {results} has what was made"
    if not beside["b_value"].any():
        return "full attention itself scores 0: look at the checkpoint and its chat template before any method"
    verdicts = {f"{a} at {budget}": set(rows["verdict"]) for (a, budget), rows in beside.groupby(["a", "budget"])}
    whole = [name for name, found in verdicts.items() if found == {"within"}]
    worse = sum("worse" in found for found in verdicts.values())
    said = f"within the margin of Full on every suite: {', '.join(whole)}" if whole else "none is shown to equal Full"
    return f"{said}; {worse} of {len(verdicts)} variants and budgets are worse on some task"


def statuses(results: Path) -> Iterator[str]:
    """Yield how many cells of summary.csv have each status but ``ok``."""
    found = _tables([results], "summary.csv").get("status", pd.Series(dtype=str))
    for status, count in found[found != "ok"].value_counts().items():
        yield f"{count} cells {status}"


def compared(results: Path, a: str, b: str, context: int | None, profile: str | None) -> tuple[Rows, Rows]:
    """Return rows of quality (comparisons.csv) and of whole steps (speed.csv) in which both variants stand.

    Small models stand aside where another has both, but for a profile that is asked for.

    Raises:
        ConfigError: no run has tables, none has a variant of that name, or both are the same one.
    """
    if a == b:
        raise ConfigError(f"{a} is compared with itself; two variants are needed")
    folders = sorted(path for path in results.glob("*") if path.is_dir())
    if profile is not None:
        refuse_unknown("--profile", "run of results/", [profile], [path.name for path in folders])
        folders = [results / profile]
    every = tuple(_tables(folders, name) for name in ("comparisons.csv", "speed.csv"))
    some = tuple(able(table.dropna(subset="model") if "model" in table else table) for table in every)
    pairs, steps = some if profile is None and {a, b} <= _names(*some) else every
    if pairs.empty and steps.empty:
        raise ConfigError(f"{profile or results}: no comparisons.csv or speed.csv with a row; an ended run has both")
    known = _names(pairs, steps)
    for name in (a, b):
        if name not in known:
            near = difflib.get_close_matches(name, map(str, known), n=6, cutoff=0.0)
            told = f"no run has a variant {name!r}; nearest valid name: {near[0]!r} (of {', '.join(near)}, ...)"
            raise ConfigError(f"{told}; `longdecode run --methods {name}` measures a method")
    if context is not None:
        pairs, steps = (table[table["context"] == context] if len(table) else table for table in (pairs, steps))
    for name in (a, b):
        pairs = _with_kin(pairs, name)
    if len(pairs):  # a pooled row speaks for its tasks
        place = pd.MultiIndex.from_frame(pairs[["run", "suite", "context"]])
        pairs = pairs[(pairs["task"] == POOLED) | ~place.isin(place[pairs["task"] == POOLED])]
    return _quality(pairs, a, b), _speed(steps, a, b) if len(steps) else []


def _names(pairs: pd.DataFrame, steps: pd.DataFrame) -> set[Any]:
    return {*pairs.get("a", ()), *pairs.get("b", ()), *steps.get("variant", ())}


def _with_kin(pairs: pd.DataFrame, name: str) -> pd.DataFrame:
    """Let a run's variant by summed scores stand for a name that the run has no pair of; its rows say so."""
    kin, sides = f"{name}_sum", ["a", "b"]
    for run, rows in pairs.groupby("run") if len(pairs) else ():
        if not rows[sides].isin([name]).any(axis=None) and rows[sides].isin([kin]).any(axis=None):
            pairs.loc[rows.index, sides] = rows[sides].replace(kin, name)
            pairs.loc[rows.index, "run"] = f"{run} ({name}: {kin})"
    return pairs


def _tables(folders: list[Path], name: str) -> pd.DataFrame:
    filled = [table.assign(run=folder.name) for folder in folders if len(table := read_table(folder / name))]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()


def _quality(pairs: pd.DataFrame, a: str, b: str) -> Rows:
    """Return the pairs of the two, the difference as a minus b whichever way the table has it.

    At a place without one, each beside Full.
    """
    rows: Rows = []
    for _, row in pairs[pairs["a"].isin((a, b)) & pairs["b"].isin((a, b))].iterrows() if len(pairs) else ():
        turned = row.a != a
        gap = (-row.difference, -row.high, -row.low) if turned else (row.difference, row.low, row.high)
        values = (row.b_value, row.a_value) if turned else (row.a_value, row.b_value)
        models = dict.fromkeys((row.b_model, row.model) if turned else (row.model, row.b_model))
        shown = f"{gap[0]:+.3g} ({gap[1]:+.3g} to {gap[2]:+.3g})"
        proven, near = row.p_holm < 0.05, max(abs(gap[1]), abs(gap[2])) <= row.margin
        better = f"{a if (gap[0] > 0) == (row.better == 'higher') else b} is better"
        ways = [(row.get("status") == "untuned", "not tuned"), (proven, better), (near, "within the margin")]
        verdict = next((words for holds, words in ways if holds), "cannot tell")
        task = row.suite if row.task == POOLED else row.task
        budget = str(row.budget) if row.budget == row.b_budget else f"{row.budget} / {row.b_budget}"
        at = (row.run, " / ".join(models), task, f"{row.context:,}", budget, str(row.n))
        rows.append((*at, *(f"{v:.3g}" for v in values), shown, verdict))
    told = {row[:5] for row in rows}
    return rows + [row for row in _beside_full(pairs, a, b) if row[:5] not in told] if len(pairs) else []


def _beside_full(pairs: pd.DataFrame, a: str, b: str) -> Rows:
    pairs = pairs[(pairs.b == REFERENCE) & (pairs.model == pairs.b_model)]
    place = ["run", "model", "suite", "task", "context", "budget", "n"]
    both = pairs[pairs.a == a].merge(pairs[pairs.a == b], on=place, suffixes=("", "_other"))
    return [
        (
            r.run, r.model, r.suite if r.task == POOLED else r.task, f"{r.context:,}", str(r.budget), str(r.n),
            f"{r.a_value:.3g}", f"{r.a_value_other:.3g}", "not paired", f"{r.verdict} / {r.verdict_other} beside full",
        )
        for _, r in both.fillna({"verdict": "-", "verdict_other": "-"}).iterrows()
    ]  # fmt: skip


def _speed(steps: pd.DataFrame, a: str, b: str) -> Rows:
    """Return by place how many times as fast as Full the two take a step."""
    steps = steps[(steps["stage"] == "step") & (steps["status"] == "ok") & steps["variant"].isin((a, b))]
    place = ["run", "model", "context", "batch", "budget"]
    wide = steps.pivot_table("ratio", place, "variant", aggfunc="first").reset_index()
    both = wide.reindex(columns=[*place, a, b]).dropna(subset=[a, b])
    return [
        (str(r.run), str(r.model), f"{r.context:,}", str(r.batch), str(r.budget), f"{r[a]:.2f}", f"{r[b]:.2f}")
        for _, r in both.iterrows()
    ]
