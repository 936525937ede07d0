"""Draw NOSA's figures: trainings of its forks, overlap by layer, loss along a continuation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from longdecode.reporting.figure import Figure, FigureWriter, Layout, Words
from longdecode.reporting.identity import INK, MUTED, Look

BOUND = 0.75
"""Share of its blocks that a step of NOSA is bound to have read in the step before, where no block begins."""
_CURVES = {
    "prose": ("loss on prose, nats", 1.0),
    "answers": ("loss on answers, nats", 1.0),
    "gamma": ("overlap, %", 100.0),
}
_STRETCHES = 2
"""Neighbouring stretches of a continuation that are drawn as one point."""


def training_figure(writer: FigureWriter, curves: Mapping[str, pd.DataFrame]) -> Figure:
    """Return the curves of all forks on held-out documents, by training step.

    Args:
        writer: where the figure goes.
        curves: by fork, the rows of its curve.csv.
    """
    data = pd.concat([curve.assign(fork=name) for name, curve in curves.items()], ignore_index=True)
    data = data[["fork", "step", *_CURVES]]
    looks = _fork_looks(writer, list(curves))
    panels = [_lines(data, column, *shown, looks) for column, shown in _CURVES.items()]
    words, layout = Words("paper_forks", "", {}), Layout("training step", "", wide=3)
    return writer.write("paper-nosa-training", words, panels, data, layout, list(looks.values()))


def _fork_looks(writer: FigureWriter, names: Sequence[str]) -> dict[str, Look]:
    """Return a look for each fork: its attention's, dotted and dashed for other forms of the head."""
    looks, spare = {}, Look("", INK, "o", False, False)
    for name in names:
        own = max((kind for kind in writer.looks if name == kind or name.startswith(f"{kind}_")), key=len, default="")
        look = replace(writer.looks.get(own, spare), label=name)
        if name != own:
            look = replace(look, hollow=name.endswith("_s_dma_head"), turn=look.turn + 1)
        looks[name] = look
    return looks


def _lines(
    data: pd.DataFrame, column: str, title: str, factor: float, looks: Mapping[str, Look]
) -> Callable[[Axes], None]:  # fmt: skip
    def draw(axes: Axes) -> None:
        axes.set_title(title)
        for name, mine in data.dropna(subset=[column]).groupby("fork", sort=False):
            look = looks[str(name)]
            axes.plot(mine["step"], factor * mine[column], color=look.colour, linestyle=look.dashes, linewidth=1.2)
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))

    return draw


def layers_figure(writer: FigureWriter, found: pd.DataFrame) -> Figure:
    """Return the overlap by layer, the spread over heads and the bound.

    Args:
        writer: where the figure goes.
        found: rows of locality.csv.
    """
    by_head = found.groupby(["label", "layer", "head"], sort=False)["gamma"].mean().reset_index()
    data = by_head.groupby(["label", "layer"], sort=False)["gamma"].agg(["mean", "min", "max"]).reset_index()
    data = data.rename(columns={"label": "method", "mean": "gamma", "min": "lowest_head", "max": "highest_head"})
    spare = Look("", INK, "o", False, False)
    looks = {
        str(name): replace(writer.looks.get(str(name), spare), label=str(name)) for name in data["method"].unique()
    }

    def draw(axes: Axes) -> None:
        for name, mine in data.groupby("method", sort=False):
            look = looks[str(name)]
            axes.fill_between(
                mine["layer"], 100 * mine["lowest_head"], 100 * mine["highest_head"], color=look.colour, alpha=0.18,
                linewidth=0,
            )  # fmt: skip
            axes.plot(mine["layer"], 100 * mine["gamma"], color=look.colour, linestyle=look.dashes)
        axes.axhline(100 * BOUND, color=MUTED, linestyle=":", linewidth=1.0)
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))

    words, layout = Words("paper_layers", "", {}), Layout("layer", "% of a step's blocks", wide=1, panel_in=2.0)
    return writer.write("paper-nosa-layers", words, [draw], data, layout, list(looks.values()))


def along_figure(writer: FigureWriter, data: pd.DataFrame, about: str, fields: Mapping[str, str]) -> Figure:
    """Return the losses over the full fork's along a continuation, methods that a fork was trained for and others.

    Args:
        writer: where the figure goes.
        data: columns ``fork``, ``method``, ``kind`` (a panel each), ``position``, ``loss_over_full_fork``.
        about: the caption's end, with the names of ``fields`` in braces.
        fields: what fills them.
    """
    stretch = data.groupby(["kind", "fork", "method"], sort=False).cumcount() // _STRETCHES
    keys = [data["kind"], data["fork"], data["method"], stretch.rename("stretch")]
    thinned = data.groupby(keys, sort=False)[["position", "loss_over_full_fork"]].mean().reset_index()
    thinned = thinned.drop(columns="stretch")
    low, high = thinned["loss_over_full_fork"].min(), thinned["loss_over_full_fork"].max()

    def panel(kind: str) -> Callable[[Axes], None]:
        def draw(axes: Axes) -> None:
            axes.set_title(kind)
            for name, mine in thinned[thinned["kind"] == kind].groupby("method", sort=False):
                look = writer.looks[str(name)]
                axes.plot(
                    mine["position"], mine["loss_over_full_fork"], color=look.colour, linestyle=look.dashes,
                    marker=look.marker, markerfacecolor=look.face, markersize=3.5,
                )  # fmt: skip
            axes.axhline(0, color=INK, linestyle="--", linewidth=0.9)
            axes.set_ylim(min(low, 0) - 0.005, high + 0.005)
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))

        return draw

    panels = [panel(str(kind)) for kind in thinned["kind"].unique()]
    words = Words("paper_along", about.format(**fields), {})
    return writer.write("paper-nosa-along", words, panels, thinned, Layout("generated tokens", "nats a token", wide=2))
