"""Show speedups over several books: each text beside Full's of the same job and book, their mean with an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from longdecode.evals.records import Record
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.tokenswift.tables import about
from longdecode.reporting.papers.tokenswift.texts import Value, fulls, longest, run_of, value, written

INTERVALS = {"student": "Student's", "bootstrap": "BCa bootstrap"}
"""Kinds of interval that a mean over prompts can have, in words."""
_HEADS = ("Label", "Sampler", "Prompt", "Tokens", "n", "Tokens a step", "alpha", "Over Full", "Interval",
          "Book by book", "Repeated 8-grams, %", "Full's, %")  # fmt: skip


def over_books(inputs: PaperInputs) -> list[Block]:
    """Return a sentence and a table for each model that wrote after several books in one job."""
    words, theirs, confidence = inputs.words("books"), fulls(inputs.folder), inputs.results.confidence
    groups: dict[tuple[str, ...], list[Record]] = {}
    for r in written(inputs.folder):
        if r.label != "full" and "+" not in r.label:
            place = (r.model, run_of(inputs.folder, r), r.task, str(r.context), r.label, r.budget)
            groups.setdefault(place, []).append(r)
    found: dict[str, list[tuple[list[Record], Value]]] = {}
    for (model, *_), own in groups.items():
        seen = value(own, theirs, "speedup", longest(own))
        if seen is not None and seen.prompts > 1:
            found.setdefault(model, []).append((own, seen))
    if not found:
        return [Prose(words["text"]), inputs.missing(words["missing"], "books")]
    blocks: list[Block] = [Prose(words["text"])]
    for model, mine in found.items():
        kinds = wording.listing(sorted({INTERVALS[seen.estimate(confidence).kind] for _, seen in mine}))
        caption = words["caption"].format(kinds=kinds, percent=f"{100 * confidence:g}{wording.NARROW}%")
        said = "; ".join(_said(own[0], seen, confidence) for own, seen in mine)
        rows = [_row(own, seen, theirs, confidence) for own, seen in mine]
        numeric = frozenset({2, 3, 4, 5, 6, 7, 10, 11})
        blocks += [
            Prose(words["said"].format(model=model, said=said)),
            Cells(f"{caption} {about(inputs, model)}", _HEADS, rows, numeric),
        ]
    return blocks


def _said(record: Record, seen: Value, confidence: float) -> str:
    bounds = seen.estimate(confidence)
    against = "faster" if bounds.low > 1 else "slower" if bounds.high < 1 else "not told apart from Full"
    mean = wording.number(seen.mean, 2)
    return f"`{record.label}` drawn by `{record.task}` {mean} {seen.bounds(confidence)}, {against}"


def _row(own: Sequence[Record], seen: Value, theirs: Mapping[int, Record], confidence: float) -> list[str]:
    first, past = own[0], longest(own)
    rates = [value(own, theirs, column, past) for column in ("tokens_per_step", "alpha")]
    references = [theirs[id(r)] for r in own if id(r) in theirs]
    again = [fmean(r.measures["repeated_8"] for r in texts) for texts in (own, references)]
    return [
        first.label, first.task, f"{first.context:,}", f"{past:,}", str(seen.prompts),
        *(wording.DASH if rate is None else wording.number(rate.mean, 2) for rate in rates),
        wording.number(seen.mean, 2), seen.bounds(confidence),
        ", ".join(wording.number(one, 2) for one in seen.each),
        *(wording.number(100 * share, 0) for share in again),
    ]  # fmt: skip
