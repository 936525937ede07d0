"""Figures of trainings: curves, gates over the steps, and the role maps side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from longdecode.reporting import drawing
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.identity import INK, Look
from longdecode.reporting.papers.blocks import Block, Picture
from longdecode.reporting.papers.heat import cell, heat
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.lychee.common import WORDS, hole
from longdecode.reporting.papers.lychee.runs import KIND_HUES, Training, family_looks, trainings
from longdecode.reporting.wording import listing, number, plural, slug

MOST_POINTS = 120
MOST_MAPS = 12
BINS = 10
CURVES = {
    "distill": ("distance to the teacher", 1.0),
    "expected_heads": ("heads expected to be open", 1.0),
    "retrieval_heads": ("heads over the threshold", 1.0),
    "gates_undecided": ("undecided gates, %", 100.0),
}


def blocks(inputs: PaperInputs) -> list[Block]:
    """For each model with trainings: curves, gate histograms, role maps; else the command that trains."""
    found = trainings(inputs.folder)
    if not found:
        return [hole(inputs, WORDS["heads"]["hole_runs"], "train")]
    blocks_: list[Block] = []
    for model in dict.fromkeys(training.model for training in found):
        mine = [training for training in found if training.model == model]
        blocks_ += [Picture(draw(inputs, model, mine)) for draw in (_curves, _histograms, _maps)]
    return blocks_


def _curves(inputs: PaperInputs, model: str, found: Sequence[Training]) -> Figure:
    looks = family_looks(found)
    data = pd.concat([_thinned(training) for training in found])
    panels = [_curve_panel(looks, data, column) for column in CURVES]
    ends = "; ".join(
        f"{t.words}: {t.curve['retrieval_heads'].iloc[-1]:g} heads over the threshold, "
        f"{number(100 * t.curve['gates_undecided'].iloc[-1], 0)} % undecided"
        for t in found
    )
    fields = {"trainings": plural(len(found), "training"), "readings": ends}
    words, layout = Words("paper_training", _about(model, found), fields), Layout("training step", "", wide=4)
    name = f"paper-lychee-training-{slug(model)}"
    return inputs.writer.write(name, words, panels, data, layout, list(looks.values()))


def _thinned(training: Training) -> pd.DataFrame:
    """A training's curve as means over at most ``MOST_POINTS`` stretches of equal length."""
    curve = training.curve
    stretch = np.arange(len(curve)) * min(MOST_POINTS, len(curve)) // max(1, len(curve))
    means = curve.groupby(stretch)[["step", *CURVES]].mean()
    named = means.assign(run=training.name, family=training.family, seed=training.seed, model=training.model)
    return named.reset_index(drop=True)


def _curve_panel(looks: Mapping[str, Look], data: pd.DataFrame, column: str) -> Callable[[Axes], None]:
    title, factor = CURVES[column]

    def draw(axes: Axes) -> None:
        axes.set_title(title)
        for (family, _), mine in data.groupby(["family", "run"], sort=False):
            look = looks[str(family)]
            axes.plot(mine["step"], factor * mine[column], color=look.colour, linestyle=look.dashes, linewidth=1.1)
        if column == "distill" and (data[column] > 0).all():
            drawing.log_values(axes, data[column].min(), data[column].max(), lambda value: f"{value:g}")
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))

    return draw


def _histograms(inputs: PaperInputs, model: str, found: Sequence[Training]) -> Figure:
    """One training of each family: the share of gates in each tenth of the range, step by step."""
    firsts = list({training.family: training for training in reversed(found)}.values())[::-1]
    data = pd.concat([_binned(training) for training in firsts])
    panels = [_histogram_panel(training, data[data["run"] == training.name]) for training in firsts]
    ends = []
    for training in firsts:
        last = data[(data["run"] == training.name) & (data["step"] == training.gates["step"].max())]
        middle = last.loc[(last["from"] > 0.05) & (last["from"] < 0.85), "share"].sum()
        ends.append(f"{training.words}: {number(100 * middle, 0)} % between 0.1 and 0.9 at the last step")
    fields = {"readings": "; ".join(ends)}
    lines = max(_title(training.family).count("\n") for training in firsts) + 1
    words = Words("paper_gates", _about(model, firsts), fields)
    layout = Layout("training step", "gate", wide=3, title_lines=lines)
    return inputs.writer.write(f"paper-lychee-gates-{slug(model)}", words, panels, data, layout, [])


def _binned(training: Training) -> pd.DataFrame:
    gates = training.gates[training.gates["layer"] > 0]
    rows = []
    for step, mine in gates.groupby("step"):
        counts, edges = np.histogram(mine["score"].clip(0, 1), bins=BINS, range=(0, 1))
        for low, count in zip(edges, counts, strict=False):
            share = count / len(mine)
            rows.append({"run": training.name, "family": training.family, "step": step, "from": low, "share": share})
    return pd.DataFrame(rows)


def _histogram_panel(training: Training, data: pd.DataFrame) -> Callable[[Axes], None]:
    colour = KIND_HUES.get(training.kind, INK)
    steps = sorted(set(data["step"]))

    def draw(axes: Axes) -> None:
        axes.set_title(_title(training.family))
        for place, step in enumerate(steps):
            for _, row in data[data["step"] == step].iterrows():
                cell(axes, place, row["from"] * BINS, float(row["share"]) ** 0.5, colour)
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


def _maps(inputs: PaperInputs, model: str, found: Sequence[Training]) -> Figure:
    shown = found[:MOST_MAPS]
    rows = [
        {
            "run": training.name, "family": training.family, "seed": training.seed, "layer": layer, "kv_head": head,
            "score": training.roles.scores[layer][head], "retrieval": role,
        }
        for training in shown
        for layer, roles in enumerate(training.roles.roles)
        for head, role in enumerate(roles)
    ]  # fmt: skip
    several = {t.family for t in found if sum(other.family == t.family for other in found) > 1}
    titles = [_title(training.words if training.family in several else training.family) for training in shown]
    panels = [_map_panel(training, title) for training, title in zip(shown, titles, strict=True)]
    counts = [f"{training.words}: {sum(map(sum, training.roles.roles))} retrieval heads" for training in shown]
    fields = {"left_out": f" {len(found) - len(shown)} more are in the data." if len(found) > len(shown) else "",
              "readings": "; ".join(counts)}  # fmt: skip
    words = Words("paper_roles", _about(model, shown), fields)
    height = 0.12 * max(training.roles.kv_heads for training in shown) + 0.35
    layout = Layout(
        "layer", "KV head", wide=3, panel_in=height, title_lines=max(title.count("\n") for title in titles) + 1
    )
    return inputs.writer.write(f"paper-lychee-roles-{slug(model)}", words, panels, pd.DataFrame(rows), layout, [])


def _map_panel(training: Training, title: str) -> Callable[[Axes], None]:
    scores = np.array(training.roles.scores, dtype=np.float64)
    low, high = float(scores.min()), float(scores.max())
    colour = KIND_HUES.get(training.kind, INK)

    def draw(axes: Axes) -> None:
        axes.set_title(title)
        heat(axes, (scores - low) / (high - low or 1.0), colour)
        for layer, row in enumerate(training.roles.roles):
            for head, role in enumerate(row):
                if role:
                    axes.add_patch(
                        Rectangle((layer + 0.1, head + 0.1), 0.8, 0.8, fill=False, edgecolor=INK, linewidth=1.0)
                    )

    return draw


def _title(words: str) -> str:
    """A panel's title in lines that fit a narrow panel."""
    return "\n".join(wrap(words, 24))


def _about(model: str, found: Sequence[Training]) -> str:
    sets = sorted({training.data for training in found if training.data})
    return f"Model: {model}. Training data: {listing(sets)}."
