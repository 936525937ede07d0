"""Draw figures of quality: against budget, by task, and against bytes read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from longdecode.evals.budgets import bytes_share
from longdecode.reporting import drawing
from longdecode.reporting.figure import Figure, FigureWriter, Layout, Words
from longdecode.reporting.identity import FAINT, Look
from longdecode.reporting.results import REFERENCE_METHOD, Results, Topic
from longdecode.reporting.wording import is_fraction, listing, scale, short_tokens, slug, unit_label

DATA_COLUMNS = [
    *("model", "suite", "task", "metric", "unit", "method", "budget", "budget_tokens", "share", "context"),
    *("n", "value", "low", "high", "status"),
]
_BUDGET = "budget (% of the context)"
UNFORESEEN = 1.1
"""Times the traffic model's share of bytes from which on the share counted while scoring stands."""


def overview(results: Results, writer: FigureWriter, model: str, about: str) -> Figure | None:
    """Draw quality against budget, each suite at the context where methods lose most."""
    ran = hardest(results, model)
    if not ran:
        return None
    panels = [_budget_panel(results, writer.looks, topic, context) for topic, context in ran]
    data = pd.concat([results.rows_of(topic, context) for topic, context in ran])
    if _is_one_point(data):
        return None
    readings = "; ".join(_reading(results, topic, context) for topic, context in ran)
    words = Words("overview", about + _not_drawn(data), {**_spread(results, data), "readings": readings})
    layout = Layout(_BUDGET)
    return writer.write(f"overview-{slug(model)}", words, panels, data[DATA_COLUMNS], layout)


def against_budget(results: Results, writer: FigureWriter, topic: Topic, about: str) -> Figure | None:
    """Draw one topic: quality against budget, a panel for each context."""
    contexts = results.contexts(topic)
    if not contexts:
        return None
    data = results.rows_of(topic)
    if _is_one_point(data):
        return None
    panels = [_budget_panel(results, writer.looks, topic, context, f"{context:,} tokens") for context in contexts]
    fields = {
        "name": topic.name,
        "direction": "Higher" if topic.higher_is_better else "Lower",
        "readings": "; ".join(_reading(results, topic, context) for context in contexts),
    }
    words = Words("against_budget", about + _not_drawn(data), {**_spread(results, data), **fields})
    layout = Layout(_BUDGET, f"{topic.metric} ({unit_label(topic.unit)})", wide=4)
    return writer.write(f"budget-{slug(topic.model)}-{slug(topic.name)}", words, panels, data[DATA_COLUMNS], layout)


def by_task(results: Results, writer: FigureWriter, model: str, suite: str, about: str) -> Figure | None:
    """Draw every task of a suite with a mean, a row each: quality against budget at each context."""
    topics = results.tasks(model, suite)
    contexts = sorted({context for topic in topics for context in results.contexts(topic)})
    if not contexts:
        return None
    data = pd.concat([results.rows_of(topic) for topic in topics])
    if _is_one_point(data):
        return None
    panels = [
        _budget_panel(results, writer.looks, topic, context, f"{topic.task}, {short_tokens(context)}")
        for topic in topics
        for context in contexts
    ]
    fields = {"name": suite, "tasks": listing([topic.task for topic in topics])}
    words = Words("by_task", about, {**_spread(results, data), **fields})
    layout = Layout(_BUDGET, unit_label(topics[0].unit), max(2, min(4, len(contexts))))
    return writer.write(f"tasks-{slug(model)}-{slug(suite)}", words, panels, data[DATA_COLUMNS], layout)


def one_method(results: Results, writer: FigureWriter, model: str, label: str, about: str) -> Figure | None:
    """Draw one method in colour before the others in grey, each suite at the context where methods lose most."""
    ran = hardest(results, model)
    if not ran:
        return None
    grey = {
        name: look if name == label or look.is_reference else Look(name, FAINT, "", False, False)
        for name, look in writer.looks.items()
    }
    data = pd.concat([results.rows_of(topic, context) for topic, context in ran])
    if _is_one_point(data):
        return None
    panels = [_budget_panel(results, grey, topic, context, front=label) for topic, context in ran]
    data = data[(data["method"] == label) | (data["kind"] == REFERENCE_METHOD)]
    words = Words("one_method", about, {**_spread(results, data), "name": label})
    layout = Layout(_BUDGET)
    return writer.write(f"method-{slug(model)}-{slug(label)}", words, panels, data[DATA_COLUMNS], layout)


def hardest(results: Results, model: str) -> list[tuple[Topic, int]]:
    """Return every topic of a model that ran, with the context where methods lose most."""
    topics = [(topic, results.hardest_context(topic)) for topic in results.topics(model)]
    return [(topic, context) for topic, context in topics if context is not None]


def against_bytes(
    results: Results,
    writer: FigureWriter,
    name: str,
    words: Words,
    places: Sequence[tuple[Topic, int]],
    layout: Layout,
) -> Figure | None:
    """Draw quality against bytes read per token, as a share of Full's, a panel for each topic and context.

    Args:
        results: the run.
        writer: where the figure goes.
        name: the figure's file.
        words: its caption; the samples and the interval are filled in here.
        places: topics, each with its context.
        layout: the label of the horizontal axes, and sizes.
    """
    if not places:
        return None
    tables = [with_traffic(results.rows_of(topic, context)) for topic, context in places]
    panels = [_bytes_panel(writer.looks, table, *place) for place, table in zip(places, tables, strict=True)]
    data = pd.concat(tables)
    words = Words(words.kind, words.about, {**_spread(results, data), **words.fields})
    columns = [*DATA_COLUMNS, "bytes_per_step", "bytes_share"]
    return writer.write(name, words, panels, data[columns], layout)


def with_traffic(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with bytes read per token and their share of Full's at the same place.

    Bytes are of the method's traffic model at the context's length. Where the tokens counted while scoring are a larger
    share of Full's, by more than ``UNFORESEEN``, that share stands: prompts were shorter than the context, or
    generated tokens come on top of the budget.
    """
    rows = rows.copy()
    rows["bytes_per_step"] = rows["kv_bytes_per_step"] + rows["metadata_bytes_per_step"].fillna(0)
    place = ["model", "suite", "task", "context", "batch"]
    full = rows[rows["kind"] == REFERENCE_METHOD].groupby(place)["bytes_per_step"].first()
    keys = pd.MultiIndex.from_frame(rows[place])
    modelled = rows["bytes_per_step"].to_numpy() / full.reindex(keys).to_numpy()
    counted = np.full(len(rows), np.nan)
    if "kv_tokens_read" in rows:
        read = rows[rows["kind"] == REFERENCE_METHOD].groupby(place)["kv_tokens_read"].first()
        counted = rows["kv_tokens_read"].to_numpy(float) / read.reindex(keys).to_numpy(float)
    rows["bytes_share"] = np.where(np.nan_to_num(counted) > UNFORESEEN * np.nan_to_num(modelled), counted, modelled)
    return rows


def _budget_panel(
    results: Results, looks: dict[str, Look], topic: Topic, context: int, heading: str = "", front: str | None = None
) -> Callable[[Axes], None]:
    rows = _swept(results.rows_of(topic, context))
    factor = scale(topic.unit)
    limits = None if is_fraction(topic.unit) else drawing.limits_of(results.rows_of(topic))

    def draw(axes: Axes) -> None:
        axes.set_title(heading or _heading(topic, context))
        swept = rows[rows["kind"] != REFERENCE_METHOD]
        drawing.budget_axis(axes, swept["share"])
        for _, row in rows[(rows["kind"] == REFERENCE_METHOD) & (rows["status"] == "ok")].iterrows():
            drawing.reference(axes, looks[row["method"]], row, factor)
        order = sorted(dict.fromkeys(swept["method"]), key=lambda label: (label == front, list(looks).index(label)))
        for place, label in enumerate(order):
            mine = swept[(swept["method"] == label) & (swept["status"] == "ok")].sort_values("share")
            if len(mine):
                drawing.line(axes, looks[label], list(100 * mine["share"]), mine, factor, place=place)
        drawing.score_axis(axes, is_fraction(topic.unit), limits, results.rows_of(topic))
        if holes := _holes(swept):
            drawing.note(axes, *holes)
        if not heading:
            drawing.unit_note(axes, _unit(topic))

    return draw


def _bytes_panel(looks: dict[str, Look], rows: pd.DataFrame, topic: Topic, context: int) -> Callable[[Axes], None]:
    factor = scale(topic.unit)

    def draw(axes: Axes) -> None:
        axes.set_title(_heading(topic, context))
        drawing.unit_note(axes, _unit(topic))
        known = rows[(rows["status"] == "ok") & rows["bytes_share"].notna()]
        drawing.percent_axis(axes, [*known["bytes_share"], 1.0])
        for place, label in enumerate(dict.fromkeys(known["method"])):
            mine = known[known["method"] == label].sort_values("bytes_share")
            if looks[label].is_reference:
                drawing.reference(axes, looks[label], mine.iloc[0], factor)
            else:
                drawing.line(axes, looks[label], list(100 * mine["bytes_share"]), mine, factor, place=place)
        drawing.score_axis(axes, is_fraction(topic.unit), rows=rows)

    return draw


def _swept(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows at budgets in tokens, which make a line; those at equal bytes stand in tables."""
    return rows[rows["budget"].map(bytes_share).isna()]


def _is_one_point(rows: pd.DataFrame) -> bool:
    """A chart of them would hold one method at one budget, or none: its table says it all."""
    swept = _swept(rows[rows["kind"] != REFERENCE_METHOD])
    return len(swept[["method", "budget"]].drop_duplicates()) < 2


def _not_drawn(rows: pd.DataFrame) -> str:
    """The end of a caption, where budgets in bytes have no place on an axis of tokens."""
    return " Budgets in bytes are in the tables and the figures against bytes." if len(_swept(rows)) < len(rows) else ""


def _heading(topic: Topic, context: int) -> str:
    return f"{topic.name}, {short_tokens(context)}"


def _unit(topic: Topic) -> str:
    return unit_label(topic.unit) + ("" if topic.higher_is_better else " ↓")


def _holes(rows: pd.DataFrame) -> tuple[str, str] | None:
    """The methods of a panel that lack points, and how many; once with names and once without."""
    lost = rows[rows["status"] != "ok"]
    if lost.empty:
        return None
    names = [f"{label} {len(mine)}" for label, mine in lost.groupby("method", sort=False)]
    return f"missing: {', '.join(names)}", f"missing: {len(lost)}"


def _reading(results: Results, topic: Topic, context: int) -> str:
    """A panel in words: Full's score and each method's at its largest budget."""
    rows = _swept(results.rows_of(topic, context))
    rows = rows[rows["status"] == "ok"].sort_values("share")
    unit, factor = unit_label(topic.unit), scale(topic.unit)
    last = [
        f"{label} {factor * mine['value'].iloc[0]:.3g} to {factor * mine['value'].iloc[-1]:.3g}"
        for label, mine in rows[rows["kind"] != REFERENCE_METHOD].groupby("method", sort=False)
    ]
    full = [f"Full {factor * value:.3g}" for value in rows.loc[rows["kind"] == REFERENCE_METHOD, "value"]]
    return f"{topic.name} at {context:,} tokens ({unit}): {', '.join(full + last)}"


def _spread(results: Results, data: pd.DataFrame) -> dict[str, str]:
    """The samples and intervals of a caption."""
    counts = data.loc[data["status"] == "ok", "n"]
    few, many = int(counts.min()), int(counts.max())
    samples = f"n = {many:,}" if few == many else f"n = {few:,} to {many:,}"
    return {"samples": f"{samples} samples", "coverage": f"{100 * results.confidence:g} %"}
