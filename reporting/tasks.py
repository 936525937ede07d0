"""Make the pages of tasks and of methods.

A task's page says what is asked, scores by budget, accuracy along the answer, and answers side by side; a method's
shows its card, where it holds, and how fast it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pandas as pd

from longdecode.engine.errors import ConfigError
from longdecode.evals.store import read_answers
from longdecode.evals.tasks.registry import describe, folder_of
from longdecode.reporting import charts, wording
from longdecode.reporting.runs import REFERENCE, Run, budget_order, each, groups, in_order, middle, top
from longdecode.reporting.site import Figure, Page, Site

_GROUPS, _LINES = 9, 6
PER_SUITE = 2
_HEAD, _TAIL = 260, 80
_PROMPT = ["task", "context", "seed", "sample_index"]


def write_tasks(site: Site) -> None:
    """Write a page for each suite that current runs scored."""
    for suite in site.suites:
        page = Page(f"task-{wording.slug(suite)}")
        runs = [run for run in site.current if suite in run.suites]
        grids = [grid for run in runs for grid in _grids(run, suite, site.passed)]
        figures = [figure for run in runs if (figure := _along(site, page, run, suite))]
        texts = [(run, pair) for run in runs for pair in pairs(run, suite)][: PER_SUITE + 1]
        site.write(
            page, "task.html", suite=suite, words=_words(suite), finding=_finding(runs, suite, site.passed),
            grids=grids, figures=figures, texts=texts, facts=_facts(runs, suite),
        )  # fmt: skip


def question(suite: str) -> str:
    """Return where a suite's question stands; empty where it has none, or its folder is not at hand."""
    with suppress(ConfigError):
        return folder_of(suite)[1] or ""
    return ""


def _words(suite: str) -> dict[str, Any]:
    """Return the sentences on a suite; none where its folder is not at hand."""
    with suppress(ConfigError):
        return {"summary": "", "tasks": {}, **describe(suite)}
    return {"summary": "", "tasks": {}}


def _finding(runs: list[Run], suite: str, passed: set[str]) -> str:
    """Return which variants stay within the margin where there are the most prompts; empty without a verdict."""
    found = [(run, run.leading(losses)) for run in runs if len(losses := _told(run, suite, passed))]
    told = [(run, rows[rows.verdict != ""]) for run, rows in found if (rows.verdict != "").any()]
    if not told:
        return ""
    run, rows = max(told, key=lambda item: item[1].n.max())
    most = top(rows, rows.n * 1e6 + rows.context)
    rows = rows[(rows.model == most.model) & (rows.task == most.task) & (rows.context == most.context)]
    within = in_order(run.title(v) for v in rows[rows.verdict == "within"].variant)
    names = f"{', '.join(within[:6])}{' and others' if len(within) > 6 else ''}" if within else "no variant"
    return (
        f"Shown to be within the margin of Full at some budget: {names}, of {rows.variant.nunique()} tried "
        f"({wording.model_title(most.model)}, {wording.tokens(most.context)} tokens, {int(most.n)} prompts)."
    )


def _facts(runs: list[Run], suite: str) -> dict[str, str]:
    """Return metric, data and protocol of the suite's rows."""
    rows = pd.concat([run.summary[run.summary.suite == suite] for run in runs])
    return {
        "metric": ", ".join(wording.column_title(m).lower() for m in in_order(rows.metric.dropna())),
        "data": " and ".join(sorted({s for run in runs for s in run.data_sources})),
    }


def _told(run: Run, suite: str, passed: set[str]) -> pd.DataFrame:
    """Return a suite's losses that have a verdict to tell: no pilot's, and none of models that are passed over."""
    losses = run.losses[:0] if run.pilot else run.losses
    return losses[(losses.suite == suite) & ~losses.model.isin(passed)] if len(losses) else losses


def _grids(run: Run, suite: str, passed: set[str]) -> Iterator[dict[str, Any]]:
    """Yield a table a main task, model and context (the two longest) by budget; then one a model by task."""
    rows = run.summary[(run.summary.suite == suite) & (run.summary.status == "ok")]
    rows = rows[rows.variant.isin(run.plain(rows.variant))]
    quiet = "a pilot, which gives no verdict" if run.pilot else ""
    why = dict.fromkeys(passed, "a small model gives no verdict")
    verdicts = {(r.model, r.task, r.context, r.variant, r.budget): r for r in _told(run, suite, passed).pipe(each)}
    main = run.main_tasks[suite]
    rows = rows[rows.context.isin(sorted(rows.context.unique())[-2:])]
    for at, part in groups(rows[rows.task.isin(main)], ["model", "task", "context"], sort=False):
        model, task, context = at
        silent = in_order(r.status for k, r in verdicts.items() if k[:3] == at and r.status in wording.REASONS)
        yield grid(run, part, "budget", verdicts) | {
            "title": f"{wording.task_title(suite, task)}, {wording.tokens(context)} tokens",
            "model": wording.model_title(model),
            "run": run.name,
            "why": quiet or why.get(model) or "; ".join(wording.REASONS[s] for s in silent),
        }
    for model, part in groups(rows[~rows.task.isin(main)], "model", sort=False):
        part = part[part.context == part.context.max()]
        tried = part[part.budget != REFERENCE].groupby("budget").variant.nunique()
        if len(tried):
            budget = middle(tried[tried == tried.max()].index)
            part = part[part.budget.isin([budget, REFERENCE])]
            part = part.assign(title=[wording.task_title(suite, task) for task in part.task])
            words = run.budget(next(v for v in part.variant if v != REFERENCE), budget)
            place = f"{wording.tokens(part.context.iloc[0])} tokens, budget {words}"
            about = {"title": f"Task by task, {place}", "model": wording.model_title(model), "run": run.name}
            yield grid(run, part, "title", verdicts) | about | {"why": quiet or why.get(model, "")}


def grid(run: Run, part: pd.DataFrame, column: str, verdicts: dict[Any, Any]) -> dict[str, Any]:
    """Return one table with the values of ``column`` as heads; Full is a row where those are no budgets.

    What takes no budget, such as a quantised cache, has a head of its own: all.
    """
    values = in_order(part[column])
    if column == "budget":
        values = sorted(set(part[part.variant != REFERENCE].budget), key=lambda b: (b == REFERENCE, budget_order(b)))
    cells = {
        (r.variant, getattr(r, column)): _cell(r, verdicts.get((r.model, r.task, r.context, r.variant, r.budget)))
        for r in part.pipe(each)
    }
    empty = _cell(None, None)
    lines = [
        {"title": run.title(v), "family": run.family(v), "cells": [cells.get((v, value), empty) for value in values]}
        for v in sorted(set(part.variant), key=lambda v: (v != REFERENCE, run.title(v)))
        if v != REFERENCE or column != "budget"
    ]
    other = next((v for v in part.variant if v != REFERENCE), REFERENCE)
    heads = [run.budget(other, v) if column == "budget" else v for v in values]
    few, most = int(part.n.min()), int(part.n.max())
    prompts = f"{most}" if few == most else f"{few} to {most}"
    return {"heads": heads, "lines": lines, "full": cells.get((REFERENCE, REFERENCE), empty), "n": prompts}


def _cell(row: Any, loss: Any) -> dict[str, str]:
    """Return a score with its interval and verdict; empty where it was not run."""
    if row is None or wording.missing(row.value):
        return {"value": "", "interval": "", "verdict": ""}
    scale, unit = (100, "percent") if row.unit == "fraction" else (1, row.unit)
    return {
        "value": wording.number(scale * row.value, unit),
        "interval": wording.interval(scale * row.low, scale * row.high, unit),
        "verdict": loss.verdict if loss else "",
    }


def _along(site: Site, page: Page, run: Run, suite: str) -> Figure | None:
    """Return accuracy along the longest answer of a suite, of the task answered best: Full and others at one budget."""
    if suite not in wording.TITLES["long_answers"]:
        return None
    rows = run.along[run.along.suite == suite] if len(run.along) else run.along
    if rows.empty:
        return None
    longest = rows.task[rows["index"] == rows["index"].max()]
    rows = rows[rows.task == rows[rows.task.isin(longest)].groupby("task").value.mean().idxmax()]
    rows = rows[rows.model == rows.model.iloc[0]]
    rows = rows[rows.context == rows.context.min()]
    sizes = rows[rows.variant != REFERENCE].groupby("budget").variant.nunique()
    if sizes.empty:
        return None
    budget = max(sizes.index, key=lambda b: (sizes[b], not b.startswith("bytes"), budget_order(b)))
    plain = [v for v in in_order(rows.variant) if run.methods.get(v, v) == v]
    losses = run.losses
    at = {"suite": suite, "task": rows.task.iloc[0], "context": rows.context.iloc[0], "budget": budget}
    if len(losses):
        losses = losses[(losses[list(at)] == list(at.values())).all(axis=1) & losses.variant.isin(plain)]
    ordered = list(losses.sort_values("loss").variant) if len(losses) else [v for v in plain if v != REFERENCE]
    shown = [REFERENCE, *(ordered[:3] + ordered[-2:] if len(ordered) > _LINES - 1 else ordered)]
    rows = rows[rows.variant.isin(shown) & rows.budget.isin([budget, REFERENCE])]
    frame = pd.DataFrame({
        "name": rows.variant.map(run.title), "x": rows["index"], "y": rows.value,
        "family": rows.variant.map(run.family),
        "dash": rows.variant.map(lambda v: "dashed" if v in ("quest", "snapkv") else "solid"),
    })  # fmt: skip
    within = int((losses.verdict == "within").sum()) if len(losses) else 0
    words = run.budget(shown[-1], budget) + (" tokens" if budget.isdigit() else "")
    words = words.replace(" or more tokens", " tokens or more")
    count = f"{within} of {len(losses)} methods stay{'s' * (within == 1)}" if within else "no method stays"
    task = wording.task_title(suite, rows.task.iloc[0])
    model = wording.model_title(rows.model.iloc[0])
    place = f"{task}; {model}, {wording.tokens(rows.context.iloc[0])} tokens"
    title = f"Scores along the answer with {words}"
    if len(losses) and rows.model.iloc[0] not in site.passed:
        title = f"{model} with {words}: {count} within the margin over the whole answer"
    drawn = " Drawn, of the defaults: three that lose least, two that lose most." if len(shown) <= len(ordered) else ""
    spec = charts.along_lines(frame, _GROUPS, "Place in the answer", "Right, %")
    note = f"{place}, run {run.name}. A point joins neighbouring places.{drawn}"
    return site.figure(page, f"along-{run.name}", title, spec, frame, note)


def pairs(run: Run, suite: str) -> list[Any]:
    """Return the prompts of a suite on which variants lose most, one a variant, of those whose texts are stored.

    Each has Full's text and score as ``full_text`` and ``full_score``, the variant's as ``text`` and ``score``.
    """
    found = [pair for answers in read_answers(run.folder, suite) for pair in _worst(answers)]
    return sorted(found, key=lambda pair: pair.score - pair.full_score)[:PER_SUITE]


def _worst(answers: pd.DataFrame) -> Iterator[Any]:
    texts = answers.assign(text=answers.output_text.map(cut))
    full = texts[texts.variant == REFERENCE].rename(columns={"text": "full_text", "score": "full_score"})
    both = texts[texts.variant != REFERENCE].merge(full[[*_PROMPT, "full_text", "full_score"]], on=_PROMPT)
    return each(both[both.score < both.full_score].sort_values(["score", "context"]).drop_duplicates("variant"))


def cut(text: str) -> str:
    """Return a text whole, or its head and tail."""
    text = text.strip()
    return (
        text
        if len(text) <= _HEAD + _TAIL
        else f"{text[:_HEAD].rsplit(None, 1)[0]} […] {text[-_TAIL:].split(None, 1)[-1]}"
    )


def write_methods(site: Site) -> None:
    """Write a page for each method that current runs measured."""
    for method in site.methods:
        card = wording.card(method)
        papers = [name for name, paper in site.papers.items() if paper.method == method]
        site.write(
            Page(f"method-{method}"), "method.html", method=method, card=card, papers=papers,
            holds=_holds(site, method), speeds=_speeds(site, method), texts=text_speeds(site, method),
            gates=_gates(site, method), ran=_ran(site, method),
        )  # fmt: skip


def _holds(site: Site, method: str) -> list[dict[str, Any]]:
    """Return, by task and context, the smallest budget of the method that stays within the margin."""
    out = []
    for run in site.current:
        rows = site.held[run.name]
        for r in rows[rows.variant.map(run.methods) == method].pipe(each) if len(rows) else ():
            words = {"open": "cannot tell", "fails": "none, all worse"}.get(r.state) or f"{r.budget_tokens:,.0f} tokens"
            apart = f", {run.title(r.variant)}" if r.variant != method else ""
            out.append({
                "task": wording.task_title(r.suite, r.task), "suite": r.suite, "words": words, "state": r.state,
                "model": f"{wording.model_title(r.model)}{apart}; run {run.name}", "n": r.n,
                "context": wording.tokens(r.context),
            })  # fmt: skip
    return out


def _speeds(site: Site, method: str) -> list[dict[str, Any]]:
    """Return the timed steps of the method's variants at each model's longest context; of small models if need be."""
    out = []
    for run in site.current:
        rows = run.steps[run.steps.method == method] if len(run.steps) else run.steps
        rows = rows[rows.context == rows.groupby("model").context.transform("max")] if len(rows) else rows
        for r in rows.pipe(each):
            out.append({
                "title": run.title(r.variant), "batch": int(r.batch),
                "place": f"{wording.model_title(r.model)}, {wording.tokens(r.context)} tokens; run {run.name}",
                "budget": run.budget(r.variant, r.budget, r.budget_tokens),
                "ms": wording.number(r.median_us / 1000, "ms"), "ratio": wording.number(r.ratio, "times"),
                "interval": wording.interval(r.ratio_low, r.ratio_high, "times"),
                "share": "" if wording.missing(r.fraction) else f"{r.fraction:.0%}",
                "small": r.model in wording.TITLES["small"],
            })  # fmt: skip
    return [timed for timed in out if not timed["small"]] or out


def text_speeds(site: Site, method: str) -> list[dict[str, Any]]:
    """Return the speed over whole texts of the method's variants, where several texts give it an interval."""
    out = []
    for run in site.current:
        rows = run.measures
        rows = rows[(rows.measure == "speedup") & (rows["at"] == rows.length) & rows.low.notna()] if len(rows) else rows
        rows = rows[rows.variant.map(run.methods) == method] if len(rows) and method != REFERENCE else rows[:0]
        for r in rows.pipe(each):
            out.append({
                "title": run.title(r.variant), "model": wording.model_title(r.model), "n": int(r.n),
                "tokens": f"{int(r.length):,}", "ratio": wording.number(r.value, "times"),
                "interval": wording.interval(r.low, r.high, "times"),
            })  # fmt: skip
    return out


def _ran(site: Site, method: str) -> dict[str, str]:
    """Return the numbers and words among the method's knobs that differ from the card's, by run; no small models'."""
    card, found = wording.card(method), dict[str, list[str]]()
    default = {knob.name: knob.default for knob in card.knobs if not knob.file} if card else {}
    for run in (run for run in site.settled if len(run.summary)):
        rows = run.summary[(run.summary.method == method) & ~run.summary.model.isin(wording.TITLES["small"])]
        for given in map(json.loads, rows.params.drop_duplicates()):
            words = [f"{name} {value}" for name, value in given.items() if value != default.get(name, value)]
            if words:
                found.setdefault(", ".join(words), []).append(run.name)
    return {words: ", ".join(in_order(runs)) for words, runs in found.items()}


def _gates(site: Site, method: str) -> list[str]:
    """Return, by run, whether the conformance gate passed."""
    out = []
    for run in site.current:
        mine = [gate for gate in run.gate if gate.get("method") == method]
        if mine:
            checks = [verdict for gate in mine for verdict in gate.get("verdicts", ())]
            passed = sum(verdict["status"] == "passed" for verdict in checks)
            out.append(f"Run {run.name}: {passed} of {len(checks)} variants passed all checks on {mine[0]['device']}")
    return out
