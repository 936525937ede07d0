"""Hold RetroAttention against Quest on books: the loss of forced text over Full's, whole and along the continuation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from longdecode.evals.records import Record
from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import Compared, Level, compared
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.wording import short_tokens

SUITES = ("fidelity", "pg19_long")
LONG = "pg19_long"
QUARTERS = 4
VERDICTS: Mapping[int, tuple[str, Level]] = {
    -1: ("gain", "shown"), 0: ("no gain shown", "muted"), 1: ("loses more", "worse"),
}  # fmt: skip


def book_places(inputs: PaperInputs, model: str) -> list[tuple[str, int]]:
    """Return the suites of books with the contexts at which Full and the method both ran."""
    return [(suite, context) for suite in SUITES for context in inputs.contexts(model, suite)]


def book_row(of: Sequence[str], quest: float, gap: pairs.Paired, alpha: float) -> Compared:
    """Return one paired difference to Quest in nats; below 0 is a gain."""
    verdict, level = VERDICTS[gap.sign(alpha)]
    value = wording.number(gap.value, 3, signed=True)
    spread = wording.interval(gap.low, gap.high, 3, signed=True)
    reason = f"Quest loses {quest:.3f}; fewer in {gap.losses} texts, more in {gap.wins}"
    return compared(of, None, value, spread, verdict, level, reason)


def along_books(inputs: PaperInputs, model: str, pages: Mapping[str, str]) -> Iterator[Compared]:
    """Yield each label's loss minus Quest's by quarter of a long continuation.

    Args:
        pages: label to the label of Quest with the same pages.
    """
    for context in inputs.contexts(model, LONG):
        records = inputs.records(model, [(LONG, context)])
        for label, quest in pages.items():
            for budget in sorted({r.budget for r in records if r.label == label}, key=wording.budget_order):
                ours, theirs = (
                    [r for r in records if r.label == name and r.budget == budget and r.parts]
                    for name in (label, quest)
                )
                for quarter in range(QUARTERS if ours and theirs else 0):
                    mine, base = (_of_quarter(found, quarter) for found in (ours, theirs))
                    gap = inputs.paired(mine, base, model, LONG, context, label, budget, quarter)
                    of = [label, f"{quarter + 1} of {QUARTERS}", short_tokens(context), wording.budget(budget)]
                    yield book_row(of, pairs.mean_of(base), gap, inputs.alpha)


def _of_quarter(records: Sequence[Record], quarter: int) -> dict[pairs.Key, pairs.Sample]:
    """Return samples whose score is the mean over one quarter of their stretches."""
    cut = [
        r.model_copy(update={"score": float(np.mean(np.array_split(r.parts or (), QUARTERS)[quarter])), "parts": None})
        for r in records
    ]
    return pairs.scored(cut)
