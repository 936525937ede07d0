"""Compare a method with its rivals at equal bytes: runs as they were made, none between two budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from longdecode.reporting import drawing, wording
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.identity import Look
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import (
    Block,
    Cells,
    Compared,
    Comparison,
    Picture,
    Prose,
    compared,
    direction,
    equivalence,
    flips,
    points_interval,
    points_text,
    share_text,
)
from longdecode.reporting.papers.inputs import PaperInputs, main_budget
from longdecode.reporting.papers.published import PublishedFigure
from longdecode.reporting.results import REFERENCE_METHOD
from longdecode.reporting.verdicts import MARGIN
from longdecode.reporting.wording import short_tokens, slug

NEAR = 1.05
"""A rival's run that reads more than this times our bytes shows nothing unless we are ahead of it."""
HEADS = ("Method", "Budget", "Bytes", "Score", "Interval", "Minus Full", "Interval", "Against Full", "n")
RUNS = ("Our run", "Rival", "Its nearest run below", "Its nearest run above")
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class EqualBytes:
    """Fill the part that compares with rivals on the suites of models that run here.

    Args:
        part: key of its words.
        printed: the table, the column and the keys in print of which the method minus a rival gives the expected sign.
    """

    part: str
    printed: tuple[str, str, Mapping[str, Any]]

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return, for every model, the figure, the comparison at equal bytes, and the tables by budget."""
        words, models = inputs.words(self.part), inputs.compared_models()
        found: list[Block] = [Prose(text) for text in words["text"]]
        if not models:
            return [*found, inputs.missing(words["missing"])]
        for model in models:
            found += self._of_model(inputs, model)
        return found

    def _of_model(self, inputs: PaperInputs, model: str) -> list[Block]:
        kinds = (REFERENCE_METHOD, inputs.spec.method, *inputs.spec.rivals)
        shown = [label for kind in kinds if (label := inputs.label(kind, model)) is not None]
        curves = {place: run_points(inputs, model, place, shown) for place in inputs.places(model)}
        curves = {place: found for place, found in curves.items() if found}
        found: list[Block] = [Picture(figure)] if (figure := self._figure(inputs, model, curves)) else []
        longest = {suite: max(c for s, c in curves if s == suite) for suite, _ in curves}
        own = inputs.label(inputs.spec.method, model) or inputs.spec.method
        for main in (True, False):
            rows = [
                row
                for place, points in curves.items()
                if main or place[1] == longest[place[0]]
                for row in self._rows(inputs, model, place, points, own, main)
            ]
            if rows:
                caption = f"{own} minus its rivals, at equal bytes. {inputs.about(model, None)}"
                fold = "" if main else "The other budgets, at the longest context of each suite"
                found.append(Comparison(caption, RUNS, rows, "points", fold=fold))
        return [*found, *(_by_budget(inputs, model, place, points, shown) for place, points in curves.items())]

    def _rows(
        self, inputs: PaperInputs, model: str, place: Place, points: Sequence[pairs.Point], own: str, main: bool
    ) -> Iterable[Compared]:
        ours = {point.budget: point for point in points if point.label == own}
        chosen = main_budget(list(ours))
        for budget in sorted((text for text in ours if (text == chosen) == main), key=wording.budget_order):
            for kind in inputs.spec.rivals:
                rivals = [point for point in points if point.label == inputs.label(kind, model)]
                if rivals:
                    printed = self._published(inputs, kind)
                    yield against_nearest(inputs, model, place, ours[budget], kind, rivals, printed)

    def _published(self, inputs: PaperInputs, rival: str) -> PublishedFigure | None:
        table, column, keys = self.printed
        figures = [inputs.published.figure(table, column, **keys, method=m) for m in (inputs.spec.method, rival)]
        return figures[0].minus(figures[1]) if figures[0] and figures[1] else None

    def _figure(
        self, inputs: PaperInputs, model: str, curves: Mapping[Place, Sequence[pairs.Point]]
    ) -> Figure | None:  # fmt: skip
        data = point_table(inputs, model, curves)
        if data.empty:
            return None
        shown = wording.listing(list(dict.fromkeys(data["method"])))
        words = {"of": shown, "readings": _readings(data)}
        layout = Layout("bytes read (% of Full)", "right (%)", wide=4)
        return score_figure(inputs, model, "equal_bytes", data, "method", inputs.writer.looks, words, layout)


def score_figure(
    inputs: PaperInputs, model: str, part: str, data: pd.DataFrame, group: str, looks: Mapping[str, Look],
    fields: Mapping[str, str], layout: Layout,
) -> Figure:  # fmt: skip
    """Return the figure of score against what was read, a panel for each place and a line for each group.

    Args:
        part: the end of the caption's key, and of the figure's name.
        data: as :func:`point_table` has it.
        group: the column that names a line.
        looks: how each line is drawn.
        fields: what fills the caption besides samples and coverage.
        layout: the figure's layout.
    """
    panels = [
        _panel(looks, rows, group, f"{suite}, {short_tokens(int(str(context)))}")
        for (suite, context), rows in data.groupby(["suite", "context"], sort=False)
    ]
    low, high = data["n"].min(), data["n"].max()
    samples = f"n = {high:,} samples" if low == high else f"n = {low:,} to {high:,} samples"
    coverage = f"{100 * inputs.results.confidence:g} %"
    words = Words(f"paper_{part}", inputs.about(model, None), {**fields, "samples": samples, "coverage": coverage})
    name = f"paper-{inputs.spec.method}-{slug(part)}-{slug(model)}"
    legend = [look for name_, look in looks.items() if name_ in set(data[group])]
    return inputs.writer.write(name, words, panels, data, layout, legend)


def run_points(
    inputs: PaperInputs, model: str, place: Place, labels: Iterable[str], measure: pairs.Measure = pairs.total_bytes
) -> list[pairs.Point]:
    """Return the runs of some labels on one suite and context, each with its share of what Full read."""
    wanted = {*labels, REFERENCE_METHOD}
    records = [r for r in inputs.records(model, [place]) if r.label in wanted or r.method == REFERENCE_METHOD]
    return pairs.points(records, REFERENCE_METHOD, measure)


def point_table(inputs: PaperInputs, model: str, curves: Mapping[Place, Sequence[pairs.Point]]) -> pd.DataFrame:
    """Return one row a run: place, label, budget, share read, and its mean with interval."""
    rows = []
    for (suite, context), points in curves.items():
        for point in points:
            mean = inputs.score(point.samples, model, point.label, point.budget)
            place = {"model": model, "suite": suite, "context": context, "method": point.label, "budget": point.budget}
            score = {"n": len(point.samples), "value": mean.value, "low": mean.low, "high": mean.high}
            rows.append(place | {"share_read": point.share} | score)
    return pd.DataFrame(rows)


def against_nearest(
    inputs: PaperInputs, model: str, place: Place, ours: pairs.Point, rival: str, rivals: Sequence[pairs.Point],
    printed: PublishedFigure | None,
) -> Compared:  # fmt: skip
    """Return a row: one run against a rival's nearest run that reads at least as much, with the one below beside it."""
    below, above = pairs.nearest_runs(rivals, ours.share)
    plain = (inputs.spec.method, rival)
    our_run = f"{place[0]}, {short_tokens(place[1])}; {run_text(ours, plain)}"
    of = [our_run, rival, run_text(below, plain), run_text(above, plain)]
    if above is None:
        return compared(of, printed, verdict="no run at equal bytes")
    gap = inputs.paired(ours.samples, above.samples, model, *place, ours.label, ours.budget, above.label, above.budget)
    verdict, level = direction(None if printed is None else printed.value, gap, inputs.alpha)
    said = flips(gap)
    if (more := above.share / ours.share) > NEAR:
        said = f"the rival reads {wording.number(more, 2)} times as much; {said}"
        if gap.sign(inputs.alpha) <= 0:
            verdict, level = "no run at equal bytes", "muted"
    return compared(of, printed, points_text(gap.value), points_interval(gap), verdict, level, said)


def run_text(point: pairs.Point | None, plain: Sequence[str] = ()) -> str:
    """Return a run in words: its budget, what it read, its score; its label unless it is one of ``plain``."""
    if point is None:
        return "none"
    label = "" if point.label in plain else f"{point.label}, "
    return f"{label}{wording.budget(point.budget)}: {share_text(point.share)} read, {100 * point.value:.1f} % right"


def _panel(looks: Mapping[str, Look], rows: pd.DataFrame, group: str, title: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title(title)
        drawing.percent_axis(axes, rows["share_read"])
        for place, name in enumerate(name for name in looks if name in set(rows[group])):
            mine = rows[rows[group] == name].sort_values("share_read")
            if looks[name].is_reference:
                drawing.reference(axes, looks[name], mine.iloc[0], 100.0)
            else:
                drawing.line(axes, looks[name], list(100 * mine["share_read"]), mine, 100.0, place=place)
        drawing.score_axis(axes, True)

    return draw


def _by_budget(
    inputs: PaperInputs, model: str, place: Place, points: Sequence[pairs.Point], shown: Sequence[str]
) -> Cells:  # fmt: skip
    """Return every run with the bytes it read and its paired difference to Full."""
    full = next(point for point in points if point.budget == "full")
    rows = []
    for point in sorted(points, key=lambda p: (wording.budget_order(p.budget), shown.index(p.label))):
        mean = inputs.score(point.samples, model, point.label, point.budget)
        cells = [point.label, wording.budget(point.budget), share_text(point.share)]
        cells += [wording.score(mean.value, "fraction"), wording.score_interval(mean.low, mean.high, "fraction")]
        if point is full:
            cells += ["", "", ""]
        else:
            gap = inputs.minus_full(point.samples, full.samples, model, point.label, point.budget)
            said = f"{equivalence(gap, inputs.alpha, MARGIN)} ({flips(gap)})"
            cells += [points_text(gap.value), points_interval(gap), said]
        rows.append([*cells, f"{len(point.samples):,}"])
    caption = (
        f"{place[0]}, {place[1]:,} tokens of context: mean over its tasks, per cent right; differences in points, "
        f"paired sample by sample, p after Holm where it is corrected over the methods at one budget. "
        f"{inputs.about(model, place[0])}"
    )
    return Cells(caption, HEADS, rows, frozenset({1, 2, 3, 5, 8}), fold=f"{place[0]} at {place[1]:,} tokens")


def _readings(data: pd.DataFrame) -> str:
    """Return each panel's lines from their smallest to their largest share."""
    parts = []
    for (suite, context), rows in data.groupby(["suite", "context"], sort=False):
        lines = []
        for label, mine in rows.groupby("method", sort=False):
            ordered = mine.sort_values("share_read")["value"]
            lines.append(f"{label} {100 * ordered.iloc[0]:.3g} to {100 * ordered.iloc[-1]:.3g}")
        parts.append(f"{suite} at {context:,} tokens: {', '.join(lines)}")
    return "; ".join(parts)
