"""Make the Compare page: variants with quality and speed, smallest budgets, speed by context, equal memory, kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from longdecode.reporting import charts, tradeoff, wording
from longdecode.reporting.overview import default_place, row_anchor
from longdecode.reporting.runs import REFERENCE, Run, each, groups, in_order, top
from longdecode.reporting.site import Figure, Page, Site
from longdecode.reporting.tasks import question

_LINES = 7
_SHORT = 16_384
"""Contexts under this many tokens stand on the tasks' pages alone, where a run has longer ones."""
_FAMILIES = 4
"""Fewest families that are compared."""
_SHARES = (0.15, 0.25, 0.5)
"""Shares of the bytes that Full reads, by which rows are filtered."""
_QUESTIONS = {"prompt": "in the prompt", "decoded": "decoded"}
_SMALL = (1 / 32, 1 / 8, 1 / 4)
"""Shares of the context at which the heat map changes its shade."""


def write_compare(site: Site) -> None:
    """Write compare.html."""
    page = Page("compare")
    both: dict[Any, int] = site.joined.groupby(["run", "model"]).size().to_dict() if len(site.joined) else {}
    first = default_place(site.joined)[:2] if both else ()
    # The Overview's model first, then those with the most rows of both quality and times.
    sections = _able(section for run in site.settled for section in _sections(run))
    sections.sort(key=lambda s: ((s["run"], s["model"]) != first, -both.get((s["run"], s["model"]), 0)))
    heats = [figure for run in site.settled if (figure := _heat(site, page, run))]
    times = [figure for run in site.settled for figure in _times(site, page, run)]
    memory = [row for run in site.settled for row in _memory(run)]
    kernels = [row for run in site.settled for row in _kernels(run)]
    site.write(
        page,
        "compare.html",
        sections=sections,
        by_family=_able(found for run in site.settled for found in _families(run)),
        orders=[source for run in site.settled for source in _orders(run)],
        heats=heats,
        times=times,
        memory=memory,
        kernels=kernels,
        controls=_controls(sections),
    )


def _able(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what is not of a small model; all where there is nothing else."""
    whole = list(found)
    return [each for each in whole if each["model"] not in wording.TITLES["small"]] or whole


def _controls(sections: list[dict[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    rows = [row for section in sections for row in section["rows"]]
    return {
        "model": [(section["key"], f"{section['title']} · {section['run']}") for section in sections],
        "context": [(str(c), wording.tokens(c)) for c in sorted({row["context"] for row in rows})],
        "batch": [(str(b), str(b)) for b in sorted({b for section in sections for b in section["batches"]})],
        "bytes": [(str(share), f"at most {share:.0%}") for share in _SHARES if any(row["bytes"] for row in rows)],
        "question": [(q, words) for q, words in _QUESTIONS.items() if any(q in s["questions"] for s in sections)],
    }


def _sections(run: Run) -> Iterator[dict[str, Any]]:
    """Yield one table a model of a run: rows are variants by context and budget."""
    models = in_order([*(run.summary.model if len(run.summary) else ()), *(run.steps.model if len(run.steps) else ())])
    for model in models:
        scored = _of(run.summary, model)
        losses, steps = _of(run.losses, model), _of(run.steps, model)
        told = set(zip(losses.suite, losses.task, strict=True)) if len(losses) else set()
        told -= {pair for pair in told if not _pair(losses, pair).verdict.astype(bool).any()}
        columns = [(suite, task) for suite in in_order(scored.suite) for task in run.main_tasks[suite]] if told else []
        columns = [pair for pair in columns if pair in told]
        batches = sorted(steps.batch.unique()) if len(steps) else []
        rows = list(_rows(run, model, columns, batches, scored, losses, steps))
        rows = [row for row in rows if row["context"] >= _SHORT] or rows
        if len(rows) > 1:
            yield {
                "key": f"{run.name}|{model}", "run": run.name, "model": model, "title": wording.model_title(model),
                "columns": columns, "questions": [question(suite) for suite, _ in columns],
                "ranked": [pair in set(zip(run.ranked.suite, run.ranked.task, strict=True)) for pair in columns],
                "units": [tradeoff.loss_unit(str(_pair(losses, pair).unit.iloc[0])) for pair in columns],
                "batches": batches, "rows": rows,
            }  # fmt: skip


def _of(table: pd.DataFrame, model: str) -> pd.DataFrame:
    return table[table.model == model] if len(table) else table


def _pair(table: pd.DataFrame, pair: tuple[str, str]) -> pd.DataFrame:
    return table[(table.suite == pair[0]) & (table.task == pair[1])]


def _rows(
    run: Run,
    model: str,
    columns: list[tuple[str, str]],
    batches: list[int],
    scored: pd.DataFrame,
    losses: pd.DataFrame,
    steps: pd.DataFrame,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one table, slow ones last where times are known."""
    cells = {(r.context, r.variant, r.budget, r.suite, r.task): r for r in losses.pipe(each)}
    timed = {(r.context, r.variant, _size(r), r.batch): r for r in steps.pipe(each)}
    ok = scored[scored.status == "ok"] if len(scored) else scored
    sizes = {(r.context, r.variant, r.budget): r for r in ok.pipe(each)}
    ranks = {(r.context, r.variant, r.budget, r.suite, r.task): r for r in _of(run.ranked, model).pipe(each)}
    for r in steps.pipe(each):
        if not any(key[:2] == (r.context, r.variant) and _size(row) == _size(r) for key, row in sizes.items()):
            sizes[r.context, r.variant, r.budget] = r
    for (context, variant, budget), row in sorted(
        sizes.items(), key=lambda item: (item[0][0], run.title(item[0][1]), _size(item[1]))
    ):
        speeds = [timed.get((context, variant, _size(row), batch)) for batch in batches]
        lost = [cells.get((context, variant, budget, *pair)) for pair in columns]
        ranked = [ranks.get((context, variant, budget, *pair)) for pair in columns]
        over = getattr(row, "heads_over_half", None)
        if variant == REFERENCE or any(speeds) or any(lost):
            yield {
                "id": row_anchor(run.name, model, context, variant, budget), "title": run.title(variant),
                "family": run.family(variant), "method": run.methods[variant], "context": int(context),
                "budget": run.budget(variant, budget, row.budget_tokens), "size": _size(row),
                "reads": getattr(row, "kv_tokens_read", None), "speeds": speeds, "lost": lost, "ranks": ranked,
                "bytes": max((r.bytes_share for r in ranked if r), default=None),
                "untuned": "" if wording.missing(said := getattr(row, "untuned", None)) else said,
                "heads": "" if wording.missing(over) else f"{over:.0f}/{row.heads_wanted:.0f}",
            }  # fmt: skip


def _size(row: Any) -> int:
    """Return a budget in tokens as a key; everything counts as the largest."""
    return 10**9 if wording.missing(row.budget_tokens) else int(row.budget_tokens)


def _families(run: Run) -> Iterator[dict[str, Any]]:
    """Yield by model and longest context a row a family: by suite its variants with the smallest losses."""
    rows = run.ranked.assign(family=run.ranked.variant.map(run.family))
    rows = rows[(rows.context == rows.groupby("suite").context.transform("max")) & (rows.family != "reference")]
    for (model, context), part in groups(rows, ["model", "context"]):
        suites = in_order(part.suite)
        if part.family.nunique() >= _FAMILIES:
            yield {
                "title": f"{wording.model_title(model)}, {wording.tokens(context)} tokens; run {run.name}",
                "model": model, "run": run, "suites": suites, "rows": [
                    (family, [{how: top(mine, -mine[how]) for how in ("loss", "worst")} if len(mine) else None
                              for suite in suites for mine in [of[of.suite == suite]]])
                    for family, of in groups(part, "family")
                ],
            }  # fmt: skip


def _orders(run: Run) -> Iterator[dict[str, Any]]:
    """Yield a source of printed orders with its methods, best first, print and our loss, and what came of its pairs."""
    declared = wording.read_yaml("orders.yaml")["sources"]
    for name, pairs in groups(run.orders, "source", sort=False) if len(run.orders) else ():
        sides = [
            pairs[[f"{side}", f"{side}_printed", f"{side}_loss"]].set_axis(["v", "p", "l"], axis=1) for side in "ab"
        ]
        methods = pd.concat(sides).drop_duplicates("v")
        yield declared[name] | {
            "name": name, "question": _QUESTIONS[question(pairs.suite.iloc[0])],
            "methods": [(run.title(r.v), r.p, wording.number(r.l, "points")) for r in methods.pipe(each)],
            "pairs": len(pairs), "same": int((pairs.outcome == "same").sum()),
            "reversed": [(run.title(r.a), run.title(r.b)) for r in pairs[pairs.outcome == "reversed"].pipe(each)],
        }  # fmt: skip


def _heat(site: Site, page: Page, run: Run) -> Figure | None:
    """Return the heat map of the smallest budgets within the margin."""
    cells = site.held[run.name]
    cells = cells[cells.context.isin(sorted(cells.context.unique())[-2:])] if len(cells) else cells
    if cells.empty or (cells.state == "open").all():
        return None
    shown = pd.DataFrame([_shade(run, r, cells.model.nunique() > 1) for r in cells.pipe(each)])
    holds = cells[cells.state == "holds"].groupby("variant").size().sort_values(ascending=False)
    total = shown.column.nunique()
    title = (
        f"{run.title(holds.index[0])} stays within the margin on {holds.iloc[0]} of {total} tasks and contexts"
        if len(holds)
        else "No method is proven to stay within the margin at any budget"
    )
    note = f"{', '.join(wording.model_title(m) for m in in_order(cells.model))}, run {run.name}."
    return site.figure(page, f"budgets-{run.name}", title, charts.heat(shown), shown, note)


def _shade(run: Run, r: Any, by_model: bool) -> dict[str, Any]:
    """Return a cell of the heat map; its column names the model where there are several."""
    holds, model = r.state == "holds", f", {wording.model_title(r.model)}" if by_model else ""
    return {
        "name": run.title(r.variant),
        "column": f"{wording.task_title(r.suite, r.task)} @ {wording.tokens(r.context)}{model}",
        "words": f"{int(r.budget_tokens):,}" if holds else {"open": "?", "fails": "none"}[r.state],
        "shade": f"heat{sum(r.budget_tokens / r.context > share for share in _SMALL)}" if holds else r.state,
        "n": r.n,
    }


def _times(site: Site, page: Page, run: Run) -> Iterator[Figure]:
    """Yield one figure a model: milliseconds a step against context at batch 1, with the bandwidth bound of Full."""
    for model in in_order(run.steps.model) if len(run.steps) else ():
        at = _of(run.steps, model)
        batch = min(at.batch)
        at = at[(at.batch == batch) & (at.context > 0)]
        full = at[at.variant == REFERENCE].sort_values("context")
        if full.context.nunique() < 2:
            continue
        last = at[at.context == full.context.max()].sort_values("ratio", ascending=False)
        lines = [
            _line("Full", full, "median_us", "reference"),
            _line("Full, bandwidth bound", full, "floor_us", "print", "dashed"),
        ]
        for row in last.drop_duplicates("variant").pipe(each):
            mine = at[(at.variant == row.variant) & (at.budget == row.budget)].sort_values("context")
            size = run.budget(row.variant, row.budget, row.budget_tokens)
            if (
                row.variant != REFERENCE
                and wording.card(run.methods[row.variant])
                and mine.context.nunique() > 1
                and len(lines) < _LINES
            ):
                lines.append(_line(f"{run.title(row.variant)}, {size}", mine, "median_us", run.family(row.variant)))
        shown = pd.concat(lines, ignore_index=True)
        best = last[last.variant.map(lambda v: wording.card(run.methods[v]) is not None)].iloc[0]
        where = f"{wording.model_title(model)}: at {wording.tokens(best.context)} tokens, batch {int(batch)},"
        title = f"{where} {run.title(best.variant)} is fastest, {wording.times(best.ratio)} times Full"
        if best.variant == REFERENCE:
            title = f"{where} no method is faster than Full"
        spec, note = charts.speed_lines(shown, int(batch)), f"Run {run.name}, {', '.join(run.devices)}."
        yield site.figure(page, f"times-{run.name}-{model}", title, spec, shown, note, width=520)


def _line(name: str, at: pd.DataFrame, column: str, family: str, dash: str = "solid") -> pd.DataFrame:
    """Return a line of milliseconds by context, of a column of microseconds."""
    return pd.DataFrame({"name": name, "x": at.context, "y": at[column] / 1000, "family": family, "dash": dash})


def _memory(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the rows timed at equal device memory: batch is what fits, the ratio is of tokens a second."""
    if run.speed.empty:
        return
    rows = run.speed[
        run.speed.bench.isin(["offload", "own_choices"]) & (run.speed.stage == "step") & run.speed.ratio.notna()
    ]
    for r in rows.pipe(each):
        setting = "" if wording.missing(r.op_sizes) else r.op_sizes
        yield {
            "title": run.title(r.variant), "family": run.family(r.variant), "batch": int(r.batch),
            "place": f"{_shape(r)}, {wording.tokens(r.context)} tokens",
            "budget": wording.budget(r.budget, r.budget_tokens),
            "setting": wording.TITLES["hits"].get(setting, setting.removeprefix("hit_rate=")),
            "rate": r.tokens_per_s, "ratio": r.ratio, "low": r.ratio_low, "high": r.ratio_high,
        }  # fmt: skip


def _shape(row: Any) -> str:
    return "Each variant's own checkpoint" if row.bench == "own_choices" else wording.model_title(row.model)


def _kernels(run: Run) -> Iterator[dict[str, Any]]:
    """Yield kernels at their largest context beside public peers; the ratio is over the strongest peer."""
    if run.speed.empty:
        return
    rows = run.speed[(run.speed.bench == "kernel") & run.speed.median_us.notna() & run.speed.op_sizes.isna()]
    rows = rows[rows.context == rows.groupby("method").context.transform("max")]
    for r in rows[rows.batch == rows.groupby("method").batch.transform("max")].pipe(each):
        where = f"{wording.tokens(r.context)} tokens, " if r.context else ""
        yield {
            "place": f"{wording.kernel_title(r.method)}; {where}batch {int(r.batch)}",
            "peer": wording.kernel_title(r.variant), "own": r.variant.startswith("longdecode"),
            "us": r.median_us, "ratio": r.ratio, "share": r.fraction,
        }  # fmt: skip
