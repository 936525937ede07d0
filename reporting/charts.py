"""Figures as Vega-Lite specifications, and as pictures for readers without scripts."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from longdecode.reporting import looks
from longdecode.reporting.looks import LIGHT

Spec = dict[str, Any]
VEGA_LITE = "6.4"
_FONT = "Helvetica Neue, Arial, Liberation Sans, sans-serif"
_CONFIG: Spec = {
    "font": _FONT,
    "background": None,
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 13, "titleFontSize": 13, "labelColor": LIGHT["muted"], "titleColor": LIGHT["ink"],
        "titleFontWeight": 600, "gridColor": LIGHT["grid"], "domainColor": LIGHT["line"], "tickColor": LIGHT["line"],
        "labelPadding": 6, "titlePadding": 10, "labelLimit": 240, "tickSize": 4,
    },
    "text": {"fontSize": 13},
    "header": {"labelFontSize": 13, "labelColor": LIGHT["ink"]},
}  # fmt: skip
DASHES: Mapping[str, list[int]] = {
    "solid": [1, 0], "dashed": [6, 4], "dotted": [2, 3], "long": [14, 4], "mixed": [12, 3, 2, 3]
}  # fmt: skip
"""Dashes of lines by name, for those of one colour."""


def family_colour(name: str = "family:N") -> alt.Color:
    """Return the one encoding of a family's colour."""
    domain = [*looks.FAMILIES, "print"]
    return alt.Color(name, legend=None, scale=alt.Scale(domain=domain, range=[LIGHT[f] for f in domain]))


def finished(chart: Any, height: int | alt.Step, width: alt.Step | None = None) -> Spec:
    """Return a chart as wide as its box, or as its columns where their width is given."""
    spec: Spec = chart.properties(width=width or "container", height=height).to_dict(validate=False)
    fitted = {} if width else {"autosize": {"type": "fit-x", "contains": "padding"}}
    return {**spec, **fitted, "config": _CONFIG}


def static(spec: Spec, width: int = 800) -> str:
    """Render a figure as SVG of a fixed width."""
    fixed = json.loads(json.dumps(spec))
    if fixed["width"] == "container":
        fixed["width"] = width
    svg: str = vl_convert.vegalite_to_svg(fixed, vl_version=VEGA_LITE)
    return svg


def dumbbells(rows: pd.DataFrame, title: str, *, log: bool = False) -> Spec:
    """Published (grey) against measured: columns ``name``, ``print``, ``ours``, ``low``, ``high`` and ``family``."""
    rows = rows.assign(bottom=rows.low.fillna(rows.ours), top=rows.high.fillna(rows.ours))
    rows["wrapped"] = [textwrap.wrap(name, 44) for name in rows.name]
    base = alt.Chart(rows)
    y = alt.Y("name:N", sort=None, title=None, axis=None)
    axis = alt.Axis(tickCount=5, format="~f")
    if log:
        ends = [rows[["bottom", "print"]].min().min() / 1.1, rows[["top", "print"]].max().max() * 1.1]
        axis.values = [tick for tick in (0.25, 0.5, 1, 2, 3, 5, 7, 10, 20, 50) if ends[0] <= tick <= ends[1]]
    scale = alt.Scale(type="log", domain=ends, nice=False) if log else alt.Scale(zero=False, nice=True)
    x = alt.X("print:Q", title=title, scale=scale, axis=axis)
    link = base.mark_rule(color=LIGHT["line"], strokeWidth=3).encode(y=y, x=x, x2="ours:Q")
    spread = base.mark_rule(strokeWidth=2).encode(y=y, x=alt.X("bottom:Q"), x2="top:Q", color=family_colour())
    told = {"ours:Q": "Here", "low:Q": "95 % interval, from", "high:Q": "to"}
    tips = [alt.Tooltip("name:N", title="Row"), alt.Tooltip("print:Q", title="Paper")]
    tips += [alt.Tooltip(name, title=words, format=".3~g") for name, words in told.items()]
    printed = base.mark_point(filled=True, size=110, color=LIGHT["print"], opacity=1).encode(y=y, x=x, tooltip=tips)
    ours = base.mark_point(filled=True, size=110, opacity=1).encode(
        y=y, x=alt.X("ours:Q"), color=family_colour(), tooltip=tips
    )
    # Names stand above their rows, so that the plot keeps the width of a phone; there they take two lines.
    names = base.mark_text(
        align="left",
        baseline="bottom",
        lineHeight=14,
        color=LIGHT["ink"],
        text=alt.expr(f"{looks.PHONE} ? datum.wrapped : datum.name"),
        dy=alt.expr(f"{looks.PHONE} ? -9 - 14 * (length(datum.wrapped) - 1) : -9"),
    ).encode(y=y, x=alt.value(0))
    left = rows.head(1).assign(side=lambda row: row.ours < row.print)
    outer = {"bottom": rows[["bottom", "print"]].min(axis=1), "top": rows[["top", "print"]].max(axis=1)}
    left = left.assign(edge=left.bottom.where(left.side, left.top), far=outer["top"].where(left.side, outer["bottom"]))
    words = [
        alt.Chart(left).mark_text(
            baseline="middle",
            fontWeight=600,
            dx=alt.expr(f"datum.side ? {dx} : {-dx}"),
            align=alt.expr(f"datum.side ? '{align}' : '{other}'"),
        )
        for dx, align, other in ((10, "left", "right"), (-10, "right", "left"))
    ]
    grey = words[0].encode(y=y, x=alt.X("far:Q"), text=alt.value("paper"), color=alt.value(LIGHT["print"]))
    beside = words[1].encode(y=y, x=alt.X("edge:Q"), text=alt.value("here"), color=family_colour())
    return finished(alt.layer(link, spread, printed, ours, names, grey, beside), 60 * len(rows))


def lines(rows: pd.DataFrame, x: alt.X, title: str, low: float, tooltip: Sequence[alt.Tooltip]) -> Spec:
    """Lines by ``name``, each named at its last point; columns ``x``, ``y``, ``family`` and ``dash``.

    Columns ``low`` and ``high`` give a line its band.
    """
    banded = "high" in rows
    domain = (low, max(rows.high.max() if banded else rows.y.max(), low + 1e-3))
    ends, room, wrapped = looks.named_ends(rows, domain)
    x["scale"]["range"] = [0, {"expr": f"width - ({looks.PHONE} ? {wrapped:.0f} : {room:.0f})"}]
    scale = alt.Scale(domain=domain, nice=False)
    y = alt.Y("y:Q", title=title, scale=scale)
    base = alt.Chart(rows)
    dash = alt.StrokeDash("dash:N", legend=None, scale=alt.Scale(domain=[*DASHES], range=[*DASHES.values()]))
    bands = [
        base.mark_area(opacity=0.1).encode(
            x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=family_colour(), detail="name:N"
        )
    ]
    line = base.mark_line(strokeWidth=2.2).encode(x=x, y=y, color=family_colour(), strokeDash=dash, detail="name:N")
    tips = [alt.Tooltip("name:N", title="Variant"), *tooltip]
    marks = base.mark_point(filled=True, size=55, opacity=1).encode(x=x, y=y, color=family_colour(), tooltip=tips)
    here: Spec = {
        a: alt.expr(f"{looks.PHONE} ? datum.{b} : datum.{c}")
        for a, b, c in (("text", "wrapped", "name"), ("dy", "dy_wrapped", "dy"))
    }
    names = alt.Chart(ends).mark_text(
        align="left", dx=8, baseline="middle", fontWeight=600, lineHeight=looks.LINE, **here
    )
    names = names.encode(x=x, y=y, color=family_colour())
    return finished(alt.layer(*bands[:banded], line, marks, names), looks.TALL)


def speed_lines(rows: pd.DataFrame, batch: int) -> Spec:
    """Milliseconds a step against context, with the bandwidth bound of full attention dashed."""
    ticks = sorted(set(rows.x))
    x = alt.X(
        "x:Q",
        title=f"Context, tokens (batch {batch})",
        scale=alt.Scale(type="log", base=2, domain=[ticks[0], ticks[-1]], nice=False),
        axis=alt.Axis(
            values=ticks, labelExpr="datum.value >= 1024 ? round(datum.value / 1024) + 'K' : datum.label", **looks.BARE
        ),
    )
    tips = [alt.Tooltip("x:Q", title="Context", format=","), alt.Tooltip("y:Q", title="ms", format=".3f")]
    return lines(rows, x, "Milliseconds a step (down is faster)", 0.0, tips)


def along_lines(rows: pd.DataFrame, bins: int, what: str, unit: str, low: float | None = None) -> Spec:
    """Score along a long answer; the drawing joins neighbouring places into groups of equal size.

    Args:
        rows: as :func:`lines` takes them; bands only where no group has more than one place.
        bins: groups.
        what: title of the places.
        unit: title of the scores.
        low: where the scores' axis begins; their smallest where it is left out.
    """
    last = rows.x.max()
    x = alt.X(
        "x:Q",
        title=what,
        scale=alt.Scale(domain=[1, last], nice=False),
        axis=alt.Axis(grid=False, values=sorted({1, round(last / 2), last})),
    )
    size = max(1, math.ceil(last / bins))
    drawn = (
        rows.assign(group=(rows.x - 1) // size)
        .groupby(["name", "family", "dash", "group"], sort=False)
        .agg(x=("x", "median"), **{name: (name, "mean") for name in ("y", "low", "high") if name in rows})
        .reset_index()
    )
    tips = [alt.Tooltip("x:Q", title="Around place"), alt.Tooltip("y:Q", title=unit, format=".3~g")]
    return lines(drawn, x, unit, drawn.y.min() if low is None else low, tips)


def heat(cells: pd.DataFrame) -> Spec:
    """Smallest budget that holds: columns ``name``, ``column``, ``words``, ``shade`` (heat0 to heat3, open, fails)."""
    fills: Mapping[str, str] = {**{k: LIGHT[k] for k in looks.HEAT}, "open": LIGHT["panel"], "fails": LIGHT["grid"]}
    inks: Mapping[str, str] = {
        k: LIGHT["ground"] if k in ("heat0", "heat1") else LIGHT["ink"] if k.startswith("heat") else LIGHT["muted"]
        for k in fills
    }
    heads = {
        head: " @ ".join(line for part in head.split(" @ ") for line in textwrap.wrap(part, 17))
        for head in cells.column.unique()
    }
    extra = max(text.count(" @ ") for text in heads.values()) - 1
    base = alt.Chart(cells.assign(column=cells.column.map(heads)))
    y = alt.Y("name:N", sort=None, title=None, axis=alt.Axis(domain=False, ticks=False, labelColor=LIGHT["ink"]))
    x = alt.X(
        "column:N",
        sort=None,
        title=None,
        axis=alt.Axis(
            orient="top",
            domain=False,
            ticks=False,
            labelAngle=0,
            labelLimit=110,
            labelPadding=22 + 15 * extra,
            labelExpr="split(datum.label, ' @ ')",
        ),
    )
    shade = alt.Color("shade:N", legend=None, scale=alt.Scale(domain=list(fills), range=list(fills.values())))
    ink = alt.Color("shade:N", legend=None, scale=alt.Scale(domain=list(inks), range=list(inks.values())))
    tips = [
        alt.Tooltip("name:N", title="Method"),
        alt.Tooltip("column:N", title="Task @ context"),
        alt.Tooltip("words:N", title="Smallest budget"),
        alt.Tooltip("n:Q", title="Prompts"),
    ]
    boxes = base.mark_rect(stroke=LIGHT["ground"], strokeWidth=2).encode(x=x, y=y, color=shade, tooltip=tips)
    text = base.mark_text(fontSize=12).encode(x=x, y=y, text="words:N", color=ink)
    return finished(alt.layer(boxes, text).resolve_scale(color="independent"), alt.Step(28), alt.Step(112))
