"""Ask the paper's question of models that run here: what a label wins over Quest at the same pages and budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from longdecode.evals.records import Record
from longdecode.methods.registry import load_card
from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import (
    Block,
    Cells,
    Compared,
    Comparison,
    Prose,
    compared,
    direction,
    flips,
    points_interval,
    points_text,
    share_text,
)
from longdecode.reporting.papers.inputs import PaperInputs, full_of
from longdecode.reporting.papers.printed import printed_only
from longdecode.reporting.papers.retro.books import along_books, book_places, book_row
from longdecode.reporting.wording import short_tokens

QUEST = "quest"
CONTROLS = ("page_union", "selection_reuse")
SAME_PAGES = ("share", "page_size", "group_score")
"""Parameters in which a label and the Quest that it is held against agree."""
ROOM = (0.60, 0.95)
"""Shares of Full's score between which Quest leaves something to win back."""
HEADS = ("Label", "Suite", "Context", "Budget")
WINDOWS = ("Suite", "Context", "Budget", "Window", "Right", "Interval", "Read over Quest", "Minus Quest", "Interval")


@dataclass(frozen=True, slots=True)
class Cell:
    """One label beside Quest at one place and budget; ``standing`` is Quest's score ``quest`` as a share of Full's."""

    label: str
    place: tuple[str, int]
    budget: str
    quest: float
    standing: float
    gap: pairs.Paired

    @property
    def has_room(self) -> bool:
        """Return true where Quest has lost something, and not everything."""
        return ROOM[0] <= self.standing <= ROOM[1]


def gains(inputs: PaperInputs) -> list[Block]:
    """Return every label of the method and every control minus Quest, and how many cells say what."""
    words, models = inputs.words("gains"), inputs.compared_models()
    found: list[Block] = [Prose(text) for text in words["text"]]
    ran = False
    for model in models:
        own = list(_cells(inputs, model, inputs.labels(inputs.spec.method, model)))
        others = [label for kind in CONTROLS for label in inputs.labels(kind, model)]
        others += [label for label in _grown(inputs, model) if label not in others]
        beside = list(_cells(inputs, model, others))
        caption = words["caption"].format(about=inputs.about(model, None))
        if own:
            ran = True
            found.append(Prose(_summary(words["summary"], model, own, inputs.alpha)))
            found.append(Comparison(caption, HEADS, [_row(inputs, cell) for cell in own], "points"))
        if text := list(_text_rows(inputs, model)):
            found.append(Comparison(words["text_caption"].format(about=inputs.about(model, None)), HEADS, text, "nats"))
        if quarters := list(along_books(inputs, model, _quests(inputs, model))):
            heads = ("Label", "Quarter", "Context", "Budget")
            told = words["quarters_caption"].format(about=inputs.about(model, None))
            found.append(Comparison(told, heads, quarters, "nats", fold="Minus Quest, quarter by quarter of the text"))
        rows = [_row(inputs, cell) for cell in beside] + list(_paid_rows(inputs, model))
        if rows:
            fold = "Controls: reused and joined selections, growing caches, and Quest at a larger budget"
            found.append(Comparison(caption, HEADS, rows, "points", fold=fold))
    return found if ran else [*found, inputs.missing(words["missing"], "retro")]


def windows(inputs: PaperInputs) -> list[Block]:
    """Return score and traffic by window, for labels that differ from the method's own in the window alone."""
    words = inputs.words("window")
    text = Prose(words["text"].format(what=inputs.published.tables["traffic"].what))
    found: list[Block] = [text, printed_only(inputs.published, "traffic")]
    ran = False
    for model in inputs.compared_models():
        labels = _by_window(inputs, model)
        rows = [row for place in inputs.places(model) for row in _window_rows(inputs, model, place, labels)]
        if len(labels) > 1 and rows:
            ran = True
            caption = words["caption"].format(about=inputs.about(model, None))
            found.append(Cells(caption, WINDOWS, rows, frozenset({1, 2, 3, 4, 6, 7})))
    return found if ran else [*found, inputs.missing(words["missing"], "retro")]


def best_gain(inputs: PaperInputs) -> Compared | None:
    """Return the largest gain over Quest, relative to Quest, of the cells with room, with its own interval."""
    cells = _relative(inputs)
    if not cells:
        return None
    model, cell = max(cells, key=lambda found: found[1].gap.value / found[1].quest)
    value, low, high = (100 * part / cell.quest for part in (cell.gap.value, cell.gap.low, cell.gap.high))
    where = f"{cell.place[0]} at {short_tokens(cell.place[1])} and {wording.budget(cell.budget)}"
    reason = inputs.words("claims")["best"].format(label=cell.label, where=where, model=model, cells=len(cells))
    return _other_models(value, reason, wording.interval(low, high, 1, signed=True))


def mean_gain(inputs: PaperInputs) -> Compared | None:
    """Return the mean of the gains over Quest, relative to Quest, of the cells with room."""
    cells = _relative(inputs)
    if not cells:
        return None
    value = 100 * sum(cell.gap.value / cell.quest for _, cell in cells) / len(cells)
    return _other_models(value, inputs.words("claims")["mean"].format(cells=len(cells)))


def quest_of(inputs: PaperInputs, model: str, label: str) -> str | None:
    """Return the label of Quest that chooses pages as this one does: same share, page size and group rule."""
    wanted = _pages_of(inputs, model, label)
    return next((other for other in inputs.labels(QUEST, model) if _pages_of(inputs, model, other) == wanted), None)


def _cells(
    inputs: PaperInputs, model: str, labels: Sequence[str], places: Sequence[tuple[str, int]] | None = None
) -> Iterator[Cell]:
    for label in labels:
        quest = quest_of(inputs, model, label)
        for place in (inputs.places(model) if places is None else places) if quest else ():
            records = inputs.records(model, [place])
            full = full_of(records)
            for budget in sorted({r.budget for r in records if r.label == label}, key=wording.budget_order):
                ours, theirs = (_samples(records, name, budget) for name in (label, quest or ""))
                if ours and theirs and full:
                    standing = pairs.mean_of(theirs) / max(pairs.mean_of(full), 1e-9)
                    gap = inputs.paired(ours, theirs, model, *place, label, budget)
                    yield Cell(label, place, budget, pairs.mean_of(theirs), standing, gap)


def _relative(inputs: PaperInputs) -> list[tuple[str, Cell]]:
    """Return the cells with room of the paper's own configuration, a window of 2, with their models."""
    own = {model: _by_window(inputs, model).get(2) for model in inputs.compared_models()}
    found = [(model, cell) for model, label in own.items() if label for cell in _cells(inputs, model, [label])]
    return [(model, cell) for model, cell in found if cell.has_room]


def _other_models(value: float, reason: str, interval: str = "") -> Compared:
    return compared([], None, wording.number(value, 1, signed=True), interval, "not comparable", "muted", reason)


def _row(inputs: PaperInputs, cell: Cell) -> Compared:
    words = inputs.words("gains")
    verdict, level = direction(None, cell.gap, inputs.alpha)
    if cell.gap.sign(inputs.alpha) == 0:
        verdict = "no gain shown"
    reason = words["where_it_could" if cell.has_room else "little_room"].format(share=f"{100 * cell.standing:.0f}")
    of = [cell.label, cell.place[0], short_tokens(cell.place[1]), wording.budget(cell.budget)]
    cells = (points_text(cell.gap.value), points_interval(cell.gap), verdict, level)
    return compared(of, None, *cells, f"{reason}; {flips(cell.gap)}")


def _text_rows(inputs: PaperInputs, model: str) -> Iterator[Compared]:
    """Yield the loss of forced text over Full's, minus Quest's: below 0 is a gain."""
    for cell in _cells(inputs, model, inputs.labels(inputs.spec.method, model), book_places(inputs, model)):
        of = [cell.label, cell.place[0], short_tokens(cell.place[1]), wording.budget(cell.budget)]
        yield book_row(of, cell.quest, cell.gap, inputs.alpha)


def _quests(inputs: PaperInputs, model: str) -> dict[str, str]:
    """Return each label of the method with the Quest that it is held against."""
    labels = inputs.labels(inputs.spec.method, model)
    return {label: quest for label in labels if (quest := quest_of(inputs, model, label))}


def _paid_rows(inputs: PaperInputs, model: str) -> Iterator[Compared]:
    """Yield Quest at budgets that pay for RetroAttention's exposure, minus Quest at the budget below."""
    base = quest_of(inputs, model, inputs.label(inputs.spec.method, model) or "")
    for label in inputs.labels(QUEST, model) if base else ():
        if label == base or _pages_of(inputs, model, label) != _pages_of(inputs, model, base or ""):
            continue
        for place in inputs.places(model):
            records = inputs.records(model, [place])
            own = sorted({r.budget for r in records if r.label == base}, key=wording.budget_order)
            for budget in sorted({r.budget for r in records if r.label == label}, key=wording.budget_order):
                below = [text for text in own if wording.budget_order(text) < wording.budget_order(budget)]
                if not below:
                    continue
                ours, theirs = _samples(records, label, budget), _samples(records, base or "", below[-1])
                gap = inputs.paired(ours, theirs, model, *place, label, budget)
                verdict, level = direction(None, gap, inputs.alpha)
                of = [label, place[0], short_tokens(place[1]), wording.budget(budget)]
                reason = f"over Quest at {wording.budget(below[-1])}; {flips(gap)}"
                yield compared(of, None, points_text(gap.value), points_interval(gap), verdict, level, reason)


def _window_rows(
    inputs: PaperInputs, model: str, place: tuple[str, int], labels: Mapping[int, str]
) -> Iterator[list[str]]:  # fmt: skip
    records = inputs.records(model, [place])
    quest = quest_of(inputs, model, labels.get(2) or next(iter(labels.values()), "")) or QUEST
    for budget in sorted({r.budget for r in records if r.label == quest}, key=wording.budget_order):
        theirs = _samples(records, quest, budget)
        for window, label in sorted({1: quest, **labels}.items()):
            ours = _samples(records, label, budget)
            if not ours:
                continue
            mean = inputs.score(ours, model, label, budget)
            cells = [place[0], short_tokens(place[1]), wording.budget(budget), str(window)]
            cells += [wording.score(mean.value, "fraction"), wording.score_interval(mean.low, mean.high, "fraction")]
            cells.append(f"+{share_text(pairs.achieved_share(ours, theirs) - 1)}")
            gap = None if label == quest else inputs.paired(ours, theirs, model, *place, label, budget)
            yield [*cells, *(("", "") if gap is None else (points_text(gap.value), points_interval(gap)))]


def _by_window(inputs: PaperInputs, model: str) -> dict[int, str]:
    """Return the method's labels that have nothing but their window of their own, by window."""
    own = inputs.label(inputs.spec.method, model) or ""
    wanted = inputs.params(own, model, ("window",))
    found: dict[int, str] = {}
    for label in inputs.labels(inputs.spec.method, model):
        if inputs.params(label, model, ("window",)) == wanted:
            found.setdefault(int(inputs.params(label, model).get("window", 2)), label)
    return found


def _grown(inputs: PaperInputs, model: str) -> list[str]:
    """Return the labels of other methods whose budget grows."""
    kinds = (inputs.spec.method, QUEST)
    return [
        label
        for label in inputs.results.labels
        if inputs.params(label, model).get("share") and not any(label in inputs.labels(kind, model) for kind in kinds)
    ]


def _pages_of(inputs: PaperInputs, model: str, label: str) -> tuple[object, ...]:
    """Return what a label sets of ``SAME_PAGES``, Quest's defaults where it sets nothing."""
    defaults = {knob.name: knob.default for knob in load_card(QUEST).knobs}
    params = inputs.params(label, model)
    return tuple(params.get(name, defaults[name]) for name in SAME_PAGES)


def _samples(records: Sequence[Record], label: str, budget: str) -> dict[pairs.Key, pairs.Sample]:
    return pairs.scored([r for r in records if r.label == label and r.budget == budget])


def _summary(text: str, model: str, cells: Sequence[Cell], alpha: float) -> str:
    signs = [cell.gap.sign(alpha) for cell in cells if cell.has_room]
    counts = {name: signs.count(sign) for name, sign in (("up", 1), ("down", -1), ("none", 0))}
    return text.format(model=model, cells=len(signs), **counts)
