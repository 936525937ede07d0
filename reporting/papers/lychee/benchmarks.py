"""Published benchmarks beside whatever checkpoints were scored on them: LongBench, RULER, mathematics."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import Block, Compared, Comparison, Prose, agreement
from longdecode.reporting.papers.inputs import PaperInputs, suite_mean
from longdecode.reporting.papers.lychee.common import WORDS, hole, records_of, resamples
from longdecode.reporting.papers.published import PublishedFigure

AVERAGE = "avg"


def longbench(inputs: PaperInputs) -> list[Block]:
    """The paper's main table: every model and budget in print, tasks folded below, then other models that were run."""
    return _benchmark(inputs, "longbench", "longbench", ("method", "budget"))


def mathematics(inputs: PaperInputs) -> list[Block]:
    """The paper's table of reasoning models."""
    return _benchmark(inputs, "math", "math", ("method",))


def ruler(inputs: PaperInputs) -> list[Block]:
    """The few figures of RULER in print, and every model that was scored on it by context."""
    table, words = inputs.published.tables["ruler"], WORDS["ruler"]
    rows = [
        _row((row["method"], row["contexts"]), inputs.published.figure("ruler", AVERAGE, **_keys(row, table.keys)), "",
             words["reason"])
        for row in table.rows
    ]  # fmt: skip
    found: list[Block] = [
        Prose(words["text"].format(what=table.what)),
        Comparison("RULER, in print.", ("Method", "Context"), rows, "points"),
    ]
    models = inputs.models_with("ruler")
    found += [_measured(inputs, "ruler", model, "") for model in models]
    return found if models else [*found, hole(inputs, words["hole"], "ruler")]


def _benchmark(inputs: PaperInputs, name: str, suite: str, keys: Sequence[str]) -> list[Block]:
    table, words = inputs.published.tables[name], WORDS["longbench"]
    found: list[Block] = [Prose(WORDS[name]["text"].format(what=table.what))]
    ran = inputs.models_with(suite)
    known = {inputs.paper_model(model): model for model in ran}
    for paper_model in dict.fromkeys(row["model"] for row in table.rows):
        title, model = inputs.published.models[paper_model].title, known.get(paper_model)
        of_model = inputs.published.rows(name, model=paper_model)
        heads = [*(key.capitalize() for key in keys)]
        means = [
            _compared(inputs, name, suite, model, row, AVERAGE, keys)
            for row in of_model
            if row.get(AVERAGE) is not None or model is not None
        ]
        found.append(Comparison(f"{title}: average.", heads, means, table.unit))
        tasks = [
            _compared(inputs, name, suite, model, row, column, keys, shown=[column])
            for row in of_model
            for column in table.columns
            if column != AVERAGE and row.get(column) is not None
        ]
        found.append(Comparison(f"{title}: single tasks.", [*heads, "Task"], tasks, table.unit, fold="Task by task"))
    if not set(known) - {None}:
        command = "checkpoint" if name == "longbench" else name
        found.append(hole(inputs, WORDS[name]["hole"].format(suite=suite), command))
    found += [_measured(inputs, suite, model, words["other"]) for model in ran if inputs.paper_model(model) is None]
    return found


def _compared(
    inputs: PaperInputs, name: str, suite: str, model: str | None, row: Mapping[str, Any], column: str,
    keys: Sequence[str], shown: Sequence[str] = (),
) -> Compared:  # fmt: skip
    """One number in print beside the same cell of this run, if it was run."""
    words, table = WORDS["longbench"], inputs.published.tables[name]
    printed = inputs.published.figure(name, column, **_keys(row, table.keys))
    of = [_shown(key, row[key]) for key in keys] + [text.replace("_", " ") for text in shown]
    if model is None:
        return _row(of, printed, "", words["absent"])
    tasks = [text for text in table.columns if text != AVERAGE] if column == AVERAGE else [column]
    partial = column == AVERAGE and name != "longbench"
    found = _estimate(inputs, suite, model, row["method"], row.get("budget"), None if partial else tasks)
    if found is None:
        return _row(of, printed, "", f"{words['absent']} on {model}")
    reason = words["same"].format(context=f"{_context(inputs, suite, model):,}")
    if partial:
        return dataclasses.replace(_row(of, printed, found, words["average"]), verdict="not comparable", level="muted")
    return _row(of, printed, found, reason)


def _context(inputs: PaperInputs, suite: str, model: str) -> int:
    return int(inputs.scores(suite, model)["context"].max())


def _estimate(
    inputs: PaperInputs, suite: str, model: str, label: str, budget: str | None, tasks: Sequence[str] | None
) -> tuple[float, float, float] | None:
    """Mean over the tasks (or all of the suite) at the longest context, in points; nothing unless every task ran."""
    records = [r for r in records_of(inputs, model, [suite], [_context(inputs, suite, model)]) if r.label == label]
    wanted = [r for r in records if budget is None or r.budget == budget]
    if tasks is not None:
        wanted = [r for r in wanted if any(_is_task(r.task, task) for task in tasks)]
    there = {task for task in tasks or () if any(_is_task(r.task, task) for r in wanted)}
    if not wanted or there != set(tasks or ()) or len({r.budget for r in wanted}) > 1:
        return None
    scale = wording.scale(wanted[0].unit)
    samples = pairs.scored(wanted)
    found = pairs.estimate(samples, inputs.results.confidence, resamples(inputs), suite, model, label, *(tasks or ()))
    return scale * found.value, scale * found.low, scale * found.high


def _is_task(task: str, column: str) -> bool:
    return task == column or task.endswith(f"_{column}")


def _measured(inputs: PaperInputs, suite: str, model: str, reason: str) -> Comparison:
    """A model that print does not have: the suite's mean of every label, budget and context."""
    rows = suite_mean(inputs.scores(suite, model))
    order = {label: place for place, label in enumerate(inputs.results.labels)}
    rows = rows.sort_values(["context", "share", "method"], key=lambda c: c.map(order) if c.name == "method" else c)
    shown = [
        Compared(
            of=[row["method"], wording.budget(row["budget"]), f"{int(row['context']):,}"],
            measured=wording.score(row["value"], row["unit"]),
            interval=wording.score_interval(row["low"], row["high"], row["unit"]) if pd.notna(row["low"]) else "",
            verdict=_gap(row),
            reason=reason,
        )
        for _, row in rows.iterrows()
    ]
    unit = wording.unit_label(rows["unit"].iloc[0])
    return Comparison(f"{inputs.about(model, suite)}", ("Method", "Budget", "Context"), shown, unit)


def _gap(row: pd.Series) -> str:
    if pd.isna(row["diff_to_full"]):
        return ""
    bounds = wording.gap_interval(row["diff_low"], row["diff_high"], row["unit"])
    return f"{wording.gap(row['diff_to_full'], row['unit'])} {bounds} to Full"


def _row(
    of: Iterable[str], printed: PublishedFigure | None, found: tuple[float, float, float] | str, reason: str
) -> Compared:
    published, mark = (wording.DASH, "") if printed is None else (printed.text, printed.mark)
    if isinstance(found, str):
        return Compared(list(of), published, mark, wording.DASH, "", "not measured", "muted", reason)
    verdict, level = agreement(None if printed is None else printed.value, *found)
    measured, bounds = wording.number(found[0], 2), wording.interval(found[1], found[2], 2)
    return Compared(list(of), published, mark, measured, bounds, verdict, level, reason)


def _keys(row: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: row[key] for key in keys}


def _shown(key: str, value: str) -> str:
    return wording.budget(value) if key == "budget" else value
