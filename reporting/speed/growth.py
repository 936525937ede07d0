"""Report the growth of a step's cost, the break-even sizes, and the stock loop for the record."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from longdecode.reporting import wording
from longdecode.reporting.speed.measured import REFERENCE_METHOD, STEP, STOCK_LOOP, Speed, at
from longdecode.reporting.speed.tables import pair


@dataclass(frozen=True, slots=True)
class Growth:
    """Slopes along one size while the other is held."""

    along: str
    lines: list[dict[str, str]]


def growth_tables(speed: Speed, model: str) -> tuple[list[Growth], list[Growth]]:
    """Return the slopes of a step's time: at the smallest batch and Full's longest context, then elsewhere."""
    growth = speed.growth
    rows = growth[(growth["model"] == model) & (growth["bench"] == "decode") & (growth["stage"] == STEP)]
    place = {label: number for number, label in enumerate(speed.labels)}
    ordered = rows.assign(_place=rows["label"].map(place), _size=rows["budget"].map(wording.budget_order))
    ordered = ordered.sort_values(["fixed", "_place", "_size"], kind="stable")
    first: list[Growth] = []
    rest: list[Growth] = []
    for axis in ("context", "batch"):
        mine = ordered[ordered["axis"] == axis]
        full = mine.loc[mine["label"].map(speed.kind) == REFERENCE_METHOD, "fixed"] if len(mine) else mine["fixed"]
        known = full if len(full) else mine["fixed"]
        main = None if known.empty else known.min() if axis == "context" else known.max()
        for fixed, lines in mine.groupby("fixed"):
            (first if fixed == main else rest).append(_growth(axis, int(str(fixed)), lines))
    return first, rest


def _growth(axis: str, fixed: int, rows: pd.DataFrame) -> Growth:
    at = wording.plural(fixed, "sequence") if axis == "context" else f"{fixed:,} tokens of context"
    unit = "us per 1,024 tokens of context" if axis == "context" else "us per sequence"
    lines = [
        {
            "label": row["label"],
            "budget": wording.budget(row["budget"]),
            "slope": wording.slope(row["slope_us"]),
            "bounds": pair(row["slope_low"], row["slope_high"], wording.slope),
            "intercept": wording.milliseconds(row["intercept_us"]),
            "r2": wording.number(row["r2"], 4) if row["points"] > 2 else wording.DASH,
            "points": wording.tokens(row["points"]),
        }
        for _, row in rows.iterrows()
    ]
    return Growth(f"{unit}, at {at}", lines)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """From which size on each method is faster than Full: a row a method and budget, a column a direction."""

    along: list[str]
    rows: list[tuple[str, str, list[tuple[str, str]]]]


def breakeven_table(speed: Speed, model: str) -> BreakEven | None:
    """Return the context or batch from which on each method is faster than Full; ``None`` where nothing can be told."""
    rows = speed.breakeven[speed.breakeven["model"] == model]
    # A line through one size says nothing.
    rows = rows[[_sizes(speed, row) >= 2 for _, row in rows.iterrows()]]
    words = {"always": "at every size", "never": "at no size", "unknown": "cannot be told"}
    levels = {"always": "shown", "from": "shown", "never": "worse"}
    # A direction in which nothing can be told has no column.
    along = list(dict.fromkeys(_along(row) for _, row in rows[rows["verdict"] != "unknown"].iterrows()))
    found: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for _, row in rows.iterrows():
        unit = "tokens" if row["axis"] == "context" else "sequences"
        text = f"from {wording.tokens(row['value'])} {unit}" if row["verdict"] == "from" else words[row["verdict"]]
        mine = found.setdefault((row["label"], wording.budget(row["budget"])), {})
        mine[_along(row)] = (text, levels.get(row["verdict"], "muted"))
    table = [(*key, [mine.get(name, ("", "muted")) for name in along]) for key, mine in found.items()]
    return BreakEven(along, table) if along else None


def _sizes(speed: Speed, row: pd.Series) -> int:
    """Count the sizes at which a label was timed along the axis of a row of breakeven.csv."""
    other = "batch" if row["axis"] == "context" else "context"
    steps = at(speed.ok(row["model"]), {"label": row["label"], "budget": row["budget"], other: row["fixed"]})
    return int(steps[row["axis"]].nunique())


def stock_notes(speed: Speed, model: str) -> list[str]:
    """Compare our Full with the stock loop, for the record: a sentence for each way of running it."""
    rows = speed.ok(model)
    rows = rows[(rows["subject"] == STOCK_LOOP) & rows["ratio"].notna()]
    found = []
    for label, mine in rows.groupby("label", sort=False):
        parts = []
        for _, row in mine.iterrows():
            times = wording.ratio(1 / row["ratio"])
            bounds = pair(1 / row["ratio_high"], 1 / row["ratio_low"], wording.ratio)
            size = f"{int(row['context']):,} tokens, {wording.plural(int(row['batch']), 'sequence')}"
            parts.append(
                f"{times} {bounds} times as fast at {size} ({wording.milliseconds(row['median_us'])} ms a step)"
            )
        text = f"For the record: beside {label}, a stock loop of transformers, our Full is {'; '.join(parts)}."
        found.append(f"{text} No other ratio is taken against it on this page.")
    return found


def _along(row: pd.Series) -> str:
    held = int(row["fixed"])
    return f"context, batch {held}" if row["axis"] == "context" else f"batch, {wording.short_tokens(held)} context"
