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


def breakeven_table(speed: Speed, model: str) -> list[dict[str, str]]:
    """Return the context or batch from which on each method is faster than Full, where two sizes or more were timed."""
    rows = speed.breakeven[speed.breakeven["model"] == model]
    found = []
    for _, row in rows.iterrows():
        if _sizes(speed, row) < 2:
            continue
        unit = "tokens of context" if row["axis"] == "context" else "sequences"
        words = {
            "always": "at every size timed",
            "never": "at no size timed",
            "unknown": "cannot be told from the sizes timed",
        }
        value = wording.tokens(row["value"])
        found.append(
            {
                "label": row["label"],
                "budget": wording.budget(row["budget"]),
                "along": _along(row),
                "verdict": f"from {value} {unit}" if row["verdict"] == "from" else words[row["verdict"]],
                "level": {"always": "shown", "from": "shown", "never": "worse"}.get(row["verdict"], "muted"),
            }
        )
    return found


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
