"""Draw where time goes: a step's parts, and the share of the read ceiling that kernels reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator

from longdecode.reporting import drawing
from longdecode.reporting.figure import Figure, FigureWriter, Layout, Words
from longdecode.reporting.identity import FAINT, HUES, INK, MUTED, Look, looks
from longdecode.reporting.speed.measured import OURS, Speed, few
from longdecode.reporting.wording import budget, milliseconds, number, plural, short_tokens, slug

PARTS = {
    "weights": Look("weights", FAINT, "s", False, False, is_area=True),
    "selection": Look("selection", HUES[1], "s", False, False, is_area=True),
    "attention": Look("attention", HUES[2], "s", False, False, is_area=True),
    "rest": Look("rest", HUES[0], "s", False, False, is_area=True),
}
MAX_PLACES = 4
MAX_BATCHES = 2
_BAR_IN = 0.36
_KERNEL_COLUMNS = [
    *("model", "subject", "label", "params", "context", "batch", "budget", "budget_tokens", "n", "median_us", "p5_us"),
    *("p95_us", "bytes_min", "gb_per_s", "floor_us", "fraction", "device"),
]


def breakdown(speed: Speed, writer: FigureWriter, model: str, about: str) -> Figure | None:
    """Draw a step's parts as stacked bars with the floor marked, a panel for each of a few contexts and batches."""
    rows = with_steps(speed, model)
    rows = rows[rows["budget"].isin(["full", speed.main_budget(model) or "full"])]
    places = _places(rows)
    if not places:
        return None
    chosen = [rows[(rows["context"] == context) & (rows["batch"] == batch)] for context, batch in places]
    most = max(len(_bars(mine)) for mine in chosen)
    panels = [_bars_panel(mine, place, most) for mine, place in zip(chosen, places, strict=True)]
    data = pd.concat(chosen)
    readings = "; ".join(_said(mine, place) for mine, place in zip(chosen, places, strict=True))
    layout = Layout("ms per step", wide=2, narrow=1, panel_in=_BAR_IN * most + 0.1)
    legend = [PARTS[part] for part in PARTS if part in set(data["part"])]
    words = Words("speed_breakdown", about, {"readings": readings})
    return writer.write(f"speed-breakdown-{slug(model)}", words, panels, data, layout, legend)


def with_steps(speed: Speed, model: str) -> pd.DataFrame:
    """Return breakdown.csv of one model with the step's own time and floor beside each part."""
    rows = speed.breakdown[speed.breakdown["model"] == model]
    steps = speed.ok(model)[["label", "budget", "context", "batch", "median_us", "floor_us"]]
    named = steps.rename(columns={"median_us": "step_us"})
    joined = rows.merge(named, on=["label", "budget", "context", "batch"], how="left")
    return speed.sorted(joined[joined["us"].notna()])


def bandwidth(speed: Speed, writer: FigureWriter, model: str, about: str) -> Figure | None:
    """Draw the share of the read ceiling that each implementation of an op reaches, a panel for each op."""
    rows = speed.kernels()
    # Ops with sizes of their own vary in one more than a panel has; their tables hold them.
    plain = rows["op_sizes"].isna()
    rows = rows[plain & (rows["model"] == model) & (rows["status"] == "ok") & rows["fraction"].notna()]
    rows = pd.concat([_one_size(mine) for _, mine in rows.groupby("subject", sort=False)]) if len(rows) else rows
    ops = [str(op) for op, mine in rows.groupby("subject", sort=False) if mine["context"].nunique() > 1]
    if not ops:
        return None
    rows = rows[rows["subject"].isin(ops)]
    labels = sorted(dict.fromkeys(rows["label"]), key=lambda label: label != OURS)
    found = looks(labels, labels, "")
    panels = [_share_panel(found, rows[rows["subject"] == op], op) for op in ops]
    batches = sorted(set(rows["batch"]))
    fields = {
        "batches": f"batch {batches[0]}" + (f", dotted and hollow batch {batches[-1]}" if len(batches) > 1 else ""),
        "readings": "; ".join(_kernel_said(rows[rows["subject"] == op], op) for op in ops),
    }
    words, layout = Words("speed_kernels", about, fields), Layout("context (tokens)", "% of the read ceiling")
    legend = list(found.values())
    return writer.write(f"speed-kernels-{slug(model)}", words, panels, rows[_KERNEL_COLUMNS], layout, legend)


Place = tuple[int, int]


def _places(rows: pd.DataFrame) -> list[Place]:
    """A few contexts at the smallest batch, and the largest batch at the longest context where no method is missing."""
    if rows.empty:
        return []
    keys = list(dict.fromkeys(zip(rows["batch"].astype(int), rows["context"].astype(int), strict=True)))
    counts = [len(_bars(rows[(rows["batch"] == batch) & (rows["context"] == context)])) for batch, context in keys]
    full = [key for key, count in zip(keys, counts, strict=True) if count == max(counts)]
    least = int(rows["batch"].min())
    wider = [place for place in full if place[0] > least]
    contexts = sorted(set(rows.loc[rows["batch"] == least, "context"]))
    found = [(int(context), least) for context in few(contexts, MAX_PLACES - bool(wider))]
    return found + [(context, batch) for batch, context in sorted(wider)[-1:]]


def _bars(rows: pd.DataFrame) -> list[tuple[str, str]]:
    return list(dict.fromkeys(zip(rows["label"], rows["budget"], strict=True)))


def _bars_panel(rows: pd.DataFrame, place: Place, most: int) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title(f"{short_tokens(place[0])} context, batch {place[1]}")
        right = 0.0
        for number_, (label, text) in enumerate(_bars(rows)):
            mine = rows[(rows["label"] == label) & (rows["budget"] == text)]
            left = 0.0
            for part, look in PARTS.items():
                wide = max(0.0, float(mine.loc[mine["part"] == part, "us"].sum()) / 1e3)
                axes.barh(-number_, wide, left=left, height=0.36, color=look.colour, linewidth=0)
                left += wide
            step, floor = mine["step_us"].iloc[0], mine["floor_us"].iloc[0] / 1e3
            name = label if text == "full" else f"{label}, {budget(text)}"
            axes.annotate(
                f"{name}: {milliseconds(step)} ms", (0, -number_ + 0.18), xytext=(0, 2), textcoords="offset points",
                size=9, color=INK, va="bottom",
            )  # fmt: skip
            if pd.notna(floor):
                axes.vlines(floor, -number_ - 0.26, -number_ + 0.26, color=INK, linewidth=1.6)
            right = max(right, left, 0.0 if pd.isna(floor) else floor)
        axes.set_xlim(0, right * 1.04)
        axes.set_ylim(0.72 - most, 0.62)
        axes.yaxis.set_major_locator(FixedLocator([]))
        axes.grid(axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(5))

    return draw


def _said(rows: pd.DataFrame, place: Place) -> str:
    parts = []
    for label, text in _bars(rows):
        mine = rows[(rows["label"] == label) & (rows["budget"] == text)]
        inside = ", ".join(f"{part} {milliseconds(us)}" for part, us in zip(mine["part"], mine["us"], strict=True))
        parts.append(f"{label} {inside}")
    return f"{short_tokens(place[0])}, batch {place[1]} (ms): {'; '.join(parts)}"


def _one_size(rows: pd.DataFrame) -> pd.DataFrame:
    """Of one op, the rows at its largest budget in tokens and at its smallest and largest batch."""
    budgets = [text for text in dict.fromkeys(rows["budget"]) if text != "full"]
    counts = sorted((text for text in budgets if text.isdigit()), key=int)
    main = (counts or budgets or ["full"])[-1]
    chosen = rows[rows["budget"] == main]
    return chosen[chosen["batch"].isin(few(sorted(set(chosen["batch"])), MAX_BATCHES))]


def _share_panel(found: dict[str, Look], rows: pd.DataFrame, op: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title(op.replace("_decode_attention", "_attention") if op.startswith("sparse") else op)  # fits a phone
        contexts = sorted(set(rows["context"]))
        drawing.token_axis(axes, contexts, [short_tokens(context) for context in contexts], 0.22)
        least = rows["batch"].min()
        for (label, batch), mine in rows.groupby(["label", "batch"], sort=False):
            look = replace(found[str(label)], hollow=batch != least)
            ordered = mine.sort_values("context")
            axes.plot(
                ordered["context"], 100 * ordered["fraction"], color=look.colour, linestyle=look.dashes,
                marker=look.marker, markerfacecolor=look.face,
            )  # fmt: skip
        axes.set_ylim(0, max(108.0, 104 * float(rows["fraction"].max())))
        axes.axhline(100, color=MUTED, linewidth=0.8)
        axes.yaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))

    return draw


def _kernel_said(rows: pd.DataFrame, op: str) -> str:
    """An op in words: each implementation at the longest context and largest batch."""
    place = rows.sort_values(["context", "batch"]).iloc[-1]
    there = rows[(rows["context"] == place["context"]) & (rows["batch"] == place["batch"])]
    parts = [f"{label} {number(100 * f, 0)} %" for label, f in zip(there["label"], there["fraction"], strict=True)]
    size = f"{short_tokens(int(place['context']))}, {plural(int(place['batch']), 'sequence')}"
    return f"{op} at {size}: {', '.join(parts)}"
