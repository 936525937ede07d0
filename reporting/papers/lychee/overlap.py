"""What a head and its namesake one layer below both rank on top: a heat map by layer and head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from longdecode.reporting import wording
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.identity import HUES
from longdecode.reporting.papers.blocks import Block, Compared, Comparison, Picture, Prose
from longdecode.reporting.papers.heat import heat
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.lychee.common import WORDS, hole
from longdecode.reporting.speed.measured import few
from longdecode.reporting.wording import number, short_tokens, slug

COLUMNS = ["model", "task", "context", "k_tokens", "layer", "head_kind", "head", "mean_overlap", "n"]
KINDS = {"kv": "KV heads", "query": "query heads"}
MAX_SIZES = 2


def blocks(inputs: PaperInputs) -> list[Block]:
    """For each model: the maps, and the extremes within one layer beside those in print."""
    words, path = WORDS["overlap"], inputs.folder / "overlap.csv"
    found: list[Block] = [Prose(words["text"].format(what=inputs.published.tables["overlap"].what))]
    table = read_overlap(path)
    if table is None:
        text = words["hole_other"].format(path=path.name) if path.exists() else words["hole"]
        return [*found, _printed(inputs), hole(inputs, text, "overlap")]
    for model in dict.fromkeys(table["model"]):
        mine = table[table["model"] == model]
        found += [Picture(_figure(inputs, str(model), mine)), _extremes(inputs, str(model), mine)]
    return found


def read_overlap(path: Path) -> pd.DataFrame | None:
    """overlap.csv where it is there and has the columns of an overlap measurement."""
    if not path.exists():
        return None
    table = pd.read_csv(path)
    return table if set(COLUMNS) <= set(table.columns) and len(table) else None


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
    return inputs.writer.write(f"paper-lychee-overlap-{slug(model)}", words, panels, data, layout, [])


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


def _extremes(inputs: PaperInputs, model: str, table: pd.DataFrame) -> Comparison:
    """The layer whose heads differ most, as print shows the extremes within one layer; no interval is known."""
    rows = []
    for kind, context, k in _places(table):
        heads = _at(table, kind, context, k).groupby(["layer", "head"])["mean_overlap"].mean().reset_index()
        values = {int(str(layer)): mine["mean_overlap"] for layer, mine in heads.groupby("layer")}
        widest = max(values, key=lambda layer: float(values[layer].max() - values[layer].min()))
        for bound, value in (("lowest", values[widest].min()), ("highest", values[widest].max())):
            printed = inputs.published.figure("overlap", "overlap", bound=bound) if kind == "query" else None
            rows.append(
                Compared(
                    of=[bound, KINDS[kind], f"{k:,} of {context:,}", f"layer {widest}"],
                    published=wording.DASH if printed is None else printed.text,
                    mark="" if printed is None else printed.mark,
                    measured=number(100 * float(value), 0),
                    interval="",
                    verdict="not comparable" if printed is not None else "nothing published",
                    reason=WORDS["overlap"]["reason"] if printed is not None else "",
                )
            )
    caption = f"Overlap within the layer whose heads differ most. {inputs.about(model, None)}"
    return Comparison(caption, ("Head", "Heads", "Top k", "Where"), rows, "%")


def _printed(inputs: PaperInputs) -> Comparison:
    rows = []
    for row in inputs.published.tables["overlap"].rows:
        printed = inputs.published.figure("overlap", "overlap", bound=row["bound"])
        if printed is not None:
            rows.append(Compared([row["bound"]], printed.text, printed.mark, wording.DASH, "", "not measured"))
    return Comparison("In print: extremes within one layer, query heads.", ("Head",), rows, "%")
