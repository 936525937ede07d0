"""Say where RetroAttention's gain comes from: corrected keys, corrected values, and a longer window, each by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import (
    Block,
    Cells,
    Prose,
    direction,
    flips,
    points_interval,
    points_text,
)
from longdecode.reporting.papers.inputs import PaperInputs, full_of
from longdecode.reporting.papers.retro.books import VERDICTS, book_places
from longdecode.reporting.papers.retro.gains import ROOM, quest_of
from longdecode.reporting.wording import short_tokens

HEADS = ("Part", "Suite", "Context", "Budget", "Difference", "Interval", "Verdict", "Answers")
_NUMERIC = frozenset({2, 3, 4})
Step = tuple[str, str, str]
"""A question in words, and the two labels whose difference answers it."""


def origin(inputs: PaperInputs) -> list[Block]:
    """Return, where Quest leaves room, what each part of the correction wins by itself and beside the others."""
    words = inputs.words("origin")
    found: list[Block] = [Prose(text) for text in words["text"]]
    ran = False
    for model in inputs.compared_models():
        steps = list(_steps(inputs, model))
        about = inputs.about(model, None)
        if rows := [row for step in steps for row in _rows(inputs, model, step, books=False)]:
            found.append(Prose(words["summary"].format(model=model, counts=_counted(rows))))
            found.append(Cells(words["caption"].format(about=about), HEADS, rows, _NUMERIC))
        if text := [row for step in steps for row in _rows(inputs, model, step, books=True)]:
            told = words["text_caption"].format(about=about)
            found.append(Cells(told, HEADS[:-1], text, _NUMERIC, words["text_fold"]))
        ran = ran or bool(rows or text)
        if steps and not rows:
            found.append(Prose(words["no_room"].format(model=model)))
    return found if ran else [*found, inputs.missing(words["missing"], "retro")]


def _steps(inputs: PaperInputs, model: str) -> Iterator[Step]:
    """Yield the windows one after the other, then the parts of the window of which parts ran."""
    by_window: dict[int, dict[str, str]] = {}
    for label in inputs.labels(inputs.spec.method, model):
        params = inputs.params(label, model)
        if set(params) <= {"window", "overwrite"}:
            by_window.setdefault(int(params.get("window", 2)), {})[str(params.get("overwrite", "both"))] = label
    whole = {window: parts["both"] for window, parts in sorted(by_window.items()) if "both" in parts}
    last, below = next((quest_of(inputs, model, label) for label in whole.values()), None), "Quest"
    for window, label in whole.items():
        if last:
            yield f"window {window} over {below}", label, last
        last, below = label, f"window {window}"
    for window, parts in sorted(by_window.items()):
        quest = quest_of(inputs, model, next(iter(parts.values())))
        for one, other in (("values", "keys"), ("keys", "values")):
            if quest and one in parts:
                yield f"{one} alone, window {window}, over Quest", parts[one], quest
            if "both" in parts and other in parts:
                yield f"{one} added to {other}, window {window}", parts["both"], parts[other]


def _counted(rows: Sequence[Sequence[str]]) -> str:
    """Say of each part in how many cells it gains, and in how many it loses."""
    said = []
    for part in dict.fromkeys(row[0] for row in rows):
        verdicts = [row[HEADS.index("Verdict")] for row in rows if row[0] == part]
        lost = verdicts.count("below 0")
        less = f" and is below it in {lost}" if lost else ""
        said.append(f"{part} is above 0 in {verdicts.count('above 0')} of {len(verdicts)}{less}")
    return "; ".join(said)


def _rows(inputs: PaperInputs, model: str, step: Step, books: bool) -> Iterator[list[str]]:
    what, ours, theirs = step
    quest = quest_of(inputs, model, ours) or ""
    for place in book_places(inputs, model) if books else inputs.places(model):
        records = inputs.records(model, [place])
        full = full_of(records)
        for budget in sorted({r.budget for r in records if r.label == ours}, key=wording.budget_order):
            mine, base, least = (
                pairs.scored([r for r in records if r.label == label and r.budget == budget])
                for label in (ours, theirs, quest)
            )
            if not (mine and base and least and full):
                continue
            gap = inputs.paired(mine, base, model, *place, ours, theirs, budget)
            of = [what, place[0], short_tokens(place[1]), wording.budget(budget)]
            if books:
                value = wording.number(gap.value, 3, signed=True)
                yield [
                    *of,
                    value,
                    wording.interval(gap.low, gap.high, 3, signed=True),
                    VERDICTS[gap.sign(inputs.alpha)][0],
                ]
            elif ROOM[0] <= pairs.mean_of(least) / max(pairs.mean_of(full), 1e-9) <= ROOM[1]:
                verdict = direction(None, gap, inputs.alpha)[0]
                yield [*of, points_text(gap.value), points_interval(gap), verdict, flips(gap)]
