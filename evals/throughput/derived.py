"""Derive tables from speed.csv: growth, break-even, breakdown, correction, ratios to baselines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from longdecode.evals.throughput.statistics import fit_line

GROWTH_COLUMNS = (
    "bench", "model", "subject", "label", "stage", "budget", "op_sizes", "axis", "fixed", "points", "slope_us",
    "slope_low", "slope_high", "intercept_us", "r2",
)  # fmt: skip
BREAKEVEN_COLUMNS = ("model", "label", "budget", "axis", "fixed", "value", "verdict")
BREAKDOWN_COLUMNS = ("model", "label", "budget", "context", "batch", "part", "us")
CORRECTION_COLUMNS = (
    "model", "label", "budget", "context", "batch", "mode", "period", "step_us", "correction_us", "per_token_us",
    "ratio", "ratio_low", "ratio_high",
)  # fmt: skip
BASELINE_COLUMNS = ("model", "context", "batch", "label", "budget", "baseline", "ratio", "low", "high", "how")
BASELINES = ("full", "hf_full", "hf_full_static")
"""The baselines of every label: our own full attention, and the stock loop with each of its caches."""
_CELL = ["model", "label", "budget", "context", "batch"]
_SERIES = ["bench", "model", "subject", "label", "stage", "budget", "op_sizes"]
_AXES = (("context", "batch"), ("batch", "context"))
_TOKENS_PER_STEP = {"context": 1024, "batch": 1}


def growth_table(speed: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Fit median time against context and against batch by least squares.

    ``slope_us`` is microseconds per 1,024 tokens of context, or per sequence; ``fixed`` is the other axis's value.
    """
    timed = speed[(speed["n"] > 0) & (speed["bench"] != "ceiling")]
    rows: list[dict[str, Any]] = []
    for axis, other in _AXES:
        for key, found in timed.groupby([*_SERIES, other], sort=False, dropna=False):
            series = found.sort_values(axis)
            if len(series) < 2:
                continue
            x = (series[axis].astype(float) / _TOKENS_PER_STEP[axis]).tolist()
            line = fit_line(x, series["median_us"].astype(float).tolist(), confidence)
            rows.append(
                dict(zip([*_SERIES, "fixed"], key, strict=True))
                | {
                    "axis": axis,
                    "points": line.points,
                    "slope_us": line.slope,
                    "slope_low": line.slope_low,
                    "slope_high": line.slope_high,
                    "intercept_us": line.intercept,
                    "r2": line.r2,
                }
            )
    return pd.DataFrame(rows, columns=list(GROWTH_COLUMNS))


def breakeven_table(speed: pd.DataFrame) -> pd.DataFrame:
    """Return the context and the batch from which on a method's whole step is faster than our own full attention's.

    Faster means that the interval of the ratio lies above 1. ``always`` and ``never`` speak of the sizes measured;
    ``from`` gives the first measured size from which it stays faster; anything else, and fewer than two sizes, is
    ``unknown``.
    """
    steps = speed[
        (speed["bench"] == "decode") & (speed["stage"] == "step") & (speed["n"] > 0) & (speed["reference"] == "full")
    ]
    steps = steps[steps["label"] != "full"]
    rows = []
    for axis, other in _AXES:
        for key, found in steps.groupby(["model", "label", "budget", other], sort=False):
            series = found.sort_values(axis)
            verdict, value = _verdict(
                [bool(low > 1) for low in series["ratio_low"]], [int(size) for size in series[axis]]
            )
            rows.append(
                dict(zip(["model", "label", "budget", "fixed"], key, strict=True))
                | {"axis": axis, "value": value, "verdict": verdict}
            )
    frame = pd.DataFrame(rows, columns=list(BREAKEVEN_COLUMNS))
    frame["value"] = frame["value"].astype("Int64")
    return frame


def breakdown_table(speed: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of a step's time, as differences between steps with stages left out.

    ``weights`` is the projections alone; ``rest`` the step without attention less those; ``attention`` the step whose
    selection is given less the one without attention; ``selection`` what is left. Times are taken through their pairs
    (full's median over the ratio), so that slow drift between them cancels. A small part may still come out below zero:
    that is the noise of a difference.
    """
    decode = speed[(speed["bench"] == "decode") & (speed["n"] > 0)]
    rows = [
        {"model": model, "label": label, "budget": budget, "context": context, "batch": batch, "part": part, "us": us}
        for (model, context, batch), place in decode.groupby(["model", "context", "batch"], sort=False)
        for label, budget, parts in _parts(place)
        for part, us in parts.items()
    ]
    return pd.DataFrame(rows, columns=list(BREAKDOWN_COLUMNS))


def correction_table(speed: pd.DataFrame) -> pd.DataFrame:
    """Return the time that Cache Correction adds to a token: a correction's time over its period.

    ``per_token_us = step + (correction - replaced) / period``, where a rewrite replaces nothing and a dense step the
    step itself. Times are taken through their pairs, as in the breakdown; ``ratio`` is Full's step over
    ``per_token_us``, its bounds those of step and correction added in quadrature.
    """
    decode = speed[(speed["bench"] == "decode") & (speed["n"] > 0) & speed["ratio"].notna()]
    steps = {tuple(row[name] for name in _CELL): row for _, row in decode[decode["stage"] == "step"].iterrows()}
    rows = []
    for _, row in decode[decode["stage"] == "correction"].iterrows():
        cell = {name: row[name] for name in _CELL}
        step = steps.get(tuple(cell.values()))
        full = steps.get((row["model"], "full", "full", row["context"], row["batch"]))
        if step is None or full is None:
            continue
        params = json.loads(row["params"])
        mode, period = params["correction"], int(params["correction_period"])
        share = 1 - (mode == "dense_step") / period
        time = share / step["ratio"] + 1 / row["ratio"] / period
        up, down = (
            math.hypot(share * (1 / step[end] - 1 / step["ratio"]), (1 / row[end] - 1 / row["ratio"]) / period)
            for end in ("ratio_low", "ratio_high")
        )
        base = float(full["median_us"])
        rows.append(
            cell
            | {"mode": mode, "period": period, "step_us": base / step["ratio"], "correction_us": base / row["ratio"]}
            | {"per_token_us": base * time, "ratio": 1 / time}
            | {"ratio_low": 1 / (time + up), "ratio_high": 1 / (time - down)}
        )
    return pd.DataFrame(rows, columns=list(CORRECTION_COLUMNS))


def baselines_table(speed: pd.DataFrame, correction: pd.DataFrame) -> pd.DataFrame:
    """Return each baseline's time over a label's at the same context and batch.

    Against our own full attention the ratio is that of the pairs (``paired``). The stock loops are paired with full,
    too: against them a ratio is the quotient of two (``through full``), its bounds those of both, added in quadrature
    on a logarithmic scale. A label that corrects its cache is charged for it; without that time it has no ratio.
    """
    steps = speed[(speed["bench"] == "decode") & (speed["stage"] == "step") & (speed["n"] > 0) & speed["ratio"].notna()]
    corrects = {tuple(row) for row in speed.loc[speed["stage"] == "correction", _CELL].itertuples(index=False)}
    corrected = {tuple(row[name] for name in _CELL): row for _, row in correction.iterrows()}
    rows: list[tuple[Any, ...]] = []
    for place, found in steps.groupby(["model", "context", "batch"], sort=False):
        stock = {row["label"]: _bounds(row) for _, row in found.iterrows() if row["label"] in BASELINES[1:]}
        for _, row in found[~found["label"].isin(BASELINES[1:])].iterrows():
            cell, is_full = tuple(row[name] for name in _CELL), row["label"] == "full"
            charge = ""
            if cell in corrects:
                charge = ", with correction" if cell in corrected else ", correction not timed"
            mine = (1.0, 1.0, 1.0) if is_full else _bounds(corrected.get(cell) if charge else row)
            if not is_full:
                rows.append((*place, row["label"], row["budget"], "full", *mine, "paired" + charge))
            how = "paired" if is_full else "through full" + charge
            for baseline in BASELINES[1:]:
                if baseline in stock:
                    rows.append((*place, row["label"], row["budget"], baseline, *_quotient(mine, stock[baseline]), how))
    return pd.DataFrame(rows, columns=list(BASELINE_COLUMNS))


_Bounds = tuple[float, float, float]


def _bounds(row: pd.Series | None) -> _Bounds:
    """Ratio and interval of a row; no number where there is none."""
    if row is None:
        return math.nan, math.nan, math.nan
    return float(row["ratio"]), float(row["ratio_low"]), float(row["ratio_high"])


def _quotient(mine: _Bounds, theirs: _Bounds) -> _Bounds:
    """The quotient of two ratios that were taken independently, with bounds."""
    value = mine[0] / theirs[0]
    down = math.hypot(math.log(mine[0] / mine[1]), math.log(theirs[2] / theirs[0]))
    up = math.hypot(math.log(mine[2] / mine[0]), math.log(theirs[0] / theirs[1]))
    return value, value * math.exp(-down), value * math.exp(up)


def _parts(place: pd.DataFrame) -> Iterator[tuple[str, str, dict[str, float]]]:
    """The parts of every method's step at one context and batch; nothing where the common stages were not timed."""
    by_stage = {str(stage): found for stage, found in place.groupby("stage")}
    if not {"step", "no_attention", "projections"} <= set(by_stage):
        return
    full = by_stage["step"][by_stage["step"]["label"] == "full"]
    if full.empty:
        return
    base = float(full["median_us"].iloc[0])
    bare = next(us for _, _, us in _times(by_stage["no_attention"], base))
    weights = next(us for _, _, us in _times(by_stage["projections"], base))
    unselected = {
        (label, budget): us for label, budget, us in _times(by_stage.get("no_selection", full.iloc[:0]), base)
    }
    for label, budget, whole in _times(by_stage["step"][by_stage["step"]["subject"] != "hf_full"], base):
        given = unselected.get((label, budget), whole)
        parts = {"weights": weights, "selection": whole - given, "attention": given - bare, "rest": bare - weights}
        yield label, budget, parts


def _times(found: pd.DataFrame, base: float) -> Iterator[tuple[str, str, float]]:
    """Label, budget and time of each row: full's median over the row's ratio; full's own is its median."""
    for label, budget, ratio in zip(found["label"], found["budget"], found["ratio"], strict=True):
        yield str(label), str(budget), base if label == "full" else base / float(ratio)


def _verdict(faster: list[bool], sizes: list[int]) -> tuple[str, int | None]:
    if len(sizes) < 2:
        return "unknown", None
    if all(faster):
        return "always", None
    if not any(faster):
        return "never", None
    first = faster.index(True)
    return ("from", sizes[first]) if all(faster[first:]) else ("unknown", None)
