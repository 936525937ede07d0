"""Choose what pages recommend, from verdicts and measured speeds alone, and draw the figure of loss against speed.

What is not proven is never called the best.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import altair as alt
import pandas as pd

from longdecode.reporting import looks, wording
from longdecode.reporting.charts import Spec, family_colour, finished
from longdecode.reporting.looks import LIGHT
from longdecode.reporting.runs import REFERENCE, Run, each, groups, top

_LOSS_AXES: Mapping[str, tuple[tuple[float, float], list[float], str, str]] = {
    "points": ((-3.0, 105.0), [0, 2, 5, 10, 20, 40, 60, 80, 100], "Points lost against Full", ".1f"),
    "nats": ((-0.01, 0.6), [0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5], "Nats lost against Full", ".3f"),
}
"""By unit: domain, ticks, title and format of a loss."""
PLACE = ["run", "model", "context", "batch"]
VARIANT = ["variant", "budget_tokens"]
FEW = 16
"""Units below which an interval is too narrow to exclude a variant."""
NEEDED = 300
"""Prompts a task that decide at a margin of 2 points where at most 3 % of the answers differ."""


def loss_unit(unit: str) -> str:
    """Return the axis that a unit of losses stands on."""
    return "nats" if unit.startswith("nats") else "points"


def tradeoff(unit: str) -> Spec:
    """Speed against loss, one line a variant over its budgets; data sets are filled in by view."""
    domain, ticks, title, form = _LOSS_AXES[unit]
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[0, 3], nice=False),
        title="Times as fast as Full (right is faster)",
        axis=alt.Axis(labelExpr="datum.label + '\u00d7'", tickCount=alt.expr(f"{looks.PHONE} ? 4 : 7"), **looks.BARE),
    )
    style: Spec = {
        "scale": alt.Scale(type="pow", exponent=0.5, domain=list(domain), reverse=True, nice=False, clamp=True),
        "title": f"{title} (up is better)",
        "axis": alt.Axis(values=ticks),
    }
    y = alt.Y("y:Q", **style)
    hover = alt.selection_point(name="hover", fields=["title"], on="pointerover", clear="pointerout", empty=True)
    dim = alt.when(hover).then(alt.value(1)).otherwise(alt.value(0.18))

    # Each layer states the scales: Vega-Lite would widen them to what a layer without them holds, and to zero.
    def of(name: str) -> alt.Chart:
        return alt.Chart(alt.NamedData(name=name))

    band = of("band").mark_rect(color=LIGHT["band"]).encode(y=alt.Y("low:Q", **style), y2="high:Q")
    words = (
        of("band")
        .mark_text(align="right", baseline="top", y=7, dx=-6, x="width", color=LIGHT["selection"])
        .encode(text="words:N")
    )
    one = of("one").mark_rule(strokeDash=[5, 4], color=LIGHT["muted"]).encode(x=x)
    one_words = (
        of("one")
        .mark_text(align="center", baseline="bottom", y=-5, color=LIGHT["muted"], text="1\u00d7 = speed of Full")
        .encode(x=x)
    )
    stair: Spec = {"interpolate": "step-before", "strokeJoin": "round", "strokeCap": "round"}
    steps = of("front").mark_line(strokeWidth=9, opacity=0.16, color=LIGHT["ink"], **stair)
    steps = steps.encode(x=x, y=y, order="order:Q")
    lines = of("points").mark_line(strokeWidth=2)
    lines = lines.encode(x=x, y=y, color=family_colour(), detail="title:N", order="budget:Q", opacity=dim)
    faint = alt.when(hover).then(alt.value(0.4)).otherwise(alt.value(0.08))
    spread = of("points").mark_rule(strokeWidth=1.5, clip=True)
    spread = spread.encode(x=x, y=alt.Y("low:Q", **style), y2="high:Q", color=family_colour(), opacity=faint)
    marked = alt.Scale(domain=list(looks.SHAPES), range=list(looks.SHAPES.values()))
    shape = alt.Shape("family:N", legend=None, scale=marked)
    tooltip = [
        alt.Tooltip("title:N", title="Variant"),
        alt.Tooltip("budget:Q", title="Budget, tokens", format=","),
        alt.Tooltip("x:Q", title="Times Full's speed", format=".2f"),
        alt.Tooltip("y:Q", title=title, format=form),
        alt.Tooltip("low:Q", title="95 % interval, from", format=form),
        alt.Tooltip("high:Q", title="to", format=form),
        alt.Tooltip("verdict:N", title="Verdict"),
        alt.Tooltip("n:Q", title="Prompts"),
    ]
    marks = (
        of("points")
        .mark_point(filled=True, stroke=LIGHT["ground"], strokeWidth=1.2, size=95)
        .encode(x=x, y=y, color=family_colour(), shape=shape, opacity=dim, tooltip=tooltip)
        .add_params(hover)
    )
    beside: Spec = {name: alt.expr(f"datum.{name}") for name in ("align", "dx", "dy")}
    names = of("labels").mark_text(fontWeight=600, baseline="middle", **beside)
    names = names.encode(x=x, y=y, text="text:N", color=family_colour(), opacity=dim)
    ring = of("chosen").mark_point(size=420, strokeWidth=2, color=LIGHT["ink"]).encode(x=x, y=y)
    return finished(alt.layer(band, words, one, one_words, steps, spread, lines, ring, marks, names), 430)


def short_title(title: str) -> str:
    """Return a title as a label beside a mark, where the full one finds no room."""
    return title.removeprefix("Full attention, ").removesuffix(" (KIVI)")


def tradeoff_view(rows: pd.DataFrame, chosen: Choice) -> Spec:
    """Return the data sets of one view of the trade-off: rows of one run, model, context, batch and task."""
    unit = loss_unit(rows.unit.iloc[0])
    domain = _LOSS_AXES[unit][0]
    x = (min(0.9, math.floor(rows.speed.min() * 10 - 1) / 10), math.ceil(rows.speed.max() * 10 + 2) / 10)
    margin = float(rows.margin.iloc[0])
    points = [
        {
            "title": r.title, "family": r.family, "budget": int(r.budget_tokens), "x": round(r.speed, 3),
            "y": round(r.loss, 4), "low": round(r.loss_low, 3), "high": round(r.loss_high, 3),
            "verdict": r.verdict or "says nothing", "n": int(r.n),
        }
        for r in rows.sort_values("budget_tokens").pipe(each)
    ]  # fmt: skip
    best = [{"x": 1.0, "y": 0.0}] + [{"x": round(r.speed, 3), "y": round(r.loss, 4)} for r in front(rows).pipe(each)]
    paths = {p["title"]: [(q["x"], q["y"]) for q in points if q["title"] == p["title"]] for p in points}
    picked = {(chosen.first.title, int(chosen.first.budget_tokens))} if len(chosen.rows) else set()
    on_front = {(p["x"], p["y"]) for p in best}
    order = sorted(
        paths,
        key=lambda title: (
            title not in {t for t, _ in picked},
            not on_front & set(paths[title]),
            min(y for _, y in paths[title]),
        ),
    )
    families = dict(zip(rows.title, rows.family, strict=True))
    placed: dict[str, list[Spec]] = {}
    for size in looks.SIZES:
        canvas = looks.Canvas(size, x, domain, [*paths.values(), [(1, 0)]])
        found = [("Full", "reference", canvas.place("Full", [(1, 0)]))]
        found += [(title, families[title], canvas.place(short_title(title), paths[title][::-1])) for title in order]
        placed[size] = [{"title": title, "family": family, **place} for title, family, place in found if place]
    words = f"within {wording.number(margin, 'points') if unit == 'points' else margin} {unit}".replace(".0 ", " ")
    return {
        "unit": unit,
        "x": x,
        "labels": placed,
        "data": {
            "points": points,
            "front": [p | {"order": i} for i, p in enumerate(best)],
            "one": [{"x": 1}],
            "band": [{"low": domain[0], "high": margin, "words": words}],
            "chosen": [p for p in points if (p["title"], p["budget"]) in picked],
        },
    }


def filled(spec: Spec, view: Spec, size: str = "wide") -> Spec:
    """Return the trade-off with the data of a view; the page's script does the same."""
    out: Spec = json.loads(json.dumps(spec))
    out["datasets"] = view["data"] | {"labels": view["labels"][size]}
    for layer in out["layer"]:
        if scale := layer.get("encoding", {}).get("x", {}).get("scale"):
            scale["domain"] = view["x"]
    return out


@dataclass(frozen=True)
class Choice:
    """The variant to take at one model, context and batch.

    ``state`` is ``proven`` (within the margin on every suite), ``open`` (no loss proven, none excluded either) or
    ``none`` (every faster variant is worse on some task). ``rows`` are the chosen variant's, one a task; ``others`` are
    further candidates, each faster than the one before and with a larger loss.
    """

    state: Literal["proven", "open", "none"]
    rows: pd.DataFrame
    others: Sequence[pd.DataFrame] = ()

    @property
    def first(self) -> pd.Series:
        """The row that has what all rows of the variant share."""
        return self.rows.iloc[0]

    @property
    def prompts(self) -> tuple[int, int]:
        """The fewest and the most prompts a task."""
        return int(self.rows.n.min()), int(self.rows.n.max())


def choose(rows: pd.DataFrame) -> Choice:
    """Choose among the variants of one place that are faster than Full.

    Of those within the margin on every suite, the fastest. Where there is none, of those without a proven loss whose
    intervals reach the margin, the one whose largest loss, in margins, is smallest; faster ones follow as candidates.

    Args:
        rows: joined rows of one run, model, context and batch. Tasks that say nothing have an empty verdict and no say.
    """
    telling = rows[(rows.verdict != "") & (rows.family != "reference") & (rows.speed > 1)]
    tasks = telling.groupby(["suite", "task"]).ngroups
    parts = [part for _, part in groups(telling, VARIANT) if len(part) == tasks]
    proven = [part for part in parts if (part.verdict == "within").all()]
    if proven:
        return Choice("proven", max(proven, key=_speed))
    reaching = [
        part for part in parts if ((part.verdict != "worse") & ((part.loss_low <= part.margin) | (part.n < FEW))).all()
    ]
    candidates = sorted(reaching, key=lambda part: (largest_loss(part), -_speed(part)))
    leading: list[pd.DataFrame] = []
    for part in candidates:
        if not leading or _speed(part) > _speed(leading[-1]):
            leading.append(part)
    return Choice("open", leading[0], leading[1:3]) if leading else Choice("none", telling.iloc[:0])


def largest_loss(part: pd.DataFrame) -> float:
    """Return the largest loss of a variant's tasks, in margins."""
    return float((part.loss / part.margin).max())


def _speed(part: pd.DataFrame) -> float:
    return float(part.speed.iloc[0])


def fastest(rows: pd.DataFrame) -> pd.Series | None:
    """Return the fastest variant of a place, on the task on which it loses most; none where Full is fastest."""
    faster = rows[(rows.speed > 1) & (rows.family != "reference") & (rows.unit == "points")]
    if faster.empty:
        return None
    tasks = faster.groupby(VARIANT, dropna=False).speed.transform("size")
    mine = faster[tasks == tasks.max()]  # one that was scored on fewer may lose more on the others
    mine = mine[mine.speed == mine.speed.max()]
    return top(mine, mine.loss)


def front(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one task that no other row beats in both speed and loss, from slow to fast."""
    fast_first = rows[rows.speed > 1].sort_values(["speed", "loss"], ascending=[False, True])
    best_so_far = fast_first.loss.cummin().shift(fill_value=float("inf"))
    return fast_first[fast_first.loss < best_so_far][::-1]


def smallest_budgets(run: Run) -> pd.DataFrame:
    """Return, by model, suite, task, context and variant, the smallest budget within the margin.

    ``state`` is ``holds`` (``budget_tokens`` says from where), ``open`` where no budget is proven and one may hold, or
    ``fails`` where all are worse. The variants of ``Run.plain`` with budgets that do not grow, on
    tasks that say something.
    """
    losses = run.losses
    if losses.empty:
        return pd.DataFrame()
    sizes = run.summary[["model", "suite", "task", "context", "variant", "budget", "budget_tokens"]].drop_duplicates()
    rows = losses.merge(sizes, on=["model", "suite", "task", "context", "variant", "budget"])
    rows = rows[rows.variant.isin(run.plain(rows.variant)) & ~rows.variant.isin([REFERENCE, *run.growing])]
    rows = run.leading(rows[(rows.verdict != "") & rows.budget_tokens.notna()])
    found = []
    for key, part in groups(rows, ["model", "suite", "task", "context", "variant"], sort=False):
        holds = part[part.verdict == "within"].budget_tokens
        state = "holds" if len(holds) else "fails" if (part.verdict == "worse").all() else "open"
        found.append((*key, state, holds.min() if len(holds) else None, int(part.n.max())))
    return pd.DataFrame(found, columns=["model", "suite", "task", "context", "variant", "state", "budget_tokens", "n"])
