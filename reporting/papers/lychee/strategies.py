"""Selection strategies beside each other: scores where each really read, and the ratio rule interpolated to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes

from longdecode.reporting import drawing, wording
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.identity import HUES, INK, Look
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import Block, Compared, Comparison, Picture, Prose, direction
from longdecode.reporting.papers.inputs import PaperInputs, config_params
from longdecode.reporting.papers.lychee.common import (
    METHOD,
    SUITES,
    WORDS,
    contexts_of,
    full_of,
    hole,
    label_of,
    points_interval,
    points_text,
    records_of,
    resamples,
    share_text,
)
from longdecode.reporting.results import REFERENCE_METHOD
from longdecode.reporting.wording import short_tokens, slug

RATIO = "ratio"
OWN_KEYS = frozenset({"mode", "strategy", "ratio", "top_p", "threshold"})
"""Parameters that say how a list is chosen; labels that differ in these alone are compared."""
KEPT_KEYS = frozenset({"sink_tokens", "recent_tokens"})
"""What a list always holds; a label in which both are 0 is compared as one that keeps nothing."""


class Kind(NamedTuple):
    """How a label chooses its lists."""

    strategy: str
    mode: str
    bare: bool = False


STRATEGIES: dict[Kind, Look] = {
    Kind("top_k", "block"): Look("top-k, blocks", HUES[2], "o", False, False),
    Kind("top_k", "token"): Look("top-k, tokens", HUES[2], "o", True, False),
    Kind(RATIO, "block"): Look("ratio, blocks", HUES[1], "s", False, False),
    Kind(RATIO, "token"): Look("ratio, tokens", HUES[1], "s", True, False),
    Kind("top_p", "token"): Look("top-p, tokens", HUES[0], "D", True, False),
    Kind("threshold", "token"): Look("threshold, tokens", HUES[3], "^", True, False),
    Kind("top_p", "token", bare=True): Look("top-p, nothing kept", HUES[0], "D", False, False),
    Kind("threshold", "token", bare=True): Look("threshold, nothing kept", HUES[3], "^", False, False),
}
_FULL = Look("full", INK, "", False, True)


def blocks(inputs: PaperInputs) -> list[Block]:
    """For every model with another strategy than top-k: the figure and the table at equal reads."""
    words = WORDS["strategies"]
    found: list[Block] = [Prose(words["text"].format(what=inputs.published.tables["strategies"].what))]
    models = [model for model in inputs.models_with(*SUITES) if len(set(strategies(inputs, model).values())) > 1]
    if not models:
        return [*found, hole(inputs, words["hole"], "all")]
    for model in models:
        found += _of_model(inputs, model)
    return found


def strategies(inputs: PaperInputs, model: str) -> dict[str, Kind]:
    """Labels that differ from the method's own in how a list is chosen and in nothing else; the strategy of each."""
    own = label_of(inputs, METHOD, model)
    if own is None:
        return {}
    ours = config_params(inputs.results, own, model)
    found = {}
    for label in inputs.labels(METHOD, model):
        params = config_params(inputs.results, label, model)
        bare = all(params.get(name) == 0 for name in KEPT_KEYS)
        kind = Kind(str(params.get("strategy", "top_k")), str(params.get("mode", "block")), bare)
        own_keys = OWN_KEYS | KEPT_KEYS if bare else OWN_KEYS
        if _without(params, own_keys) == _without(ours, own_keys) and kind in STRATEGIES:
            found[label] = kind
    return found


def _without(params: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name not in names}


def _of_model(inputs: PaperInputs, model: str) -> list[Block]:
    names = strategies(inputs, model)
    ends = {
        suite: (min(contexts), max(contexts)) for suite in SUITES if (contexts := contexts_of(inputs, model, suite))
    }
    places = [(suite, context) for suite, both in ends.items() for context in dict.fromkeys(both)]
    curves: dict[tuple[str, int], list[pairs.Point]] = {}
    for suite, context in places:
        records = records_of(inputs, model, [suite], [context])
        full = full_of(records)
        wanted = [r for r in records if r.label in names or r.method == REFERENCE_METHOD]
        curves[(suite, context)] = pairs.points(wanted, full, sparse_heads=True)
    figure = _figure(inputs, model, names, curves)
    blocks_: list[Block] = [] if figure is None else [Picture(figure)]
    for place in sorted(curves, key=lambda place: place[1] != ends[place[0]][0]):
        suite, context = place
        rows = [
            _row(inputs, model, place, kind, point, ratio)
            for kind in STRATEGIES
            if kind.strategy != RATIO
            for point in sorted(curves[place], key=lambda p: p.share)
            if names.get(point.label) == kind
            if (ratio := [other for other in curves[place] if names.get(other.label) == Kind(RATIO, kind.mode)])
        ]
        if rows:
            heads = ("Ratio minus", "At", "Read", "Its score")
            caption = f"Ratio minus another strategy, where that strategy's points read: {suite}, {context:,} tokens."
            fold = "" if context == ends[suite][0] else f"{suite} at {context:,} tokens"
            blocks_.append(Comparison(f"{caption} {inputs.about(model, None)}", heads, rows, "points", fold=fold))
    return blocks_


def _row(
    inputs: PaperInputs, model: str, place: tuple[str, int], kind: Kind, point: pairs.Point,
    ratio: Sequence[pairs.Point],
) -> Compared:  # fmt: skip
    rival = pairs.at_share(ratio, point.share)
    gap = pairs.difference(rival.samples, point.samples, inputs.results.confidence, resamples(inputs), model, *place,
                           RATIO, point.label, point.budget)  # fmt: skip
    printed = inputs.published.figure("strategies", "rank", strategy=RATIO)
    verdict, level = direction(1.0, gap.low, gap.high)
    capped = kind.strategy in ("top_p", "threshold")
    at = point.label if capped else f"{point.label}, {wording.budget(point.budget)}"
    near = f"; ratio {rival.nearest} there ({share_text(rival.share)})" if rival.nearest else ""
    return Compared(
        of=[STRATEGIES[kind].label, at, share_text(point.share), f"{100 * point.value:.1f}"],
        published="above 0",
        mark="" if printed is None else printed.mark,
        measured=points_text(gap.value),
        interval=points_interval(gap.low, gap.high),
        verdict=verdict,
        level=level,
        reason=WORDS["strategies"]["reason"] + near,
    )  # fmt: skip


def _figure(
    inputs: PaperInputs, model: str, names: Mapping[str, Kind], curves: Mapping[tuple[str, int], list[pairs.Point]]
) -> Figure | None:
    rows = []
    for (suite, context), found in curves.items():
        for point in found:
            identity = (model, suite, point.label, point.budget)
            mean = pairs.estimate(point.samples, inputs.results.confidence, resamples(inputs), *identity)
            place = {"model": model, "suite": suite, "context": context, "method": point.label, "budget": point.budget}
            kind = names.get(point.label)
            read = {"strategy": _FULL.label if kind is None else STRATEGIES[kind].label, "share_read": point.share}
            score = {"n": len(point.samples), "value": mean.value, "low": mean.low, "high": mean.high}
            rows.append(place | read | score)
    data = pd.DataFrame(rows)
    if data.empty or data["strategy"].nunique() < 3:
        return None
    panels = [
        _panel(data[(data["suite"] == suite) & (data["context"] == context)], f"{suite}, {short_tokens(context)}")
        for suite, context in curves
    ]
    used = [look for look in STRATEGIES.values() if look.label in set(data["strategy"])]
    counts = data.groupby("strategy", sort=False).size()
    fields = {
        "readings": ", ".join(f"{kind} {count} points" for kind, count in counts.items() if kind != _FULL.label),
        "coverage": f"{100 * inputs.results.confidence:g} %", "samples": f"n = {data['n'].max():,} samples",
    }  # fmt: skip
    words = Words("paper_strategies", inputs.about(model, None), fields)
    layout = Layout("read by sparse heads (% of the context)", "right (%)", wide=2)
    name = f"paper-lychee-strategies-{slug(model)}"
    return inputs.writer.write(name, words, panels, data, layout, [_FULL, *used])


def _panel(rows: pd.DataFrame, title: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        axes.set_title(title)
        swept = rows[rows["strategy"] != _FULL.label]
        drawing.percent_axis(axes, swept["share_read"])
        for _, row in rows[rows["strategy"] == _FULL.label].iterrows():
            drawing.reference(axes, _FULL, row, 100.0)
        present = [look for look in STRATEGIES.values() if look.label in set(swept["strategy"])]
        for place, look in enumerate(present):
            mine = swept[swept["strategy"] == look.label].sort_values("share_read")
            drawing.line(axes, look, list(100 * mine["share_read"]), mine, 100.0, place=place)
        drawing.score_axis(axes, True)

    return draw
