"""Show what a dense pass costs by its rows, and which tree pays best: that time and measured acceptance, composed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from longdecode.evals.records import Record
from longdecode.methods.registry import get_method
from longdecode.reporting import drawing, wording
from longdecode.reporting.figure import Figure, Layout, Panel, Words
from longdecode.reporting.identity import HUES, Look
from longdecode.reporting.papers.blocks import Block, Cells, Listing, Picture, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.tokenswift.texts import Value, standing, value, written

LEAST_SIZES = 2
"""Numbers of rows from which on a pass is compared by its rows."""
_OF_THE_TREE = ("heads", "draft_tokens", "tree", "ngrams", "ngram_lag")
"""Parameters that leave the draft's time as it is."""
_MARKERS = ("o", "s", "D", "^", "v", "X")


@dataclass(frozen=True, slots=True)
class Place:
    """Timed passes of one shape at one context.

    Args:
        model: the shape.
        context: tokens before the pass.
        step_us: microseconds of Full's step.
        passes: rows of speed.csv by rows of the pass, rising.
        drafts: rows of speed.csv of the stages draft and keep.
    """

    model: str
    context: int
    step_us: float
    passes: Mapping[int, pd.Series]
    drafts: pd.DataFrame

    def over(self, rows: float) -> float | None:
        """Return a pass over Full's step, on the line between the nearest sizes; ``None`` outside of those timed."""
        sizes = list(self.passes)
        if not sizes[0] <= rows <= sizes[-1]:
            return None
        return float(np.interp(rows, sizes, [1 / float(row["ratio"]) for row in self.passes.values()]))

    def drafting(self, record: Record) -> tuple[float, float] | None:
        """Return draft and keep over Full's step, the slowest timed of those that differ in the tree alone."""
        fits = [row for _, row in self.drafts.iterrows() if _same_draft(row, record)]
        found = [[1 / float(row["ratio"]) for row in fits if row["stage"] == stage] for stage in ("draft", "keep")]
        return (max(found[0]), max(found[1])) if all(found) else None

    def step(self, record: Record) -> float | None:
        """Return a whole step over Full's, composed of draft, pass and keep."""
        drafting, rows = self.drafting(record), self.over(record.measures["rows"])
        return None if drafting is None or rows is None else sum(drafting) + rows

    def timed_step(self, record: Record) -> float | None:
        """Return the whole step over Full's as it was timed with this very tree."""
        rows = self.drafts[(self.drafts["stage"] == "speculative_step") & (self.drafts["label"] == record.label)]
        fits = [1 / float(row["ratio"]) for _, row in rows.iterrows() if _same_draft(row, record)]
        return fits[0] if fits else None


@dataclass(frozen=True, slots=True)
class Tree:
    """One tree: a text that it drafted, and tokens a step over prompts."""

    record: Record
    tokens: Value

    def speedup(self, place: Place) -> float:
        """Return tokens a step over the composed step; 0 where the step is not known."""
        step = place.step(self.record)
        return self.tokens.mean / step if step else 0.0


def rows(inputs: PaperInputs) -> list[Block]:
    """Return time over rows as chart and table, and for each way to draw the tree that pays best."""
    words = inputs.words("rows")
    blocks: list[Block] = [Prose(words["text"])]
    places = [place for place in _places(inputs) if len(place.passes) >= LEAST_SIZES]
    if not places:
        return [*blocks, inputs.missing(words["missing"], "rows")]
    for model in dict.fromkeys(place.model for place in places):
        mine = [place for place in places if place.model == model]
        caption = words["caption"].format(shape=inputs.timed(model))
        blocks += [Picture(_figure(inputs, mine)), _table(mine, caption), Prose(words["composed"])]
        found = _compared(inputs)
        blocks += [block for at, trees in found.items() for block in _pays(inputs, mine, at, trees)]
        if not found:
            blocks.append(inputs.missing(words["no_texts"], "generate"))
    return blocks


def _places(inputs: PaperInputs) -> list[Place]:
    if inputs.speed is None:
        return []
    table = inputs.speed.table
    timed = table[(table["bench"] == "decode") & (table["n"] > 0) & table["ratio"].notna()]
    found = []
    for (model, context), at in timed[timed["batch"] == 1].groupby(["model", "context"], sort=False):
        by_rows = {int(json.loads(row["params"])["rows"]): row for _, row in at.iterrows()
                   if row["stage"] == "forward_rows"}  # fmt: skip
        step = at[(at["label"] == "full") & (at["stage"] == "step")]
        if by_rows and len(step):
            drafts = at[at["stage"].isin(["draft", "keep", "speculative_step"])]
            passes = dict(sorted(by_rows.items()))
            found.append(Place(str(model), int(str(context)), float(step["median_us"].iloc[-1]), passes, drafts))
    return sorted(found, key=lambda place: place.context)


def _same_draft(row: pd.Series, record: Record) -> bool:
    """Return whether a timed label drafts as the record's did: same method and budget, parameters but for the tree."""
    budget = None if row["budget"] == "full" else row["budget"]
    if row["subject"] != record.method or budget != (record.budget_tokens and str(record.budget_tokens)):
        return False
    ours, theirs = ({name: value for name, value in params.items() if name not in _OF_THE_TREE}
                    for params in (record.params, json.loads(row["params"])))  # fmt: skip
    return ours == theirs


def _compared(inputs: PaperInputs) -> dict[tuple[str, str, int, int], list[Tree]]:
    """Return trees by model, sampler, prompt and tokens written: the length at which most trees have a text."""
    exact = [r for r in written(inputs.folder) if "rows" in r.measures and r.params.get("mode", "exact") == "exact"
             and r.label != "full" and "+" not in r.label]  # fmt: skip
    found = {}
    for model, sampler, prompt in dict.fromkeys((r.model, r.task, r.context) for r in exact):
        here = [r for r in exact if (r.model, r.task, r.context) == (model, sampler, prompt)]
        own = {label: standing(here, label) for label in dict.fromkeys(r.label for r in here)}
        marks = {int(name.split("_")[1]) for r in here for name in r.measures if name.endswith("_steps")
                 and name.startswith("at_")}  # fmt: skip
        at = {past: {label: seen for label, texts in own.items()
                     if (seen := value(texts, {}, "tokens_per_step", past)) is not None} for past in marks}  # fmt: skip
        past = max(at, key=lambda past: (len(at[past]), past), default=0)
        if len(at.get(past, ())) > 1:
            found[model, sampler, prompt, past] = [Tree(own[label][0], seen) for label, seen in at[past].items()]
    return found


def _pays(
    inputs: PaperInputs, places: Sequence[Place], at: tuple[str, str, int, int], trees: Sequence[Tree]
) -> list[Block]:
    """Return the tree that pays best at each context, a row for each tree, and those without a time."""
    words, (model, sampler, prompt, past) = inputs.words("rows"), at
    known = [tree for tree in trees if any(place.step(tree.record) for place in places)]
    if len(known) < 2:
        return []
    ranked = sorted(known, key=lambda tree: -tree.speedup(places[-1]))
    best = []
    for place in places:
        tree = max(ranked, key=lambda tree: tree.speedup(place))
        rows, (draft, keep) = place.over(tree.record.measures["rows"]), place.drafting(tree.record) or (0.0, 0.0)
        parts = [wording.number(part, 2) for part in (tree.tokens.mean, draft, rows, keep)]
        best.append(
            f"{wording.short_tokens(place.context)}: `{tree.record.label}`, {_size(tree.record)} rows, "
            f"{wording.number(tree.speedup(place), 2)} = {parts[0]} / ({' + '.join(parts[1:])})"
        )
    said = words["said"].format(model=model, sampler=sampler, prompt=f"{prompt:,}", past=f"{past:,}", n=len(known))
    caption = words["trees"].format(model=model, sampler=sampler, prompt=f"{prompt:,}", past=f"{past:,}")
    heads = ["Label", "Tree", "N-grams", "Rows", "Tokens a step", "Interval"]
    for place in places:
        short = wording.short_tokens(place.context)
        heads += [f"{short}: step over Full's", f"{short}: composed"]
    cells = [_row(tree, places, inputs.results.confidence) for tree in ranked]
    return [
        Prose(said),
        Listing(best),
        Cells(caption, heads, cells, frozenset({2, 3, 4, *range(6, len(heads))})),
        *_apart(known, places),
        *_left_out([tree for tree in trees if tree not in known], places),
    ]


def _row(tree: Tree, places: Sequence[Place], confidence: float) -> list[str]:
    record = tree.record
    knobs = asdict(get_method(record.method).Params()) | record.params
    shown = [record.label, *(str(knobs.get(name, wording.DASH)) for name in ("tree", "ngrams"))]
    shown += [_size(record), wording.number(tree.tokens.mean, 2), tree.tokens.bounds(confidence)]
    for place in places:
        step = place.step(record)
        shown += [wording.number(step, 2), wording.number(tree.speedup(place) if step else None, 2)]
    return shown


def _size(record: Record) -> str:
    return f"{record.measures['rows']:.0f}"


def _apart(trees: Sequence[Tree], places: Sequence[Place]) -> list[Block]:
    """Return how far composed steps are from those that were timed whole."""
    pairs = [(place.step(tree.record), place.timed_step(tree.record)) for tree in trees for place in places]
    off = [abs(ours / theirs - 1) for ours, theirs in pairs if ours and theirs]
    most = f"{wording.number(100 * max(off, default=0), 1)}{wording.NARROW}%"
    text = f"Composed steps are off by {most} at most from those that were timed whole ({len(off)} of {len(pairs)})."
    return [Prose(text)] if off else []


def _left_out(trees: Sequence[Tree], places: Sequence[Place]) -> list[Block]:
    sizes = sorted({size for place in places for size in place.passes})
    items = []
    for tree in trees:
        why = f"{_size(tree.record)} rows, where passes of {sizes[0]} to {sizes[-1]} were timed"
        if all(place.drafting(tree.record) is None for place in places):
            why = "no draft like its own was timed on this shape"
        items.append(f"`{tree.record.label}`: {why}.")
    return [Prose("Not composed:"), Listing(items)] if items else []


def _table(places: Sequence[Place], caption: str) -> Cells:
    """Return a row for each number of rows, a pair of columns for each context."""
    heads = ["Rows"]
    for place in places:
        short = wording.short_tokens(place.context)
        heads += [f"{short}: ms", f"{short}: over Full's step", "Interval"]
    steps = ["1, a step of Full"]
    for place in places:
        steps += [wording.milliseconds(place.step_us), wording.number(1, 3), ""]
    lines = [steps]
    for size in sorted({size for place in places for size in place.passes}):
        line = [str(size)]
        for place in places:
            row = place.passes.get(size)
            if row is None:
                line += [wording.DASH] * 3
                continue
            over, low, high = (1 / float(row[name]) for name in ("ratio", "ratio_high", "ratio_low"))
            line += [wording.milliseconds(row["median_us"]), wording.number(over, 3), wording.interval(low, high, 3)]
        lines.append(line)
    numeric = frozenset(n for n in range(1, len(heads)) if heads[n] != "Interval")
    return Cells(caption, heads, lines, numeric)


def _figure(inputs: PaperInputs, places: Sequence[Place]) -> Figure:
    """Draw milliseconds and times of Full's step against rows, a line a context; dashed is Full's step."""
    looks = {place.context: Look(wording.short_tokens(place.context), HUES[n % len(HUES)], _MARKERS[n % len(_MARKERS)],
                                 False, False) for n, place in enumerate(places)}  # fmt: skip
    data = pd.DataFrame(
        [
            {"context": place.context, "rows": size, "ms": row["median_us"] / 1e3, "ms_p5": row["p5_us"] / 1e3,
             "ms_p95": row["p95_us"] / 1e3, "full_step_ms": place.step_us / 1e3, "over_full": 1 / row["ratio"],
             "over_low": 1 / row["ratio_high"], "over_high": 1 / row["ratio_low"]}
            for place in places for size, row in place.passes.items()
        ]
    )  # fmt: skip
    panels = [
        _panel(data, looks, "milliseconds", ("ms", "ms_p5", "ms_p95"), "full_step_ms"),
        _panel(data.assign(one=1.0), looks, "times Full's step", ("over_full", "over_low", "over_high"), "one"),
    ]
    words = Words("paper_rows", f"Batch 1. {inputs.timed(places[0].model)}", {})
    layout = Layout("rows of the pass", wide=2, narrow=1, panel_in=2.3)
    name = f"paper-tokenswift-rows-{wording.slug(places[0].model)}"
    return inputs.writer.write(name, words, panels, data, layout, list(looks.values()))


def _panel(data: pd.DataFrame, looks: Mapping[int, Look], title: str, columns: Sequence[str], step: str) -> Panel:
    def draw(axes: Axes) -> None:
        axes.set_title(title)
        drawing.token_axis(axes, data["rows"], least=0.07)
        axes.set_ylim(0, 1.06 * float(data[columns[2]].max()))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        for place, (context, look) in enumerate(looks.items()):
            mine = data[data["context"] == context]
            shown = mine[list(columns)].set_axis(["value", "low", "high"], axis=1)
            drawing.line(axes, look, list(mine["rows"]), shown, 1.0, place=place + 1)
            axes.axhline(float(mine[step].iloc[0]), color=look.colour, linestyle="--", linewidth=1.0, alpha=0.7)

    return draw
