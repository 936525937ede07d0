"""Draw heat maps by layer and head, and the part on what neighbouring layers' heads share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import FixedLocator, FuncFormatter
from matplotlib.transforms import Affine2D
from numpy.typing import NDArray

from longdecode.reporting import wording
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.identity import HUES, INK, MUTED
from longdecode.reporting.papers.blocks import Block, Comparison, Picture, Prose, compared
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.printed import printed_only
from longdecode.reporting.speed.measured import few
from longdecode.reporting.wording import number, short_tokens, slug

COLUMNS = ["model", "task", "context", "k_tokens", "layer", "head_kind", "head", "mean_overlap", "n"]
KINDS = {"kv": "KV heads", "query": "query heads"}
MAX_SIZES = 2
SHADES = 32
"""Steps of opacity that a map tells apart; an eye sees fewer."""


def cells(axes: Axes, found: Iterable[tuple[float, float, float]], colour: str) -> None:
    """Draw unit squares, one path a shade.

    Args:
        found: lower left corner and value of each; a square is as opaque as its value in [0, 1], none is drawn for 0.
    """
    shades: dict[int, list[Path]] = {}
    for x, y, value in found:
        if shade := round(SHADES * min(1.0, value)):
            shades.setdefault(shade, []).append(Path.unit_rectangle().transformed(Affine2D().translate(x, y)))
    for shade, squares in sorted(shades.items()):
        path = Path.make_compound_path(*squares)
        axes.add_patch(PathPatch(path, facecolor=colour, alpha=shade / SHADES, linewidth=0))


def heat(axes: Axes, values: NDArray[np.float64], colour: str) -> None:
    """A map of ``values`` ``[columns, rows]`` in [0, 1]; NaN stays empty. Columns and rows are numbered from 0."""
    columns, rows = values.shape
    places = [(x, y) for x in range(columns) for y in range(rows) if np.isfinite(values[x, y])]
    cells(axes, [(x, y, float(values[x, y])) for x, y in places], colour)
    axes.set_xlim(0, columns)
    axes.set_ylim(0, rows)
    axes.grid(visible=False)
    colour_bar(axes, colour)
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
        step = next(step for step in (1, 2, 4, 8, 16, 32, 64) if count / step <= 8)
        axis.set_major_locator(FixedLocator([place + 0.5 for place in range(0, count, step)]))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value - 0.5:.0f}"))


def colour_bar(axes: Axes, colour: str, steps: int = 8) -> None:
    """Draw beside a map what its shades mean, from 0 to 1."""
    for step in range(steps):
        shade = (step + 1) / steps
        bar = Rectangle((1.015, step / steps), 0.02, 1 / steps, facecolor=colour, alpha=shade, linewidth=0)
        bar.set(transform=axes.transAxes, clip_on=False)
        axes.add_artist(bar)
    for value, align in ((0, "bottom"), (1, "top")):
        axes.text(1.045, value, str(value), transform=axes.transAxes, size=9, color=MUTED, va=align)


def outlined(axes: Axes, cells: Iterable[tuple[int, int]]) -> None:
    """Outline cells of a map, given by column and row."""
    for x, y in cells:
        axes.add_patch(Rectangle((x + 0.1, y + 0.1), 0.8, 0.8, fill=False, edgecolor=INK, linewidth=1.0))


@dataclass(frozen=True, slots=True)
class Overlap:
    """Fill the part on the overlap of selections between layers, from overlap.csv.

    Args:
        part: key of its words and name of its published table, with the key ``bound``.
    """

    part: str

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return, for each model, the maps, and the extremes within one layer beside those in print."""
        words, path = inputs.words(self.part), inputs.folder / "overlap.csv"
        found: list[Block] = [Prose(words["text"].format(what=inputs.published.tables[self.part].what))]
        table = pd.read_csv(path) if path.exists() else pd.DataFrame()
        if table.empty or not set(COLUMNS) <= set(table.columns):
            text = words["missing_other"].format(path=path.name) if path.exists() else words["missing"]
            return [*found, printed_only(inputs.published, self.part), inputs.missing(text, "overlap")]
        for model, mine in table.groupby("model", sort=False):
            found += [Picture(_figure(inputs, str(model), mine)), self._extremes(inputs, str(model), mine)]
        return found

    def _extremes(self, inputs: PaperInputs, model: str, table: pd.DataFrame) -> Comparison:
        """Return the layer whose heads differ most, as print shows the extremes within one layer."""
        rows = []
        for kind, context, k in _places(table):
            heads = _at(table, kind, context, k).groupby(["layer", "head"])["mean_overlap"].mean().reset_index()
            values = {int(str(layer)): mine["mean_overlap"] for layer, mine in heads.groupby("layer")}
            widest = max(values, key=lambda layer: float(values[layer].max() - values[layer].min()))
            for bound, value in (("lowest", values[widest].min()), ("highest", values[widest].max())):
                printed = inputs.published.figure(self.part, "overlap", bound=bound) if kind == "query" else None
                of = [bound, KINDS[kind], f"{k:,} of {context:,}", f"layer {widest}"]
                verdict = "not comparable" if printed else "nothing published"
                reason = inputs.words(self.part)["reason"] if printed else ""
                rows.append(compared(of, printed, number(100 * float(value), 0), "", verdict, "muted", reason))
        caption = f"Overlap within the layer whose heads differ most. {inputs.about(model, None)}"
        return Comparison(caption, ("Head", "Heads", "Top k", "Where"), rows, "%")


def _figure(inputs: PaperInputs, model: str, table: pd.DataFrame) -> Figure:
    places = _places(table)
    data = pd.concat([_at(table, *place) for place in places])
    panels = [_panel(_at(table, *place), place) for place in places]
    parts = []
    for place in places:
        values = _at(table, *place)["mean_overlap"]
        parts.append(
            f"{KINDS[place[0]]}, top {place[2]:,} of {place[1]:,}: {number(100 * values.min(), 0)} to "
            f"{number(100 * values.max(), 0)} %, mean {number(100 * values.mean(), 0)} %"
        )
    fields = {"readings": "; ".join(parts), "n": f"n = {int(data['n'].max()):,}"}
    heads = int(data["head"].max()) + 1
    tasks = wording.listing(sorted(set(map(str, data["task"]))))
    words = Words("paper_overlap", f"Task: {tasks}. {inputs.about(model, None)}", fields)
    layout = Layout("upper layer", "head", wide=2, narrow=1, panel_in=max(1.0, min(2.6, 0.11 * heads + 0.5)))
    return inputs.writer.write(f"paper-{inputs.spec.method}-overlap-{slug(model)}", words, panels, data, layout, [])


def _places(table: pd.DataFrame) -> list[tuple[str, int, int]]:
    """Kinds of heads, and for each the longest context at its smallest and largest k."""
    context = int(table["context"].max())
    sizes = few(sorted(set(table.loc[table["context"] == context, "k_tokens"])), MAX_SIZES)
    return [(kind, context, int(k)) for kind in KINDS for k in sizes if len(_at(table, kind, context, int(k)))]


def _at(table: pd.DataFrame, kind: str, context: int, k: int) -> pd.DataFrame:
    return table[(table["head_kind"] == kind) & (table["context"] == context) & (table["k_tokens"] == k)]


def _panel(rows: pd.DataFrame, place: tuple[str, int, int]) -> Callable[[Axes], None]:
    kind, context, k = place
    values = np.full((int(rows["layer"].max()) + 1, int(rows["head"].max()) + 1), np.nan)
    for (layer, head), mine in rows.groupby(["layer", "head"]):
        values[int(str(layer)), int(str(head))] = float(mine["mean_overlap"].mean())

    def draw(axes: Axes) -> None:
        axes.set_title(f"{KINDS[kind]}, top {k:,} of {short_tokens(context)}")
        heat(axes, values, HUES[2])

    return draw
