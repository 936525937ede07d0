"""Draw figures 1 and 3, print's curves and this run's side by side, against the tokens written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from longdecode.evals.records import Record
from longdecode.reporting import drawing
from longdecode.reporting.figure import Figure, Layout, Panel, Words
from longdecode.reporting.identity import HUES, INK, Look
from longdecode.reporting.papers.blocks import Block, Picture
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.tokenswift.texts import fulls, longest, standing, value, written

_FULL = Look("Full", INK, "s", False, True)
_HERE, _FEW = (Look("", HUES[n], marker, False, False) for n, marker in ((0, "o"), (1, "D")))


def minutes_drawn(inputs: PaperInputs) -> list[Block]:
    """Return figure 1 as a chart: minutes along the text, in print and here; nothing where no text is so long."""
    stands, rows = inputs.words("tables")["default"], []
    for row in inputs.published.rows("figure_1"):
        rows += [("print", name, row["generated"], row.get(column))
                 for name, column in (("Full", "autoregressive"), ("TokenSwift", "tokenswift"))]  # fmt: skip
    for name, label in (("Full", "full"), ("TokenSwift", stands["label"])):
        own = _whole(inputs, label, stands)
        for past in dict.fromkeys(row["generated"] for row in inputs.published.rows("figure_1")):
            seen = value(own, fulls(inputs.folder), "minutes", past)
            rows += [] if seen is None else [("here", name, past, seen.mean)]
    looks = {"Full": _FULL, "TokenSwift": replace(_HERE, label="TokenSwift")}
    return _drawn(inputs, rows, looks, {"print": "minutes, in print", "here": "minutes, here"}, "minutes")


def ngrams_drawn(inputs: PaperInputs) -> list[Block]:
    """Return figure 3 as a chart: alpha, beta and speedup with and without n-grams; hollow and dotted is print's."""
    words = inputs.words("tables")
    known, rows, looks = words["figure_3"]["rows"], [], {}
    for number, base in zip(known, (_HERE, _FEW), strict=True):
        label = known[number]["label"]
        looks[label] = replace(base, label=f"{number} n-grams")
        looks[f"{label} print"] = Look(f"{number}, in print", base.colour, base.marker, True, False)
        own = _whole(inputs, label, words["default"])
        for column in ("alpha", "beta", "speedup"):
            for row in inputs.published.rows("figure_3", ngrams=int(number)):
                seen = value(own, fulls(inputs.folder), column, row["generated"])
                rows.append((column, f"{label} print", row["generated"], row.get(column)))
                rows += [] if seen is None else [(column, label, row["generated"], seen.mean)]
    titles = {"alpha": "alpha", "beta": "beta", "speedup": "times Full's speed"}
    return _drawn(inputs, rows, looks, titles, "ngrams")


def _whole(inputs: PaperInputs, label: str | Sequence[str], stands: Mapping[str, object]) -> list[Record]:
    """Return the longest texts of a label, as the tables take them, on the model that wrote most."""
    own = standing(written(inputs.folder, task=stands["sampler"], context=stands["prompt"]), label)
    most = [r for r in own if r.measures["tokens"] == longest(own)]
    return [r for r in most if r.model == most[0].model]


def _drawn(
    inputs: PaperInputs,
    rows: Sequence[tuple[str, str, int, float | None]],
    looks: Mapping[str, Look],
    titles: Mapping[str, str],
    kind: str,
) -> list[Block]:
    data = pd.DataFrame(
        [(*row[:3], float(row[3])) for row in rows if row[3] is not None], columns=["panel", "line", "tokens", "value"]
    )
    panels = [_panel(data[data["panel"] == name], looks, title) for name, title in titles.items()]
    measured = {name for name in looks if not name.endswith(" print")}
    here = data[data["line"].isin(measured) & (data["panel"] != "print")]
    if len(here) < 2 * len(titles):
        return []
    figure: Figure = inputs.writer.write(
        f"paper-tokenswift-{kind}",
        Words(f"paper_tokenswift_{kind}", "", {}),
        panels,
        data,
        Layout("tokens written", wide=3, narrow=1),
        [look for name, look in looks.items() if name in set(data["line"])],
    )
    return [Picture(figure)]


def _panel(data: pd.DataFrame, looks: Mapping[str, Look], title: str) -> Panel:
    def draw(axes: Axes) -> None:
        axes.set_title(title)
        axes.set_ylim(0, 1.08 * float(data["value"].max()))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: f"{tokens / 1000:.0f}K"))
        for name, look in looks.items():
            mine = data[data["line"] == name].sort_values("tokens")
            if len(mine):
                shown = pd.DataFrame(dict.fromkeys(("value", "low", "high"), mine["value"]))
                drawing.line(axes, look, list(mine["tokens"]), shown, 1.0)

    return draw
