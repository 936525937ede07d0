"""Draw figures along a text: accuracy by question, loss by position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from longdecode.evals import stats
from longdecode.evals.records import Record
from longdecode.reporting import drawing
from longdecode.reporting.figure import Figure, FigureWriter, Layout, Words
from longdecode.reporting.identity import Look
from longdecode.reporting.results import REFERENCE_METHOD, Results
from longdecode.reporting.wording import budget, is_fraction, scale, slug, unit_label

MAX_PANELS = 4
_BINS = 9
_BINNED_FROM = 18
_RESAMPLES = 1000


def along_generation(results: Results, writer: FigureWriter, model: str, suite: str, about: str) -> Figure | None:
    """Draw accuracy by question or step, for the suite's task with most of them, at its longest context."""
    curves = results.along[(results.along["model"] == model) & (results.along["suite"] == suite)]
    task = _fixed_length_task(curves)
    if task is None:
        return None
    curves = curves[curves["task"] == task]
    curves = curves[curves["context"] == curves["context"].max()]
    context, length = int(curves["context"].iloc[0]), int(curves["index"].max())
    width = math.ceil(length / _BINS) if length >= _BINNED_FROM else 1
    binned = pd.DataFrame(_bins(results, model, task, context, width))
    budgets = _selected(curves)
    panels = [_along_panel(results, writer.looks, curves, binned, text, width) for text in budgets]
    data = binned[binned["budget"].isin([*budgets, *_reference_budgets(results, curves)])]
    if width > 1:
        data = data.assign(mean_of=width, questions=[_questions(curves, row, width) for _, row in data.iterrows()])
    fields = {
        "name": task,
        "context": f"{context:,}",
        "length": str(length),
        "drawn": f"Lines are means of {width} questions, dots single questions. " if width > 1 else "",
    }
    words = Words("along_generation", about, {**_spread(results, curves), **fields})
    layout = Layout("question or step, in the order written", "right (%)", wide=4)
    return writer.write(f"along-{slug(model)}-{slug(suite)}", words, panels, data, layout)


def loss_by_position(results: Results, writer: FigureWriter, model: str, task: str, about: str) -> Figure | None:
    """Draw loss by stretch of the text at the longest context."""
    curves = results.loss[(results.loss["model"] == model) & (results.loss["task"] == task)]
    if curves.empty:
        return None
    curves = curves[curves["context"] == curves["context"].max()]
    context, budgets = int(curves["context"].iloc[0]), _selected(curves)
    panels = [_loss_panel(results, writer.looks, curves, text) for text in budgets]
    unit = str(curves["unit"].iloc[0])
    fields = {"name": task, "context": f"{context:,}", "unit": unit}
    words = Words("loss_by_position", about, {**_spread(results, curves), **fields})
    layout = Layout("position (stretch of the scored text, 1 = first)", unit_label(unit), wide=4)
    data = curves[curves["budget"].isin([*budgets, *_reference_budgets(results, curves)])]
    return writer.write(f"position-{slug(model)}-{slug(task)}", words, panels, data, layout)


def _fixed_length_task(curves: pd.DataFrame) -> str | None:
    """The task with the longest answers among those whose samples all have answers of one length."""
    found: list[tuple[int, str]] = []
    for task, rows in curves.groupby("task"):
        even = (rows.groupby(["method", "budget", "context"])["n"].nunique() == 1).all()
        if even and rows["index"].max() > 2:
            found.append((int(rows["index"].max()), str(task)))
    return max(found)[1] if found else None


def _selected(curves: pd.DataFrame) -> list[str]:
    """At most ``MAX_PANELS`` budgets, the smallest and the largest among them."""
    swept = curves[curves["budget"] != "full"].sort_values("budget_tokens")
    budgets = list(dict.fromkeys(swept["budget"]))
    if len(budgets) <= MAX_PANELS:
        return budgets or ["full"]
    return [budgets[round(i)] for i in np.linspace(0, len(budgets) - 1, MAX_PANELS)]


def _reference_budgets(results: Results, curves: pd.DataFrame) -> set[str]:
    return set(curves.loc[curves["method"].map(results.kind) == REFERENCE_METHOD, "budget"])


def _bins(results: Results, model: str, task: str, context: int, width: int) -> list[dict[str, object]]:
    """Means over ``width`` neighbouring questions; a sample's questions stay together when resampled."""
    cells: dict[tuple[str, str], list[Record]] = {}
    for r in results.records:
        if (r.model, r.task, r.context, r.status) == (model, task, context, "ok") and r.parts:
            cells.setdefault((r.variant, r.budget), []).append(r)
    rows: list[dict[str, object]] = []
    for (label, text), found in cells.items():
        for start in range(0, len(found[0].parts or ()), width):
            parts = [np.asarray((r.parts or [])[start : start + width], dtype=np.float64) for r in found]
            marks = stats.Scores(
                np.array([part.mean() for part in parts]),
                np.arange(len(parts)),
                np.array([len(part) for part in parts]),
            )
            rng = stats.generator(found[0].seed, "bin", model, task, context, label, text, start)
            estimate = stats.mean_estimate(marks, results.confidence, _RESAMPLES, rng)
            identity = {name: getattr(found[0], name) for name in ("suite", "metric", "unit", "budget_tokens")}
            rows.append(
                identity
                | {"task": task, "model": model, "method": label, "budget": text, "context": context, "n": len(found)}
                | {"index": start + (len(parts[0]) + 1) / 2}
                | {"value": estimate.value, "low": estimate.low, "high": estimate.high}
            )
    return rows


def _questions(curves: pd.DataFrame, row: pd.Series, width: int) -> str:
    """Return the single questions of a mean, in order, with spaces between."""
    mine = (curves["method"] == row["method"]) & (curves["budget"] == row["budget"])
    near = curves[mine & ((curves["index"] - 1) // width == (row["index"] - 1) // width)].sort_values("index")
    return " ".join(f"{value:.6g}" for value in near["value"])


def _along_panel(
    results: Results, looks: dict[str, Look], curves: pd.DataFrame, binned: pd.DataFrame, text: str, width: int
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title(f"budget {budget(text)}")
        length = int(curves["index"].max())
        axes.set_xlim(1 - 0.03 * length, length * 1.03)
        axes.xaxis.set_major_locator(FixedLocator(_question_ticks(length)))
        for place, (label, rows) in enumerate(_lines(results, binned, text)):
            look = looks[label]
            if width > 1:
                dots = curves[(curves["method"] == label) & (curves["budget"] == rows["budget"].iloc[0])]
                axes.plot(dots["index"], 100 * dots["value"], ".", color=look.colour, markersize=2, alpha=0.3)
            shift = (place - 2) * 0.006 * length
            drawing.line(axes, look, list(rows["index"] + shift), rows, 100.0, place=place)
        drawing.score_axis(axes, True)

    return draw


def _loss_panel(results: Results, looks: dict[str, Look], curves: pd.DataFrame, text: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title(f"budget {budget(text)}")
        for place, (label, rows) in enumerate(_lines(results, curves, text)):
            shift = (place - 2) * 0.04
            factor = scale(str(rows["unit"].iloc[0]))
            drawing.line(axes, looks[label], list(rows["index"] + shift), rows, factor, place=place)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        drawing.score_axis(axes, is_fraction(str(curves["unit"].iloc[0])), drawing.limits_of(curves))

    return draw


def _lines(results: Results, curves: pd.DataFrame, text: str) -> Sequence[tuple[str, pd.DataFrame]]:
    """Full, which has one budget, and the other methods at this one."""
    chosen = curves[(curves["budget"] == text) | curves["method"].map(lambda m: results.kind(m) == REFERENCE_METHOD)]
    return [
        (label, chosen[chosen["method"] == label].sort_values("index"))
        for label in results.labels
        if label in set(chosen["method"])
    ]


def _spread(results: Results, curves: pd.DataFrame) -> dict[str, str]:
    samples = f"n = {int(curves['n'].max()):,} samples"
    return {"samples": samples, "coverage": f"{100 * results.confidence:g} %"}


def _question_ticks(length: int) -> list[int]:
    step = next((s for s in (1, 2, 5, 10, 15, 20, 50) if length / s <= 6), 100)
    return [1, *range(step if step > 1 else 2, length + 1, step)]
