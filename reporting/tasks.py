"""Make a task's page: what is asked, each variant's score by budget, accuracy along the answer, answers side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from longdecode.engine.errors import ConfigError
from longdecode.evals.tasks.registry import describe
from longdecode.reporting import charts, samples, wording
from longdecode.reporting.runs import REFERENCE, Run, in_order
from longdecode.reporting.site import Figure, Page, Site

_GROUPS, _LINES = 9, 6


def write_tasks(site: Site) -> None:
    """Write a page for each suite that current runs scored."""
    for suite in site.suites:
        page = Page(f"task-{wording.slug(suite)}")
        runs = [run for run in site.current if suite in run.suites]
        grids = [grid for run in runs for grid in _grids(run, suite)]
        figures = [figure for run in runs if (figure := _along(site, page, run, suite))]
        texts = [(run, pair) for run in runs for pair in samples.pairs(run, suite)][: samples.PER_SUITE + 1]
        site.write(page, "task.html", suite=suite, words=_words(suite), grids=grids, figures=figures, texts=texts, facts=_facts(runs, suite))


def _words(suite: str) -> dict[str, Any]:
    try:
        return dict(describe(suite))
    except ConfigError:
        return {}


def _facts(runs: list[Run], suite: str) -> dict[str, str]:
    """Return metric, data and protocol of the suite's rows."""
    rows = pd.concat([run.summary[run.summary.suite == suite] for run in runs])
    return {"metric": ", ".join(m.replace("_", " ") for m in in_order(rows.metric.dropna())), "data": " and ".join(in_order(rows.data_source.dropna()))}


def _grids(run: Run, suite: str) -> Iterator[dict[str, Any]]:
    """Yield one table a model, task and context: rows are variants, columns are budgets, a cell has score and verdict."""
    rows = run.summary[(run.summary.suite == suite) & (run.summary.status == "ok")]
    verdicts = {(r.model, r.task, r.context, r.variant, r.budget): r for r in run.losses[run.losses.suite == suite].itertuples()}
    for (model, task, context), part in rows.groupby(["model", "task", "context"], sort=False):
        budgets = [b for b in sorted(part.budget.unique(), key=_order) if b != REFERENCE]
        full = part[part.variant == REFERENCE]
        lines = []
        for variant in sorted(part.variant.unique(), key=lambda v: (v != REFERENCE, run.title(v))):
            mine = {r.budget: r for r in part[part.variant == variant].itertuples()}
            if variant != REFERENCE and mine:
                cells = [_cell(mine.get(b), verdicts.get((model, task, context, variant, b))) for b in budgets]
                lines.append({"title": run.title(variant), "family": run.family(variant), "method": run.methods[variant], "cells": cells})
        if full.empty and not lines:
            continue
        silent = {r.status for r in verdicts.values() if (r.model, r.task, r.context) == (model, task, context) and r.status in wording.REASONS}
        yield {
            "title": f"{wording.task_title(suite, task)}, {wording.tokens(context)} tokens", "model": wording.model_title(model), "run": run.name,
            "full": _cell(next(full.itertuples(), None), None), "n": int(part.n.max()), "budgets": [wording.budget(b) for b in budgets],
            "lines": lines, "why": "; ".join(wording.REASONS[s] for s in sorted(silent)), "main": task in run.headline(suite),
        }  # fmt: skip


def _order(budget: str) -> tuple[bool, float]:
    """Return the place of a budget among others: shares and tokens by size, those by bytes last."""
    return budget.startswith("bytes"), 0.0 if budget == REFERENCE else float(budget.removeprefix("bytes="))


def _cell(row: Any, loss: Any) -> dict[str, str]:
    """Return a score with its interval and verdict; empty where it was not run."""
    if row is None or wording.missing(row.value):
        return {"value": "", "interval": "", "verdict": ""}
    scale, unit = (100, "percent") if row.unit == "fraction" else (1, row.unit)
    return {"value": wording.number(scale * row.value, unit), "interval": wording.interval(scale * row.low, scale * row.high, unit), "verdict": loss.verdict if loss else ""}


def _along(site: Site, page: Page, run: Run, suite: str) -> Figure | None:
    """Return accuracy along the longest answer of a suite: Full and the variants at one budget."""
    rows = run.along[run.along.suite == suite] if len(run.along) else run.along
    if rows.empty:
        return None
    rows = rows[rows.task == rows.loc[rows["index"].idxmax()].task]
    rows = rows[rows.model == rows.model.iloc[0]]
    rows = rows[rows.context == rows.context.min()]
    sizes = rows[rows.variant != REFERENCE].groupby("budget").variant.nunique()
    if sizes.empty:
        return None
    budget = max(sizes.index, key=lambda b: (sizes[b], not b.startswith("bytes"), _order(b)))
    plain = [v for v in in_order(rows.variant) if run.methods.get(v, v) == v]
    losses = run.losses
    mine = losses[(losses.suite == suite) & (losses.task == rows.task.iloc[0]) & (losses.context == rows.context.iloc[0]) & (losses.budget == budget) & losses.variant.isin(plain)] if len(losses) else losses
    ordered = list(mine.sort_values("loss").variant) if len(mine) else [v for v in plain if v != REFERENCE]
    shown = [REFERENCE, *(ordered[:3] + ordered[-2:] if len(ordered) > _LINES - 1 else ordered)]
    rows = rows[rows.variant.isin(shown) & rows.budget.isin([budget, REFERENCE])]
    scale = 100 if rows.unit.iloc[0] == "fraction" else 1
    frame = pd.DataFrame({"name": rows.variant.map(run.title), "x": rows["index"], "y": scale * rows.value, "family": rows.variant.map(run.family),
                          "dash": rows.variant.map(lambda v: "dashed" if v in ("quest", "snapkv") else "solid")})  # fmt: skip
    within = mine[mine.verdict == "within"].variant if len(mine) else []
    words = wording.budget(budget) + ("" if budget.startswith("bytes") else " tokens")
    place = f"{wording.model_title(rows.model.iloc[0])}, {wording.tokens(rows.context.iloc[0])} tokens"
    title = f"With {words}, {len(within)} of {len(mine)} methods stay within the margin over the whole answer" if len(mine) else f"Scores along the answer with {words}"
    spec = charts.along_lines(frame, _GROUPS, "Place in the answer", "Right, %" if scale == 100 else rows.unit.iloc[0])
    return site.figure(page, f"along-{run.name}", title, spec, frame, f"{place}, run {run.name}. Each point joins neighbouring places.")
