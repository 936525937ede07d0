"""Draw trainings: their curves, and how a learned value spreads over the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from longdecode.reporting import drawing
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.identity import Look
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.sections.heat_maps import cells
from longdecode.reporting.wording import number, plural, slug

MOST_POINTS = 60
BINS = 10


@dataclass(frozen=True, slots=True)
class Run:
    """One training as the figures need it.

    Args:
        name: its folder.
        family: what trainings of several seeds share; they are drawn alike.
        words: family and seed.
        look: how the family is drawn.
        curve: a row a step, with ``step`` and a column for each panel.
        values: rows with ``step`` and ``score`` in [0, 1], for the histograms; may be empty.
    """

    name: str
    family: str
    words: str
    look: Look
    curve: pd.DataFrame
    values: pd.DataFrame


def curves(
    inputs: PaperInputs, model: str, runs: Sequence[Run], columns: Mapping[str, tuple[str, float]], about: str,
    ends: Sequence[str],
) -> Figure:  # fmt: skip
    """Return the figure of curves, a panel for each column.

    Args:
        columns: column of ``curve`` to the panel's title and a factor; the first is drawn on a logarithmic axis.
        about: the caption's end.
        ends: each training's outcome in words.
    """
    data = pd.concat([_thinned(run, list(columns)).assign(model=model) for run in runs])
    looks = {run.family: run.look for run in runs}
    log = next(iter(columns))
    panels = [_curve_panel(looks, data, column, *shown, column == log) for column, shown in columns.items()]
    words = Words("paper_training", about, {"trainings": plural(len(runs), "training"), "readings": "; ".join(ends)})
    name = f"paper-{inputs.spec.method}-training-{slug(model)}"
    layout = Layout("training step", "", wide=4)
    return inputs.writer.write(name, words, panels, data, layout, list(looks.values()))


def _thinned(run: Run, columns: Sequence[str]) -> pd.DataFrame:
    """Return a curve as means over at most ``MOST_POINTS`` stretches of equal length."""
    curve = run.curve
    stretch = np.arange(len(curve)) * min(MOST_POINTS, len(curve)) // max(1, len(curve))
    means = curve.groupby(stretch)[["step", *columns]].mean()
    return means.assign(run=run.name, family=run.family).reset_index(drop=True)


def _curve_panel(
    looks: Mapping[str, Look], data: pd.DataFrame, column: str, title: str, factor: float, log: bool
) -> Callable[[Axes], None]:  # fmt: skip
    def draw(axes: Axes) -> None:
        axes.set_title(title)
        for (family, _), mine in data.groupby(["family", "run"], sort=False):
            look = looks[str(family)]
            axes.plot(mine["step"], factor * mine[column], color=look.colour, linestyle=look.dashes, linewidth=1.1)
        if log and (data[column] > 0).all():
            drawing.log_values(axes, data[column].min(), data[column].max(), lambda value: f"{value:g}")
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))

    return draw


def histograms(inputs: PaperInputs, model: str, runs: Sequence[Run], about: str) -> Figure:
    """Return the figure of one training a family: the share of values in each tenth of the range, step by step.

    The data leave out tenths that hold no value.
    """
    firsts = list({run.family: run for run in reversed(runs)}.values())[::-1]
    data = pd.concat([_binned(run) for run in firsts])
    panels = [_histogram_panel(run, data[data["run"] == run.name]) for run in firsts]
    ends = []
    for run in firsts:
        last = data[(data["run"] == run.name) & (data["step"] == run.values["step"].max())]
        middle = last.loc[(last["from"] > 0.05) & (last["from"] < 0.85), "share"].sum()
        ends.append(f"{run.words}: {number(100 * middle, 0)} % between 0.1 and 0.9 at the last step")
    words = Words("paper_gates", about, {"readings": "; ".join(ends)})
    lines = max(panel_title(run.family).count("\n") for run in firsts) + 1
    layout = Layout("training step", "gate", wide=3, title_lines=lines)
    return inputs.writer.write(f"paper-{inputs.spec.method}-gates-{slug(model)}", words, panels, data, layout, [])


def _binned(run: Run) -> pd.DataFrame:
    rows = []
    for step, mine in run.values.groupby("step"):
        counts, edges = np.histogram(mine["score"].clip(0, 1), bins=BINS, range=(0, 1))
        shares = zip(edges.tolist(), counts / len(mine), strict=False)
        rows += [{"run": run.name, "step": step, "from": low, "share": share} for low, share in shares if share]
    return pd.DataFrame(rows)


def _histogram_panel(run: Run, data: pd.DataFrame) -> Callable[[Axes], None]:
    steps = sorted(set(data["step"]))

    def draw(axes: Axes) -> None:
        axes.set_title(panel_title(run.family))
        columns = zip(data["step"].map(steps.index), data["from"], data["share"], strict=True)
        cells(axes, [(place, low * BINS, share**0.5) for place, low, share in columns], run.look.colour)
        axes.set_xlim(0, len(steps))
        axes.set_ylim(0, BINS)
        axes.grid(visible=False)
        wanted = np.unique(np.linspace(0, len(steps) - 1, 4).round().astype(int))
        axes.xaxis.set_major_locator(FixedLocator([place + 0.5 for place in wanted]))
        names = {place + 0.5: f"{steps[place]:,}" for place in wanted}
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: names.get(value, "")))
        axes.yaxis.set_major_locator(FixedLocator([0, BINS / 2, BINS]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / BINS:g}"))

    return draw


def panel_title(words: str) -> str:
    """Return a panel's title in lines that fit a narrow panel."""
    return "\n".join(wrap(words, 24))
