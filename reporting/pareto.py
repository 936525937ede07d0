"""Draw the front page's chart: quality against measured speedup over Full."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from longdecode.evals.budgets import bytes_share
from longdecode.reporting import drawing
from longdecode.reporting.figure import Figure, FigureWriter, Layout, Words
from longdecode.reporting.identity import MUTED, PAPER
from longdecode.reporting.results import ORACLE, REFERENCE_METHOD, Results, Topic
from longdecode.reporting.speed.measured import CEILING_METHOD, STEP, Speed
from longdecode.reporting.verdicts import Grid
from longdecode.reporting.wording import is_fraction, listing, plural, scale, short_tokens, slug, unit_label

ASKED_CONTEXT = 32768
"""The context that the front page answers for, where it was scored; otherwise the longest one."""
_KEYS = ["label", "context", "budget"]
_MOST = 12

Families = Sequence[tuple[str, Sequence[Grid]]]


def pareto(
    results: Results, writer: FigureWriter, model: str, about: str, families: Families, featured: Collection[str]
) -> Figure | None:
    """Draw quality against the measured speedup over Full, of one model at one context and batch.

    Without a configuration that was scored and timed there is no chart. A mark is one method at one budget; a line
    joins its budgets. Where the parameters differ between score and time the mark is hollow and on no line. The context
    is the one asked for, else the longest that most labels share, the batch the largest. A family of suites has one
    panel, the topic on which methods lose most there.

    Args:
        results: without ablations.
        writer: where the figure goes.
        model: whose scores.
        about: the end of the caption.
        families: the model's verdicts by family of suites.
        featured: labels to draw where there are many.
    """
    speed = results.speed
    pairs = _pairs(results, speed, model)
    if pairs.empty or speed is None:
        return None
    sizes = pairs.groupby(["context", "batch"])["label"].nunique()
    context, batch = max(sizes[sizes == sizes.max()].index, key=lambda size: (size[0] == ASKED_CONTEXT, *size))
    found = pairs[(pairs["context"] == context) & (pairs["batch"] == batch)]
    hardest = [_hardest([grid.topic for grid in grids], found) for _, grids in families]
    topics = [topic for topic in hardest if topic is not None]
    if not topics:
        return None
    if found["label"].nunique() > _MOST:
        found = found[found["label"].isin(featured)]
    found = found.sort_values(["label", "share"])
    tables = [found[found["suite"].eq(topic.suite) & found["task"].eq(topic.task)] for topic in topics]
    oracles = [_oracle(results, topic, context, set(found["budget"])) for topic in topics]
    fields = {
        "size": f"{short_tokens(context)} tokens, {plural(batch, 'sequence')}",
        "device": listing(speed.devices),
        "left_out": _left_out(results, pairs, model),
    }
    columns = [
        "label", "suite", "task", "budget", "context", "batch", "value", "low", "high", "ratio", "ratio_low",
        "ratio_high", "same",
    ]  # fmt: skip
    limits = [rows.rename(columns={"method": "label"}).reindex(columns=columns) for rows in oracles if len(rows)]
    data = pd.concat([table[columns] for table in tables] + limits).rename(columns={"label": "method"})
    panels: list[Callable[[Axes], None]] = []
    free = _limits(speed, model, context, batch)
    for topic, table, oracle in zip(topics, tables, oracles, strict=True):
        full = results.rows_of(topic, context)
        full = full[(full["kind"] == REFERENCE_METHOD) & (full["status"] == "ok")]
        panels.append(_panel(writer, topic, table, pd.concat([full, oracle]), free))
    layout = Layout("times as fast as Full", panel_in=1.6)
    named = {*data["method"], *(label for label in results.labels if results.kind(label) == REFERENCE_METHOD)}
    named |= {CEILING_METHOD} if free else set()
    legend = [
        replace(look, marker="", hollow=look.is_ceiling and label != CEILING_METHOD, is_ceiling=label == CEILING_METHOD)
        if look.is_ceiling
        else replace(look, hollow=False)
        for label, look in writer.looks.items()
        if label in named
    ]
    return writer.write(f"pareto-{slug(model)}", Words("pareto", about, fields), panels, data, layout, legend)


def _pairs(results: Results, speed: Speed | None, model: str) -> pd.DataFrame:
    """Scores and times of one model, label, context and budget; ``same`` tells whether the parameters are the same.

    A budget in bytes is one in tokens here, as it was timed, where that was not scored by itself.
    """
    if speed is None:
        return pd.DataFrame()
    steps = speed.table
    steps = steps[
        (steps["bench"] == "decode") & (steps["stage"] == STEP) & (steps["status"] == "ok") & (steps["model"] == model)
    ]
    columns = [*_KEYS, "batch", "params", "ratio", "ratio_low", "ratio_high"]
    steps = steps.loc[steps["ratio"].notna() & (steps["subject"] != CEILING_METHOD), columns]
    rows = results.summary
    rows = rows[(rows["model"] == model) & (rows["status"] == "ok")]
    rows = rows[(rows["kind"] != REFERENCE_METHOD) & ~rows["method"].isin(results.failed(model))]
    rows = rows.rename(columns={"method": "label"}).drop(columns="batch")
    in_bytes = rows["budget"].map(bytes_share).notna()
    native = [str(int(tokens)) for tokens in rows.loc[in_bytes, "budget_tokens"]]
    rows = pd.concat([rows[~in_bytes], rows[in_bytes].assign(budget=native)])
    rows = rows.drop_duplicates([*_KEYS, "suite", "task", "metric"])
    joined = rows.merge(steps, on=_KEYS, suffixes=("", "_timed"))
    return joined.assign(same=joined["params"] == joined["params_timed"])


def _oracle(results: Results, topic: Topic, context: int, budgets: Collection[str]) -> pd.DataFrame:
    """The oracle at the largest of the budgets: what choosing tokens can reach at all; it is never timed."""
    rows = results.rows_of(topic, context)
    rows = rows[(rows["kind"] == ORACLE) & (rows["status"] == "ok") & rows["budget"].isin(budgets)]
    return rows.sort_values("share").tail(1)


def _left_out(results: Results, pairs: pd.DataFrame, model: str) -> str:
    """Name the methods that were scored on the model and have no mark."""
    failed = results.failed(model)
    scored = [label for label in results.labels if results.meant_for(label, model)]
    real = [label for label in scored if results.kind(label) not in (REFERENCE_METHOD, ORACLE)]
    untimed = [label for label in real if label not in set(pairs["label"]) | failed]
    said = [f" Scored, not timed: {listing(untimed)}."] if untimed else []
    return "".join([*said, *([f" Correctness gate failed: {listing(sorted(failed))}."] if failed else [])])


def _hardest(topics: Sequence[Topic], found: pd.DataFrame) -> Topic | None:
    """The topic on which the timed configurations lose most; a share before a loss, as the two do not compare."""
    lost = {}
    for topic in topics:
        rows = found[(found["suite"] == topic.suite) & (found["task"] == topic.task)]
        if rows["label"].nunique() > 1:
            mean = float(rows["diff_to_full"].mean())
            lost[topic] = (is_fraction(topic.unit), -mean if topic.higher_is_better else mean)
    return max(lost, key=lambda topic: lost[topic]) if lost else None


def _limits(speed: Speed, model: str, context: int, batch: int) -> list[float]:
    rows = speed.table
    rows = rows[
        (rows["model"] == model)
        & (rows["subject"] == CEILING_METHOD)
        & (rows["stage"] == STEP)
        & (rows["status"] == "ok")
    ]
    return sorted(rows.loc[(rows["context"] == context) & (rows["batch"] == batch), "ratio"].dropna())


def _panel(
    writer: FigureWriter, topic: Topic, table: pd.DataFrame, across: pd.DataFrame, limits: Sequence[float]
) -> Callable[[Axes], None]:
    factor = scale(topic.unit)

    def draw(axes: Axes) -> None:
        axes.set_title(topic.name)
        drawing.unit_note(axes, unit_label(topic.unit) + ("" if topic.higher_is_better else ", less is better"))
        for _, row in across.iterrows():
            look = writer.looks[row["method"]]
            if look.is_reference:
                drawing.reference(axes, look, row, factor)
                axes.axvline(1.0, color=look.colour, linestyle=look.dashes, linewidth=1.2)
            else:
                axes.axhline(row["value"] * factor, color=look.colour, linestyle=":", linewidth=1.4)
        for limit in limits[-1:]:
            axes.axvline(limit, color=MUTED, linestyle="-.", linewidth=1.2)
        ordered = [label for label in writer.looks if label in set(table["label"])]
        for label in ordered:
            mine, look = table[table["label"] == label], writer.looks[label]
            colour = look.colour
            x, y = mine["ratio"].to_numpy(dtype=float), mine["value"].to_numpy(dtype=float) * factor
            axes.vlines(x, mine["low"] * factor, mine["high"] * factor, color=colour, linewidth=1.0, alpha=0.55)
            axes.hlines(y, mine["ratio_low"], mine["ratio_high"], color=colour, linewidth=1.0, alpha=0.55)
            same = mine["same"].to_numpy(dtype=bool)
            axes.plot(x[same], y[same], color=colour, linestyle=look.dashes, marker=look.marker)
            axes.plot(x[~same], y[~same], color=colour, linestyle="", marker=look.marker, markerfacecolor=PAPER)
        drawing.score_axis(axes, is_fraction(topic.unit))
        if not topic.higher_is_better:
            axes.invert_yaxis()
        axes.set_xlim(0, 1.06 * max([*table["ratio_high"], *limits[-1:]]))
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

    return draw
