"""Make measures.csv: what is quoted that is neither a score nor a paired score, one row a quantity with interval."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from longdecode.analysis import cells as grouped
from longdecode.analysis.cells import Cell, Cells, clean_ratios, clean_times, of_medians, ratio_interval
from longdecode.analysis.comparisons import SEVERAL, over_trainings
from longdecode.analysis.declaration import PairRequest, read_table
from longdecode.evals.records import Record, SpeedRecord, op_sizes_text
from longdecode.evals.run_config import REFERENCE_METHOD
from longdecode.evals.stats import Floats, Spread, bootstrap_interval, generator, mean_interval, student_interval
from longdecode.evals.store import read_frame, read_records
from longdecode.evals.throughput.spec import RAW_SHAPES

Rows = Iterator[dict[str, Any]]
COLUMNS = (
    "measure", "model", "variant", "over", "task", "context", "batch", "budget", "setting", "over_setting", "length",
    "at", "n", "value", "low", "high", "unit", "source",
)  # fmt: skip
_INTEGERS = ("context", "batch", "length", "at", "n")
STRETCHES = 8
"""Most points of a curve along an answer or a text; one with fewer parts than this has none."""
CURVE_DRAWS = 2000
"""Bootstrap draws of a point; there are thousands of points, and no verdict hangs on one."""
_STEPS = ("step", "speculative_step")
_SAME_BATCH = "decode"
"""The bench whose steps are compared at one batch; equal-memory benches give each variant the batch that fits."""

DISTINCT = ("distinct_1", "distinct_2", "distinct_3", "distinct_4")
TEXT_UNITS = {
    "alpha": "share", "beta": "share", "speedup": "times", "tokens_per_step": "tokens a step",
    "speedup_growth": "of Full's speed", "minutes": "minutes",
    **dict.fromkeys((*DISTINCT, "average_distinct", "repeated_8"), "share"),
}  # fmt: skip
_WHOLE_TEXT = (*DISTINCT, "repeated_8")
_TEXT_KEYS = ["model", "task", "context", "variant", "budget", "length", "measure", "at"]
_TODAY = {"label": "variant", "text": "task"}
"""Columns of earlier files by today's names."""
_TRACED = (
    "overlap_", "effective_budget", "loss_gap_minus_", "key_error_minus_", "value_error_minus_",
    "output_error_minus_", "output_final_error_minus_",
)  # fmt: skip
"""Beginnings of the measures of a trace that are of print, or a difference to the rival."""


def measures_table(
    folder: Path, cells: Cells, timed: Sequence[SpeedRecord], requests: Sequence[PairRequest],
    pools: Mapping[str, Sequence[str]], spread: Spread,
) -> pd.DataFrame:  # fmt: skip
    """Return every measure that a results folder has the data of.

    ``setting`` tells timings of one variant apart (hit rate, prompts); ``length`` is the tokens of a whole text, or the
    parts of an answer; ``at`` counts tokens written, parts, steps, slots or heads, as the measure has it.

    Args:
        folder: a run's results.
        cells: its scored samples.
        timed: its speed records.
        requests: pairs of timed variants.
        pools: by name, tasks whose mean score is a measure.
        spread: confidence, bootstrap draws and seed.
    """
    texts = [read_records(path, Record) for path in sorted((folder / "generation").glob("*.parquet"))]
    written = [*text_measures(texts, spread)]
    rows = [
        *_pooled_scores(cells, pools, spread),
        *_curves(cells, spread),
        *step_pairs(timed, requests, spread),
        *memory_bounds(timed),
        *window_traffic(timed),
        *written,
        *composed_speedups(timed, written),
        *step_overlaps(folder / "locality.csv", spread),
        *layer_overlaps(folder / "overlap.csv"),
        *selection_traces(folder / "retrospection"),
        *head_losses(folder / "heads"),
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(_INTEGERS, "Int64"))


def _pooled_scores(cells: Cells, pools: Mapping[str, Sequence[str]], spread: Spread) -> Rows:
    """Yield the mean score over the tasks of each pool, ``score``, for every variant that has them all."""
    groups: dict[Cell, dict[str, Floats]] = defaultdict(dict)
    for cell, samples in cells.items():
        for name in (name for name, tasks in pools.items() if cell.task in tasks):
            scores = grouped.unit_scores(samples[number] for number in sorted(samples))
            groups[cell._replace(task=name)][cell.task] = 100 * scores
    for cell, tasks in groups.items():
        if len(tasks) == len(pools[cell.task]):
            mean = bootstrap_interval(list(tasks.values()), spread, generator(spread.seed, "pool", *cell))
            n = sum(map(len, tasks.values()))
            yield _of_cell(cell) | mean._asdict() | {"measure": "score", "n": n, "unit": "points"}


def _curves(cells: Cells, spread: Spread) -> Rows:
    """Yield scores along long answers (``score_along``) and losses along long texts (``loss_along``).

    Of a task's contexts the shortest has curves, of at most ``STRETCHES`` points: means over stretches of parts
    (questions, segments), ``at`` the last part, ``length`` the parts of the whole. The unit is the problem.
    """
    shortest = pd.DataFrame(list(cells), columns=Cell._fields).groupby(["model", "task"]).context.min()
    for cell, samples in cells.items():
        first = next(iter(samples.values()))
        length = max(len(r.parts or ()) for r in samples.values())
        if length < STRETCHES or cell.context > shortest[cell.model, cell.task]:
            continue
        step, drawn = -(-length // STRETCHES), replace(spread, resamples=CURVE_DRAWS)
        scale, unit = (100.0, "points") if first.unit == "fraction" else (1.0, first.unit)
        for start in range(0, length, step):
            units: dict[object, list[float]] = defaultdict(list)
            for r in samples.values():
                units[r.problem] += (r.parts or [])[start : start + step]
            values = np.array([np.mean(parts) for parts in units.values() if parts])
            at = min(start + step, length)
            rng = generator(spread.seed, "along", *cell, at)
            found = mean_interval([values], grouped.is_bounded(samples.values()), drawn, rng)
            yield _of_cell(cell) | {name: scale * value for name, value in found._asdict().items()} | {
                "measure": "score_along" if first.higher_is_better else "loss_along", "length": length, "at": at,
                "n": len(values), "unit": unit,
            }  # fmt: skip


def _of_cell(cell: Cell) -> dict[str, Any]:
    """Return the columns that say of which cell a measure is."""
    return {name: value for name, value in cell._asdict().items() if name != "suite"} | {"source": "records"}


def step_pairs(records: Sequence[SpeedRecord], requests: Sequence[PairRequest], spread: Spread) -> Rows:
    """Yield ``times_as_fast`` and ``extra_ms`` of each requested pair at one place.

    Over its reference a variant's ratio is that of speed.csv; over another variant it is the quotient of both medians.
    Times of the equal-memory benches are times a token of the whole batch, so that their ratio is one of throughput.
    """
    timed = [r for r in records if r.stage in _STEPS and r.status == "ok" and len(clean_times(r))]
    for request, a, b in product(requests, timed, timed):
        if a.variant in request.a and b.variant == request.b and _same_place(a, b):
            yield from _pair(a, b, spread)


def memory_bounds(records: Sequence[SpeedRecord]) -> Rows:
    """Yield ``memory_bound``: bytes that a step of full attention must read, over those that the variant's must."""
    steps = [r for r in records if r.bench == _SAME_BATCH and r.stage == "step" and r.bytes_min]
    full = {_place(r): r.bytes_min for r in steps if r.method == REFERENCE_METHOD}
    for r in steps:
        if r.method != REFERENCE_METHOD and (reference := full.get(_place(r))) and r.bytes_min:
            yield _timed_row(r) | {
                "measure": "memory_bound", "over": REFERENCE_METHOD, "value": reference / r.bytes_min, "unit": "times",
            }  # fmt: skip


def window_traffic(records: Sequence[SpeedRecord], at: int = 4096) -> Rows:
    """Yield ``traffic_over_quest`` of each window that was timed on a published shape, worked out and not measured.

    Per cent that a step moves more than Quest's at so many tokens (LongGenBench half answered), by the paper's count of
    elements a layer: Quest's keys, values and page bounds, queries and outputs; three rows of queries and outputs, and
    keys and values written anew, for each past token of the window.

    Source: RetroAttention (arXiv 2508.09001), figure 5.
    """
    windows = [r for r in records if r.method == "retro" and r.model in RAW_SHAPES and "share" in r.params]
    timed = {(r.model, r.variant): {"window": 2, "page_size": 16} | r.params for r in windows}
    for (model, variant), params in timed.items():
        heads, kv_heads = (RAW_SHAPES[model][f"num_{kind}_heads"] for kind in ("attention", "key_value"))
        quest = 2 * kv_heads * at * (params["share"] + 1 / params["page_size"]) + 2 * heads
        yield {
            "measure": "traffic_over_quest", "model": model, "variant": variant, "context": at,
            "value": 100 * (params["window"] - 1) * (3 * heads + 2 * kv_heads) / quest, "unit": "percent",
            "source": "arithmetic",
        }  # fmt: skip


def composed_speedups(records: Sequence[SpeedRecord], written: Sequence[Mapping[str, Any]]) -> Rows:
    """Yield ``composed_speedup`` of published shapes: their speed over Full if they kept as many drafts as texts here.

    Tokens a step over whole texts, times Full's step over a speculative one, each at the middle of the text by a line
    through the contexts that were timed. The interval is of the texts.
    """
    steps = defaultdict[tuple[str, str], list[tuple[float, ...]]](list)
    for r in records:
        if r.stage == "speculative_step" and r.model in RAW_SHAPES and len(clean_ratios(r)):
            us = float(np.median(clean_times(r)))
            steps[r.model, r.variant].append((r.context, us, us * float(np.median(clean_ratios(r)))))
    for text, ((model, variant), found) in product(written, steps.items()):
        if (text["measure"], text["at"], text["variant"]) == ("tokens_per_step", text["length"], variant):
            contexts, ours, full = np.array(found).T
            middle = text["context"] + text["length"] / 2
            a_step = [np.polyval(np.polyfit(contexts, us, 1), middle) for us in (full, ours)]
            bounds = {name: text[name] * a_step[0] / a_step[1] for name in ("value", "low", "high")}
            about = {"measure": "composed_speedup", "model": model, "over": REFERENCE_METHOD, "unit": "times"}
            yield {**text, **bounds, **about}


def _place(r: SpeedRecord) -> tuple[object, ...]:
    return r.model, r.context, r.batch


def _same_place(a: SpeedRecord, b: SpeedRecord) -> bool:
    same_model = a.model == b.model or a.bench == "own_choices"
    same_batch = a.batch == b.batch or a.bench != _SAME_BATCH
    same_budget = b.budget in (a.budget, "full")
    return (a.bench, a.context) == (b.bench, b.context) and same_model and same_batch and same_budget


def _timed_row(r: SpeedRecord) -> dict[str, Any]:
    return {
        "model": r.model, "variant": r.variant, "context": r.context, "batch": r.batch, "budget": r.budget,
        "setting": op_sizes_text(r.bench, r.params), "n": len(clean_times(r)), "source": "speed",
    }  # fmt: skip


def _pair(a: SpeedRecord, b: SpeedRecord, spread: Spread) -> Rows:
    times, ratios = [clean_times(r) for r in (a, b)], [clean_ratios(r) for r in (a, b)]
    row = _timed_row(a) | {
        "over": b.variant, "over_setting": op_sizes_text(b.bench, b.params), "n": min(map(len, times)),
    }  # fmt: skip

    def compared(measure: str, groups: Sequence[Floats], compare: np.ufunc) -> dict[str, Any]:
        rng = generator("step pair", measure, spread.seed, *a.key, *b.key)
        return row | {"measure": measure} | bootstrap_interval(groups, spread, rng, of_medians(compare))._asdict()

    if a.reference == b.variant and len(ratios[0]):
        yield row | {"measure": "times_as_fast", "unit": "times"} | ratio_interval(a, spread)._asdict()
    elif all(map(len, ratios)):
        yield compared("times_as_fast", ratios, np.divide) | {"unit": "times"}
    yield compared("extra_ms", [each / 1000 for each in times], np.subtract) | {"unit": "ms"}


def step_overlaps(path: Path, spread: Spread) -> Rows:
    """Yield the share of a step's blocks that the step before read too, by variant, and its lead over another's.

    Means over layers and heads; the unit is the text, and the training where a variant has several. ``misses`` counts
    blocks a step by slots of a resident set.

    Args:
        path: a run's locality.csv; nothing where there is none.
        spread: confidence, bootstrap draws and seed.
    """
    if not path.is_file():
        return
    table = read_table(path).rename(columns=_TODAY)
    slots = {name: int(name.partition("_")[2]) for name in table.columns if name.startswith("misses_")}
    means = table.groupby(["variant", "model", "document"])[["gamma", *slots]].mean()
    hits, variants = 100 * means["gamma"], table["variant"].unique()
    for variant in variants:
        rows = table[table["variant"] == variant]
        row = {name: rows[name].iloc[0] for name in ("variant", "task", "context", "budget")}
        row |= {"model": SEVERAL.join(rows["model"].unique()), "n": rows["document"].nunique(), "source": path.name}
        yield row | _over_texts(hits, spread, variant) | {"measure": "hit_rate", "unit": "percent"}
        yield row | {"measure": "hit_rate_worst", "value": 100 * rows["worst"].min(), "unit": "percent"}
        for name, at in slots.items():
            yield row | _over_texts(means[name], spread, variant) | {"measure": "misses", "at": at, "unit": "blocks"}
        for other in variants[variants != variant]:
            about = {"measure": "hit_rate_lead", "over": other, "unit": "points"}
            yield row | _over_texts(hits, spread, variant, other) | about


def _over_texts(means: pd.Series, spread: Spread, *variants: str) -> dict[str, Any]:
    """Return a variant's mean, or its lead over another, from means by variant, model and text."""
    sides = [means.loc[variant].dropna() for variant in variants]
    first, *others = (side.groupby("document").mean() for side in sides)
    values = first.sub(*others).dropna() if others else first
    found = bootstrap_interval([values.to_numpy()], spread, generator(spread.seed, "overlap", *variants, means.name))
    trainings = [side.groupby("model").mean().to_numpy() for side in sides]
    if min(map(len, trainings)) > 1:
        found, _ = over_trainings(found, trainings, spread.confidence)
    return {"n": len(values), **found._asdict()}


def layer_overlaps(path: Path) -> Rows:
    """Yield the lowest and highest overlap with the layer below, within the layer whose heads differ most.

    Args:
        path: a run's overlap.csv; nothing where there is none.
    """
    if not path.is_file():
        return
    place = ["model", "task", "context", "k_tokens", "head_kind"]
    for key, rows in read_table(path).groupby(place, sort=False):
        heads = 100 * rows.groupby(["layer", "head"])["mean_overlap"].mean()
        layers = heads.groupby("layer").agg(lowest="min", highest="max")
        widest = layers.loc[(layers["highest"] - layers["lowest"]).idxmax()]
        row = dict(zip(("model", "task", "context", "at", "setting"), key, strict=True))
        for bound, value in widest.items():
            yield row | {
                "measure": f"layer_overlap_{bound}", "n": int(rows["n"].max()), "value": value, "unit": "percent",
                "source": path.name,
            }  # fmt: skip


def selection_traces(folder: Path) -> Rows:
    """Yield overlap of selections and effective budget by steps apart, as the run measured them.

    Args:
        folder: a run's retrospection; nothing where there is none.
    """
    for path in sorted(folder.glob("*.parquet")):
        table = read_frame(path).rename(columns=_TODAY | {"index": "at"})
        table = table[(table["layer"] < 0) & table["measure"].str.startswith(_TRACED)].copy()
        shares = table["measure"].str.startswith("overlap")
        table.loc[shares, ["value", "low", "high"]] *= 100
        table["unit"] = np.select(
            [shares, table["measure"] == "effective_budget"], ["percent", "times the budget"], "of Full's norm"
        )
        found: list[dict[Any, Any]] = table.assign(source=f"{folder.name}/{path.name}").to_dict("records")
        yield from found


def head_losses(folder: Path) -> Rows:
    """Yield the last training loss of each draft head, and how often its first guess is right.

    Args:
        folder: a run's heads, ``<model>/<kind>/<start>/``; nothing where there is none.
    """
    for path in sorted(folder.glob("*/*/*/accuracy.csv")):
        model, kind, start = path.parts[-4:-1]
        row = {"model": model, "variant": f"{kind}/{start}", "n": 1, "source": f"heads/{model}"}
        last = pd.read_csv(path.with_name("curve.csv")).iloc[-1]
        for name in (name for name in last.index if name.startswith("loss_") and name[5:].isdigit()):
            yield row | {"measure": "head_loss", "at": int(name[5:]), "value": float(last[name]), "unit": "nats"}
        for head in pd.read_csv(path).to_dict("records"):
            about = {"setting": head.get("text"), "at": int(head["head"]), "unit": "percent"}
            yield row | about | {"measure": "head_right", "value": 100 * head["top1"]}


def text_measures(jobs: Sequence[Sequence[Record]], spread: Spread) -> Rows:
    """Yield the measures of each variant's texts by sampler, prompt length, whole length and place in the text.

    A text is paired with the one that full attention wrote after the same prompt in the same job; ``speedup`` is the
    ratio of their milliseconds a token up to that place, prefill left out, and ``speedup_growth`` its gain since a
    fifth of the text. The unit is the prompt, of which there are few: Student's interval. Of several texts of one
    variant after one prompt, equally long, the last job's counts. A run that is not timed has no speeds.

    Args:
        jobs: the records of each job.
        spread: confidence, bootstrap draws and seed.
    """
    observed = pd.DataFrame(_observations(jobs), columns=[*_TEXT_KEYS, "prompt", "value"])
    latest = observed.groupby([*_TEXT_KEYS, "prompt"], sort=False)["value"].last()
    for key, found in latest.groupby(_TEXT_KEYS, sort=False):
        mean, _ = student_interval(float(found.mean()), [found.to_numpy()], spread.confidence)
        row: dict[str, Any] = dict(zip(_TEXT_KEYS, key, strict=True))
        row |= mean._asdict() | {"n": len(found), "unit": TEXT_UNITS[row["measure"]], "source": "texts"}
        if row["unit"] == "share":
            row |= {bound: float(np.clip(row[bound], 0, 1)) for bound in ("low", "high")}
        yield row


def _observations(jobs: Sequence[Sequence[Record]]) -> Iterator[tuple[Any, ...]]:
    """Yield a row a text and measure."""
    for records in jobs:
        written = [r for r in records if r.status == "ok"]
        fulls = {_prompt(r): r.measures for r in written if r.method == REFERENCE_METHOD}
        for r in written:
            cell = r.model, r.task, r.context, r.variant, r.budget, int(r.measures["tokens"])
            for measure, at, value in _of_text(r.measures, fulls.get(_prompt(r))):
                yield *cell, measure, at, r.sample_index, value


def _prompt(record: Record) -> tuple[Any, ...]:
    return record.model, record.task, record.context, record.sample_index


def _of_text(seen: Mapping[str, float], full: Mapping[str, float] | None) -> Iterator[tuple[str, int, float]]:
    """Yield measure, tokens written and value of one text.

    ``alpha`` is the drafts kept a step over the tree's depth, ``beta`` those kept on paths that end in an n-gram.

    Source: TokenSwift (arXiv 2502.18890), equations 4 and 6.
    """
    whole = int(seen["tokens"])
    yield from ((name, whole, seen[name]) for name in _WHOLE_TEXT if name in seen)
    if all(name in seen for name in DISTINCT):
        yield "average_distinct", whole, fmean(seen[name] for name in DISTINCT)
    speedups: dict[int, float] = {}
    for at in sorted(int(name.split("_")[1]) for name in seen if name.startswith("at_") and name.endswith("_steps")):
        tokens, steps, ms = seen[f"at_{at}_tokens"], seen[f"at_{at}_steps"], seen.get(f"at_{at}_ms")
        if seen.get("depth"):
            yield "alpha", at, (tokens - 1 - steps) / (seen["depth"] * steps)
            yield "beta", at, seen[f"at_{at}_ngram_tokens"] / (seen["depth"] * steps)
        yield "tokens_per_step", at, (tokens - 1) / steps
        if ms is None:
            continue
        yield "minutes", at, ms / 60_000
        if full is not None and f"at_{at}_ms" in full:
            plain = full[f"at_{at}_ms"] / (full[f"at_{at}_tokens"] - 1)
            speedups[at] = plain * (tokens - 1) / ms
            yield "speedup", at, speedups[at]
    if {whole, whole // 5} <= speedups.keys():
        yield "speedup_growth", whole, speedups[whole] - speedups[whole // 5]
