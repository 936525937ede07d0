"""Tables that follow from speed.csv: how cost grows, from where a method pays, and what a step's time is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from longdecode.evals.throughput.statistics import fit_line

GROWTH_COLUMNS = (
    "bench", "model", "subject", "label", "stage", "budget", "axis", "fixed", "points", "slope_us", "slope_low",
    "slope_high", "intercept_us", "r2",
)  # fmt: skip
BREAKEVEN_COLUMNS = ("model", "label", "budget", "axis", "fixed", "value", "verdict")
BREAKDOWN_COLUMNS = ("model", "label", "budget", "context", "batch", "part", "us")
_SERIES = ["bench", "model", "subject", "label", "stage", "budget"]
_AXES = (("context", "batch"), ("batch", "context"))
_TOKENS_PER_STEP = {"context": 1024, "batch": 1}


def growth_table(speed: pd.DataFrame, confidence: float) -> pd.DataFrame:
    """Median time against context and against batch, fitted by least squares.

    ``slope_us`` is microseconds per 1,024 tokens of context, or per sequence; ``fixed`` is the other axis's value.
    """
    timed = speed[(speed["n"] > 0) & (speed["bench"] != "ceiling")]
    rows: list[dict[str, Any]] = []
    for axis, other in _AXES:
        for key, found in timed.groupby([*_SERIES, other], sort=False):
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
    """From which context, and from which batch, a method's whole step is faster than our own full attention's.

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
    """What a step's time is made of, by differences between steps with stages left out.

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
