"""Draw decode steps: latency and speedup against context and batch, for all methods and for one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes

from longdecode.reporting import drawing
from longdecode.reporting.figure import Figure, FigureWriter, Layout, Words
from longdecode.reporting.identity import FAINT, Look
from longdecode.reporting.speed.measured import CEILING_METHOD, REFERENCE_METHOD, STOCK_LOOP, Speed, farthest, few
from longdecode.reporting.wording import budget, short_tokens, significant, slug

MAX_BATCHES = 3
MAX_BUDGETS = 3
MAX_CONTEXTS = 3
DATA_COLUMNS = [
    *("model", "weights", "subject", "label", "stage", "budget", "budget_tokens", "context", "batch", "n", "disturbed"),
    *("median_us", "p5_us", "p95_us", "reference", "ratio", "ratio_low", "ratio_high", "floor_us", "fraction"),
    *("status", "device"),
]
_CEILING_WORDS = {
    "context": ". Dash-dotted: sparse attention whose pages cost nothing to choose; the distance to it is the cost of "
    "choosing",
    "batch": ". Dash-dotted: sparse attention whose pages cost nothing to choose",
}
Draw = Callable[[Axes], None]
Place = tuple[str, str, int]
"""A panel: the budget, the column that is held, and its value."""


def latency(speed: Speed, writer: FigureWriter, model: str, about: str) -> Figure | None:
    """Draw the time of a step against context with its floor at the main budget, a panel for each of a few batches."""
    rows = _drawn(speed, model)
    places = _places(rows, [speed.main_budget(model) or "full"], "context")
    if not places:
        return None
    data = _data(rows, places)
    low, high = data[["floor_us", "p5_us"]].min().min() / 1e3, data["p95_us"].max() / 1e3
    panels = [_latency_panel(writer.looks, _panel_rows(rows, *place), place, (low, high)) for place in places]
    stock = " The stock loop is far above and stands in the table only." if STOCK_LOOP in _kinds(speed, model) else ""
    ceiling = ", dash-dotted sparse attention whose pages cost nothing to choose"
    fields = {
        "readings": _readings(data, "median_us", "ms", 1e-3),
        "n": _samples(data),
        "ceiling": ceiling if _has_ceiling(data) else "",
        "stock": stock,
    }
    words = Words("speed_latency", about, fields)
    return _write(
        writer, f"speed-latency-{slug(model)}", words, panels, data, Layout("context (tokens)", "ms per step")
    )


def speedup_by_context(speed: Speed, writer: FigureWriter, model: str, about: str) -> Figure | None:
    """Draw Full's time over a method's against context, a panel for each of a few budgets and batches."""
    rows = _compared(_drawn(speed, model))
    places = _places(rows, few(speed.budgets(model), MAX_BUDGETS), "context")
    return _speedup(writer, model, about, rows, places, Layout("context (tokens)", "times as fast as Full"))


def speedup_by_batch(speed: Speed, writer: FigureWriter, model: str, about: str) -> Figure | None:
    """Draw Full's time over a method's at the main budget, against batch, a panel for each of a few contexts."""
    rows = _compared(_drawn(speed, model))
    places = _places(rows, [speed.main_budget(model) or "full"], "batch")
    return _speedup(writer, model, about, rows, places, Layout("batch (sequences)", "times as fast as Full"))


def one_method(speed: Speed, writer: FigureWriter, model: str, label: str, about: str) -> Figure | None:
    """Draw one method's speedup in colour before the others in grey, against context."""
    if speed.kind(label) in (REFERENCE_METHOD, STOCK_LOOP):
        return None
    rows = _compared(_drawn(speed, model))
    places = _places(rows, few(speed.budgets(model), MAX_BUDGETS), "context")
    places = [place for place in places if label in set(_panel_rows(rows, *place)["label"])]
    if not places:
        return None
    grey = {
        name: look if name == label or look.is_ceiling else replace(look, colour=FAINT, marker="")
        for name, look in writer.looks.items()
    }
    data = _data(rows, places)
    limits = _ratio_limits(data)
    panels = [_speedup_panel(grey, _panel_rows(rows, *place), place, limits, label) for place in places]
    data = data[(data["label"] == label) | (data["subject"] == CEILING_METHOD)]
    ceiling = (
        ", dash-dotted sparse attention whose pages cost nothing to choose, at the same budget"
        if _has_ceiling(data)
        else ""
    )
    readings = _readings(data, "ratio", "times", 1.0)
    words = Words("speed_method", about, {"name": label, "readings": readings, "ceiling": ceiling})
    layout = Layout("context (tokens)", "times as fast as Full")
    return _write(writer, f"speed-method-{slug(model)}-{slug(label)}", words, panels, data, layout)


def _speedup(
    writer: FigureWriter, model: str, about: str, rows: pd.DataFrame, places: Sequence[Place], layout: Layout
) -> Figure | None:
    if not places:
        return None
    axis = "context" if places[0][1] == "batch" else "batch"
    data = _data(rows, places)
    limits = _ratio_limits(data)
    panels = [_speedup_panel(writer.looks, _panel_rows(rows, *place), place, limits) for place in places]
    fields = {
        "readings": _readings(data, "ratio", "times", 1.0),
        "n": _samples(data),
        "ceiling": _CEILING_WORDS[axis] if _has_ceiling(data) else "",
    }
    words = Words(f"speed_{axis}", about, fields)
    return _write(writer, f"speed-by-{axis}-{slug(model)}", words, panels, data, layout)


def _drawn(speed: Speed, model: str) -> pd.DataFrame:
    """Steps with numbers; the stock loop, which would flatten every other line, stands in the tables only."""
    rows = speed.ok(model)
    return rows[rows["subject"] != STOCK_LOOP]


def _compared(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[(rows["subject"] != REFERENCE_METHOD) & rows["ratio"].notna()]


def _places(rows: pd.DataFrame, budgets: Sequence[str], axis: str) -> list[Place]:
    """Panels along ``axis`` worth drawing: at the values of the other size where some line has two points at least."""
    held, most = ("batch", MAX_BATCHES) if axis == "context" else ("context", MAX_CONTEXTS)
    found: list[Place] = []
    for text in budgets:
        mine = rows[rows["budget"].isin([text, "full"])]
        values = [value for value in sorted(set(mine[held])) if _makes_a_line(mine[mine[held] == value], axis)]
        shown = farthest(mine[mine[held].isin(values)], most) if held == "batch" else few(values, most)
        found += [(text, held, int(value)) for value in shown]
    return found


def _makes_a_line(rows: pd.DataFrame, axis: str) -> bool:
    return bool((rows.groupby(["label", "budget"])[axis].nunique() > 1).any())


def _data(rows: pd.DataFrame, places: Sequence[Place]) -> pd.DataFrame:
    return pd.concat([_panel_rows(rows, *place) for place in places]).drop_duplicates()


def _ratio_limits(data: pd.DataFrame) -> tuple[float, float]:
    return min(0.85, float(data["ratio_low"].min())), max(1.2, float(data["ratio_high"].max()))


def _panel_rows(rows: pd.DataFrame, text: str, held: str, value: int) -> pd.DataFrame:
    return rows[rows["budget"].isin([text, "full"]) & (rows[held] == value)]


def _title(place: Place) -> str:
    text, held, value = place
    where = f"batch {value}" if held == "batch" else f"{short_tokens(value)} context"
    return where if text == "full" else f"{where}, budget {_short_budget(text)}"


def _short_budget(text: str) -> str:
    return short_tokens(int(text)) if text.isdigit() else budget(text)


def _latency_panel(looks: dict[str, Look], rows: pd.DataFrame, place: Place, limits: tuple[float, float]) -> Draw:
    def draw(axes: Axes) -> None:
        axes.set_title(_title(place))
        _size_axis(axes, rows, "context")
        for number, (label, mine) in enumerate(_lines(looks, rows, "context")):
            axes.plot(mine["context"], mine["floor_us"] / 1e3, color=looks[label].colour, linewidth=0.7, alpha=0.8)
            values = mine.assign(value=mine["median_us"], low=mine["p5_us"], high=mine["p95_us"])
            drawing.line(axes, looks[label], list(mine["context"]), values, 1e-3, place=number)
        drawing.log_values(axes, *limits, lambda value: f"{value:g}")

    return draw


def _speedup_panel(
    looks: dict[str, Look], rows: pd.DataFrame, place: Place, limits: tuple[float, float], front: str | None = None
) -> Draw:
    axis = "context" if place[1] == "batch" else "batch"

    def draw(axes: Axes) -> None:
        axes.set_title(_title(place))
        _size_axis(axes, rows, axis)
        drawing.level(axes, 1.0, "Full", below=True)
        lines = sorted(_lines(looks, rows, axis), key=lambda line: line[0] == front)
        for number, (label, mine) in enumerate(lines):
            values = mine.assign(value=mine["ratio"], low=mine["ratio_low"], high=mine["ratio_high"])
            drawing.line(axes, looks[label], list(mine[axis]), values, 1.0, place=number)
        drawing.log_values(axes, *limits, lambda value: f"{value:g}")

    return draw


def _size_axis(axes: Axes, rows: pd.DataFrame, axis: str) -> None:
    sizes = sorted(set(rows[axis]))
    drawing.token_axis(axes, sizes, [short_tokens(n) if axis == "context" else f"{n:,}" for n in sizes], 0.2)


def _lines(looks: dict[str, Look], rows: pd.DataFrame, axis: str) -> list[tuple[str, pd.DataFrame]]:
    return [
        (label, rows[rows["label"] == label].sort_values(axis)) for label in looks if label in set(rows["label"])
    ]  # fmt: skip


def _readings(data: pd.DataFrame, column: str, unit: str, factor: float) -> str:
    """Each line's value at the smallest and at the largest context, at the smallest batch."""
    batch = int(data["batch"].min())
    parts = []
    for (label, text), mine in data[data["batch"] == batch].groupby(["label", "budget"], sort=False):
        ordered = mine.sort_values("context")[column]
        name = label if text == "full" else f"{label} at budget {_short_budget(str(text))}"
        parts.append(f"{name} {significant(factor * ordered.iloc[0])} to {significant(factor * ordered.iloc[-1])}")
    sizes = f"{short_tokens(int(data['context'].min()))} to {short_tokens(int(data['context'].max()))} context"
    return f"{unit} at batch {batch}, {sizes}: {', '.join(parts)}"


def _has_ceiling(data: pd.DataFrame) -> bool:
    return bool((data["subject"] == CEILING_METHOD).any())


def _kinds(speed: Speed, model: str) -> set[str]:
    return set(speed.ok(model)["subject"])


def _samples(data: pd.DataFrame) -> str:
    few_, many = int(data["n"].min()), int(data["n"].max())
    return f"n = {many:,}" if few_ == many else f"n = {few_:,} to {many:,}"


def _write(
    writer: FigureWriter, name: str, words: Words, panels: Sequence[Draw], data: pd.DataFrame, layout: Layout
) -> Figure:
    found = set(data["label"])
    legend = [look for label, look in writer.looks.items() if label in found]
    return writer.write(name, words, panels, data[DATA_COLUMNS], layout, legend)
