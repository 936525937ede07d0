"""The miniature on look-ups: scores at each budget, and rivals at the share of reads that the method really made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes

from longdecode.reporting import drawing, wording
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.identity import Look
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import Block, Cells, Compared, Comparison, Picture, Prose, direction
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.lychee.common import (
    METHOD,
    RIVALS,
    SUITES,
    WORDS,
    contexts_of,
    full_of,
    hole,
    label_of,
    main_budget,
    points_interval,
    points_text,
    records_of,
    resamples,
    share_text,
)
from longdecode.reporting.results import REFERENCE_METHOD
from longdecode.reporting.wording import listing, short_tokens, slug

LLAMA = {"model": "llama3-8b-1048k"}
HEADS = ("Method", "Budget", "Read", "Score", "Interval", "To Full", "Interval", "Lychee minus it", "Interval", "n")


def blocks(inputs: PaperInputs) -> list[Block]:
    """For every model that ran the suites: the figure, the tables by budget, and the table at equal reads."""
    words = WORDS["miniature"]
    models = [model for model in inputs.models_with(*SUITES) if label_of(inputs, METHOD, model)]
    label = label_of(inputs, METHOD, models[0]) if models else METHOD
    found: list[Block] = [Prose(text.format(label=label)) for text in words["text"]]
    if not models:
        return [*found, hole(inputs, words["hole"], "all")]
    for model in models:
        found += _of_model(inputs, model)
    return found


def _of_model(inputs: PaperInputs, model: str) -> list[Block]:
    by_suite = {suite: contexts_of(inputs, model, suite) for suite in SUITES}
    places = [(suite, context) for suite, contexts in by_suite.items() for context in contexts]
    shown = shown_labels(inputs, model)
    curves = {place: points_at(inputs, model, place, shown) for place in places}
    curves = {place: found for place, found in curves.items() if found}
    found: list[Block] = []
    if figure := _figure(inputs, model, shown, curves):
        found.append(Picture(figure))
    for place in curves:
        longest = place[1] == max(context for suite, context in curves if suite == place[0])
        found.append(_by_budget(inputs, model, place, curves[place], "" if longest else _fold(place)))
    longest_places = [(suite, max(contexts)) for suite, contexts in by_suite.items() if contexts]
    for main in (True, False):
        at = list(curves) if main else [place for place in longest_places if place in curves]
        rows = [row for place in at for row in _equal_reads(inputs, model, place, curves[place], main)]
        if rows:
            fold = "" if main else "At the other budgets"
            heads = ("Suite", "Lychee minus", "Lychee's budget", "Read")
            caption = f"Lychee minus a rival, at the share of reads that lychee made. {inputs.about(model, None)}"
            found.append(Comparison(caption, heads, rows, "points", fold=fold))
    return found


def shown_labels(inputs: PaperInputs, model: str) -> list[str]:
    """Full, the method and its rivals, by the labels that stand for them."""
    kinds = (REFERENCE_METHOD, METHOD, *RIVALS)
    return [label for kind in kinds if (label := label_of(inputs, kind, model)) is not None]


def points_at(
    inputs: PaperInputs, model: str, place: tuple[str, int], labels: Sequence[str]
) -> list[pairs.Point]:  # fmt: skip
    """Points of the labels on one suite and context, each with its achieved share."""
    suite, context = place
    records = records_of(inputs, model, [suite], [context])
    full = full_of(records)
    return pairs.points([r for r in records if r.label in labels], full) if full else []


def _figure(
    inputs: PaperInputs, model: str, labels: Sequence[str], curves: Mapping[tuple[str, int], list[pairs.Point]]
) -> Figure | None:
    rows = pd.DataFrame(
        [
            {"model": model, "suite": suite, "context": context, **_point_row(inputs, model, suite, context, point)}
            for (suite, context), found in curves.items()
            for point in found
        ]
    )
    if rows.empty:
        return None
    data = rows[rows["method"].isin(labels)]
    panels = [
        _panel(inputs.writer.looks, data[(data["suite"] == s) & (data["context"] == c)], f"{s}, {short_tokens(c)}")
        for s, c in curves
    ]
    counts = data["n"]
    samples = f"n = {counts.min():,} to {counts.max():,}" if counts.nunique() > 1 else f"n = {counts.max():,}"
    fields = {
        "samples": f"{samples} samples", "coverage": f"{100 * inputs.results.confidence:g} %",
        "of": listing([*labels]), "readings": _readings(data),
    }  # fmt: skip
    words = Words("paper_equal_reads", inputs.about(model, None), fields)
    layout = Layout("read (% of what Full reads)", "right (%)", wide=4)
    return inputs.writer.write(f"paper-lychee-reads-{slug(model)}", words, panels, data, layout)


def _point_row(
    inputs: PaperInputs, model: str, suite: str, context: int, point: pairs.Point
) -> dict[str, object]:  # fmt: skip
    found = pairs.estimate(
        point.samples, inputs.results.confidence, resamples(inputs), model, suite, context, point.label, point.budget
    )
    return {
        "method": point.label, "budget": point.budget, "share_read": point.share, "n": len(point.samples),
        "value": found.value, "low": found.low, "high": found.high,
    }  # fmt: skip


def _panel(looks: Mapping[str, Look], rows: pd.DataFrame, title: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title(title)
        drawing.percent_axis(axes, rows["share_read"])
        for place, (label, mine) in enumerate(rows.groupby("method", sort=False)):
            look = looks[str(label)]
            if look.is_reference:
                drawing.reference(axes, look, mine.iloc[0], 100.0)
            else:
                ordered = mine.sort_values("share_read")
                drawing.line(axes, look, list(100 * ordered["share_read"]), ordered, 100.0, place=place)
        drawing.score_axis(axes, True)

    return draw


def _by_budget(
    inputs: PaperInputs, model: str, place: tuple[str, int], found: Sequence[pairs.Point], fold: str
) -> Cells:  # fmt: skip
    """Every label at every declared budget, with what it really read, and the method minus it."""
    confidence, draws = inputs.results.confidence, resamples(inputs)
    full = next(point for point in found if point.budget == "full")
    own = label_of(inputs, METHOD, model)
    ours = {point.budget: point for point in found if point.label == own}
    order = {label: number for number, label in enumerate(shown_labels(inputs, model))}
    rows = []
    for point in sorted(found, key=lambda p: (wording.budget_order(p.budget), order[p.label])):
        mean = pairs.estimate(point.samples, confidence, draws, model, *place, point.label, point.budget)
        cells = [point.label, wording.budget(point.budget), share_text(point.share)]
        cells += [wording.score(mean.value, "fraction"), wording.score_interval(mean.low, mean.high, "fraction")]
        mine = ours.get(point.budget)
        for first, second in ((point, full), (mine, point)):
            if first is None or first is second:
                cells += ["", ""]
                continue
            gap = pairs.difference(first.samples, second.samples, confidence, draws, model, *place, first.label,
                                   second.label, point.budget)  # fmt: skip
            cells += [points_text(gap.value), points_interval(gap.low, gap.high)]
        rows.append([*cells, f"{len(point.samples):,}"])
    caption = (
        f"{place[0]}, {place[1]:,} tokens of context: mean over its tasks, higher is better; scores in per cent, "
        f"differences in points, paired. {inputs.about(model, place[0])}"
    )
    return Cells(caption, HEADS, rows, frozenset({1, 2, 3, 5, 7, 9}), fold=fold)


def _equal_reads(
    inputs: PaperInputs, model: str, place: tuple[str, int], found: Sequence[pairs.Point], main: bool
) -> list[Compared]:
    """The method at its main budget (or the others) against each rival at the share it read."""
    own = label_of(inputs, METHOD, model)
    ours = {point.budget: point for point in found if point.label == own}
    chosen = main_budget(list(ours))
    labels = [label_of(inputs, kind, model) for kind in RIVALS]
    rows = []
    for budget in sorted((text for text in ours if (text == chosen) == main), key=wording.budget_order):
        for label in labels:
            rivals = [point for point in found if point.label == label]
            if rivals:
                rows.append(_against(inputs, model, place, ours[budget], pairs.at_share(rivals, ours[budget].share)))
    return rows


def _against(
    inputs: PaperInputs, model: str, place: tuple[str, int], ours: pairs.Point, rival: pairs.Against
) -> Compared:
    gap = pairs.difference(ours.samples, rival.samples, inputs.results.confidence, resamples(inputs), model, *place,
                           ours.budget, rival.label, rival.share)  # fmt: skip
    printed = _published_gap(inputs, rival.label)
    verdict, level = direction(None if printed is None else printed[0], gap.low, gap.high)
    budgets = " and ".join(wording.budget(text) for text in rival.budgets.split())
    if rival.nearest:
        where = f"{rival.label} at {budgets} {rival.nearest}, {share_text(rival.share)}"
    else:
        where = f"{rival.label} between {budgets}" if " and " in budgets else f"{rival.label} at {budgets}"
    reason = WORDS["miniature"]["reason"] if printed is not None else "no such difference in print"
    return Compared(
        of=[f"{place[0]}, {short_tokens(place[1])}", rival.label, wording.budget(ours.budget), share_text(ours.share)],
        published=wording.DASH if printed is None else wording.number(printed[0], 2, signed=True),
        mark="" if printed is None else printed[1],
        measured=points_text(gap.value),
        interval=points_interval(gap.low, gap.high),
        verdict=verdict,
        level=level,
        reason=f"{where}; {reason}",
    )


def _published_gap(inputs: PaperInputs, kind: str) -> tuple[float, str] | None:
    """The method's LongBench average minus a rival's, budget 4,096, where both are in print."""
    mine = inputs.published.figure("longbench", "avg", **LLAMA, method=METHOD, budget="4096")
    other = inputs.published.figure("longbench", "avg", **LLAMA, method=kind, budget="4096")
    return None if mine is None or other is None else (mine.value - other.value, mine.mark)


def _readings(data: pd.DataFrame) -> str:
    """Each panel's lines from their smallest to their largest share."""
    parts = []
    for (suite, context), rows in data.groupby(["suite", "context"], sort=False):
        lines = []
        for label, mine in rows.groupby("method", sort=False):
            ordered = mine.sort_values("share_read")["value"]
            lines.append(f"{label} {100 * ordered.iloc[0]:.3g} to {100 * ordered.iloc[-1]:.3g}")
        parts.append(f"{suite} at {context:,} tokens: {', '.join(lines)}")
    return "; ".join(parts)


def _fold(place: tuple[str, int]) -> str:
    return f"{place[0]} at {place[1]:,} tokens"
