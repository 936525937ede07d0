"""Collect what the speed page, the front page and the method pages show of times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from longdecode.evals.records import SpeedRecord
from longdecode.reporting import wording
from longdecode.reporting.figure import Figure, FigureWriter
from longdecode.reporting.speed import growth, parts, steps, tables
from longdecode.reporting.speed.measured import STEP_BENCHES, STOCK_LOOP, Speed, common_context

PROBES = {
    "torch_sum": "torch's sum",
    "torch_flash": "torch's flash attention",
    "longdecode_linear": "our LM head's projection",
    "longdecode": "our dense attention",
}


@dataclass(frozen=True, slots=True)
class StepSection:
    """One model's part of the speed page."""

    model: str
    words: str
    figures: list[Figure]
    breakdown: Figure | None
    every: list[tables.SpeedTable]
    stages: tables.SpeedTable | None
    start: tables.SpeedTable | None
    slopes: list[growth.Growth]
    more_slopes: list[growth.Growth]
    breakeven: growth.BreakEven | None
    stock: list[str]


@dataclass(frozen=True, slots=True)
class KernelSection:
    """One shape's part of the kernel bench."""

    model: str
    figure: Figure | None
    ops: list[tables.SpeedTable]


@dataclass(frozen=True, slots=True)
class Headline:
    """A model's steps at the largest context that all methods have in common."""

    model: str
    words: str
    tokens: int
    batch: str
    lines: list[tables.Line]


def speed_page(
    speed: Speed,
    writer: FigureWriter,
    name: Callable[[str], str],
    main: Speed,
) -> dict[str, Any]:
    """Return everything the template ``speed.html`` shows.

    Args:
        speed: what was timed.
        writer: where figures go.
        name: a model's name in words.
        main: the same without ablations, for figures.
    """
    return {
        "speed": facts(speed, name),
        "sections": [_steps(speed, main, writer, model, name) for model in speed.models],
        "kernels": [_kernels(speed, writer, model) for model in kernel_models(speed)],
        "probes": _probes(speed),
        "speed_holes": tables.holes(speed),
        "disturbed": _disturbed(speed),
    }


def facts(speed: Speed, name: Callable[[str], str]) -> dict[str, Any]:
    """Return the summary above every table: device, ceiling, sizes, samples."""
    steps_ = speed.table[speed.table["bench"].isin(STEP_BENCHES)]
    ceiling, clocks = speed.ceiling(), speed.clocks()
    ran = speed.table[speed.table["status"] == "ok"]
    return {
        "devices": speed.devices,
        "ceiling": None if ceiling is None else (wording.read_rate(ceiling.gb_per_s), _probe(ceiling.probe)),
        "models": [name(model) for model in speed.named],
        "read": bool((steps_["bench"] == "own_choices").any()),
        "random": bool((steps_["weights"] == "random").any()),
        "labels": speed.labels,
        "stock": [label for label in speed.labels if speed.kind(label) == STOCK_LOOP],
        "contexts": [wording.short_tokens(int(c)) for c in sorted(set(steps_["context"]))],
        "batches": [str(int(b)) for b in sorted(set(steps_["batch"]))],
        "budgets": [wording.budget(text) for text in _budgets(steps_)],
        "samples": f"{int(speed.table['n'].sum() + speed.table['disturbed'].sum()):,}",
        "disturbed": f"{int(speed.table['disturbed'].sum()):,}",
        "clocks": clocks,
        "unwatched": (int(ran["sm_clock_low_mhz"].isna().sum()), len(ran)),
    }


def headlines(speed: Speed, name: Callable[[str], str]) -> list[Headline]:
    """Return, for the front page, each model's step times and speedups at its main budget."""
    found = []
    for model in speed.models:
        place = common_context(speed, model)
        if place is None:
            continue
        context, batch = place
        rows = speed.ok(model)
        rows = rows[(rows["context"] == context) & (rows["batch"] == batch) & (rows["subject"] != STOCK_LOOP)]
        rows = rows[rows["budget"].isin(["full", speed.main_budget(model)])]
        size = wording.plural(batch, "sequence")
        lines = tables.decode_lines(rows)
        if len(lines) > 1:  # Full alone tells nothing of methods
            found.append(Headline(model, name(model), context, size, lines))
    return found


def method_sections(
    speed: Speed, writer: FigureWriter | None, label: str, name: Callable[[str], str]
) -> list[tuple[str, Figure | None, list[tables.SpeedTable]]]:
    """Return, for a method's page, its figure (unless there is no writer for it) and its steps, a model each."""
    found = []
    for model in speed.models:
        if label in set(speed.decode(model)["label"]):
            words = about(speed, model, name)
            figure = None if writer is None else steps.one_method(speed, writer, model, label, words)
            found.append((model, figure, tables.decode_tables(speed, model, label)))
    return found


def about(speed: Speed, model: str, name: Callable[[str], str]) -> str:
    """Return the end of every caption: the model, in words that say whose weights, and the device."""
    rows = speed.table[speed.table["model"] == model]
    return f"Model: {name(model)}. Device: {wording.listing(_set(rows['device']))}."


def kernel_models(speed: Speed) -> list[str]:
    """Return the shapes that kernels were timed at."""
    return list(dict.fromkeys(speed.table.loc[speed.table["bench"] == "kernel", "model"]))


def provenance(speed: Speed, records: Iterable[SpeedRecord]) -> dict[str, list[tuple[str, int]]]:
    """Return machine, code and versions behind the times, each value with the number of rows that carry it."""
    table = speed.table
    clocks = table[["sm_clock_low_mhz", "sm_clock_high_mhz"]].dropna().astype(int)
    seen = {
        "device": Counter(table["device"].dropna()),
        "code revision": Counter(),
        "SM clock while timing (MHz), lowest": Counter(f"{low:,}" for low in clocks["sm_clock_low_mhz"]),
        "SM clock while timing (MHz), highest": Counter(f"{high:,}" for high in clocks["sm_clock_high_mhz"]),
    }
    for record in records:
        origin = record.provenance
        for name, value in {
            "code revision": origin.revision + ("+dirty" if origin.dirty else ""),
            "number format": origin.dtype,
            "lower clocks, as the driver said": record.throttle,
            **dict(sorted(origin.versions.items())),
        }.items():
            if value is not None:
                seen.setdefault(name, Counter())[value] += 1
    return {
        name: sorted((str(value), count) for value, count in counts.items()) for name, counts in seen.items() if counts
    }


def _steps(speed: Speed, main: Speed, writer: FigureWriter, model: str, name: Callable[[str], str]) -> StepSection:
    words = about(speed, model, name)
    drawn = (steps.latency, steps.speedup_by_context, steps.speedup_by_batch)
    figures = [figure for draw in drawn if (figure := draw(main, writer, model, words)) is not None]
    return StepSection(
        model,
        name(model),
        figures,
        parts.breakdown(main, writer, model, words),
        tables.decode_tables(speed, model),
        tables.stage_table(speed, model),
        tables.start_table(speed, model),
        *growth.growth_tables(speed, model),
        growth.breakeven_table(speed, model),
        growth.stock_notes(speed, model),
    )


def _kernels(speed: Speed, writer: FigureWriter, model: str) -> KernelSection:
    devices = speed.table.loc[speed.table["bench"] == "kernel", "device"]
    words = f"Shapes of {model.removesuffix('-shape')}, random values. Device: {wording.listing(_set(devices))}."
    return KernelSection(model, parts.bandwidth(speed, writer, model, words), tables.kernel_tables(speed, model))


def _probes(speed: Speed) -> list[dict[str, str]]:
    rows = speed.table[speed.table["bench"] == "ceiling"]
    return [
        {
            "label": _probe(row["label"]),
            "size": tables.size_of(row) if row["context"] > 0 else "",
            "rate": wording.read_rate(row["gb_per_s"]) if row["status"] == "ok" else row["status"],
            "us": wording.microseconds(row["median_us"]) if row["status"] == "ok" else "",
            "bytes": wording.megabytes(row["bytes_min"]),
        }
        for _, row in rows.iterrows()
    ]


def _probe(label: str) -> str:
    return PROBES.get(label, label)


def _disturbed(speed: Speed) -> list[dict[str, str]]:
    """The timings with disturbed samples, the worst first."""
    rows = speed.table[speed.table["disturbed"] > 0]
    ordered = rows.assign(_share=rows["disturbed"] / (rows["n"] + rows["disturbed"])).sort_values(
        "_share", ascending=False, kind="stable"
    )
    return [
        {
            "what": tables.name_of(row),
            "size": tables.size_of(row),
            "count": f"{int(row['disturbed'])} of {int(row['n'] + row['disturbed'])}",
        }
        for _, row in ordered.iterrows()
    ]


def _budgets(steps_: pd.DataFrame) -> list[str]:
    return sorted(set(steps_.loc[steps_["status"] == "ok", "budget"]) - {"full"}, key=wording.budget_order)


def _set(values: Iterable[Any]) -> list[str]:
    return sorted({str(value) for value in values if not pd.isna(value)})
