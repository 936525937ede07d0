"""Show the trained draft heads: what they guess right on unseen books, beside a table of pairs, and their losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from longdecode.reporting import drawing, wording
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.identity import HUES, Look
from longdecode.reporting.papers.blocks import Block, Cells, Compared, Comparison, Picture, Prose, compared
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.tokenswift.tables import PRINTED_MODEL

DRAWN_HEADS = (1, 2, 3)
RANKS = (1, 2, 3)
LOOKS = {
    ("chained", "zero"): Look("chained, zero", HUES[0], "", False, False),
    ("chained", "normal"): Look("chained, normal", HUES[0], "", True, False),
    ("medusa", "zero"): Look("medusa, zero", HUES[1], "", False, False),
}
"""Look of each kind and start; dotted is the released start."""
Trained = Mapping[tuple[str, str, str], Path]
"""Model, kind and start to the folder of a training."""


def heads(inputs: PaperInputs) -> list[Block]:
    """Return the heads' accuracies beside a pair table's, their losses by step, and the last ones beside print."""
    words, found = inputs.words("heads"), _trained(inputs.folder)
    if not found:
        return [Prose(words["text"]), inputs.missing(words["missing"], "heads")]
    columns = [(f"Top {rank}, %", "Pairs, %") for rank in RANKS]
    names = ("Model", "Kind", "Start", "Head", *(name for pair in columns for name in pair))
    return [
        Prose(words["text"]),
        Cells(words["caption"], names, _accuracies(found), frozenset(range(3, len(names)))),
        Picture(_curves(inputs, found, words["about"])),
        Comparison(words["losses"], ("Heads of", "Head"), _last_losses(inputs, found), "nats"),
    ]


def _trained(folder: Path) -> dict[tuple[str, str, str], Path]:
    found = {}
    for path in sorted((folder / "heads").glob("*/*/*/accuracy.csv")):
        model, kind, start = path.parts[-4:-1]
        found[model, kind, start] = path.parent
    return found


def _accuracies(found: Trained) -> list[list[str]]:
    rows = []
    for of, folder in found.items():
        for row in pd.read_csv(folder / "accuracy.csv").to_dict("records"):
            shown = [row[name] for rank in RANKS for name in (f"top{rank}", f"pair_top{rank}")]
            rows.append([*of, str(row["head"]), *(wording.number(100 * value, 1) for value in shown)])
    return rows


def _last_losses(inputs: PaperInputs, found: Trained) -> list[Compared]:
    losses = []
    for (model, kind, start), folder in found.items():
        last = pd.read_csv(folder / "curve.csv").iloc[-1]
        for head in DRAWN_HEADS if kind == "chained" else ():
            printed = inputs.published.figure("heads", f"head_{head}", model=PRINTED_MODEL)
            loss = wording.number(last[f"loss_{head}"], 3)
            of = [f"{model}, {start}", str(head)]
            losses.append(compared(of, printed, loss, "", "other model", "muted", "other tokens"))
    return losses


def _curves(inputs: PaperInputs, found: Trained, about: str) -> Figure:
    """Return the figure of losses, a row of panels a model and a panel a head."""
    tables = [
        pd.read_csv(folder / "curve.csv").assign(model=model, kind=kind, start=start)
        for (model, kind, start), folder in found.items()
    ]
    data = pd.concat(tables, ignore_index=True)
    panels = [
        _panel(data[data["model"] == model], model, head) for model in data["model"].unique() for head in DRAWN_HEADS
    ]
    shown = [look for of, look in LOOKS.items() if any(of == key[1:] for key in found)]
    layout, words = Layout("training step", "nats", wide=3), Words("paper_heads", about, {})
    return inputs.writer.write("paper-tokenswift-heads", words, panels, data, layout, shown)


def _panel(data: pd.DataFrame, model: str, head: int) -> Callable[[Axes], None]:
    losses = data[[f"loss_{each}" for each in DRAWN_HEADS]].to_numpy(dtype=float)

    def draw(axes: Axes) -> None:
        axes.set_title(f"{model}, head {head}")
        for (kind, start), mine in data.groupby(["kind", "start"], sort=False):
            look = LOOKS[str(kind), str(start)]
            axes.plot(mine["step"], mine[f"loss_{head}"], color=look.colour, linestyle=look.dashes, linewidth=1.1)
        drawing.log_values(axes, float(losses.min()), float(losses.max()), lambda value: f"{value:g}")
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))

    return draw
