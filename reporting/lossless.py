"""The matrix of drafters: every attention method as the drafter of Full, by size of draft."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from longdecode.evals.records import Record
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Prose
from longdecode.reporting.papers.tokenswift.texts import fulls, longest, texts, value

LOSSLESS = (
    "Lossless",
    "Which sparse method is the best lossless one? Each drafts for full attention, which verifies: the text is Full's.",
)
"""Heading and first paragraph of the page."""
_HEADS = ("Drafter", "Draft", "Budget", "Texts", "alpha", "Tokens a step", "Same text as Full", "Over Full, measured")


def matrix(folder: Path) -> list[Block]:
    """Return a table for each model, sampler and prompt: best measured speedup first, then what could not run.

    A run without drafters gives nothing.
    """
    records = [r for r in texts(folder) if "+" in r.label]
    if not records:
        return []
    blocks: list[Block] = [
        Prose(
            "A row is one drafter with one budget and one size of draft: `4` is a chain of four tokens, `4x2` a tree "
            "of depth four with two candidates a place. alpha is the share of the draft's depth that is kept. Same "
            "text counts texts that equal plain decoding's token for token, under the same noise. The speedup is "
            "measured end to end against Full on the same prompts in the same job, steps alone."
        )
    ]
    theirs = fulls(folder)
    for model, sampler, prompt in dict.fromkeys((r.model, r.task, r.context) for r in records):
        here = [r for r in records if (r.model, r.task, r.context) == (model, sampler, prompt)]
        rows = [_row(list(group), theirs) for group in _groups(here)]
        rows.sort(key=lambda row: -row[0])
        device = here[0].provenance.device
        caption = (
            f"{model}, sampler {sampler}, prompts of {prompt:,} tokens, {longest(here):,} tokens written, {device}."
        )
        blocks.append(Cells(caption, _HEADS, [row[1] for row in rows], frozenset({3, 4, 5, 7})))
    return blocks


def _groups(records: Sequence[Record]) -> list[list[Record]]:
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record.label, record.budget), []).append(record)
    return list(found.values())


def _row(records: list[Record], theirs: dict[tuple[object, ...], Record]) -> tuple[float, list[str]]:
    drafter, _, draft = records[0].label.partition("+")
    done = [r for r in records if r.status == "ok"]
    if not done:
        reason = f"{records[0].status}: {records[0].reason}"
        return -1.0, [drafter, draft, records[0].budget, "0", wording.DASH, wording.DASH, reason, wording.DASH]
    past = longest(done)
    seen = [value(done, theirs, column, past) for column in ("alpha", "tokens_per_step", "speedup")]
    shown = [wording.DASH if one is None else wording.number(one.mean, 2) for one in seen]
    same = f"{sum(int(r.measures['identical']) for r in done)} of {len(done)}"
    speedup = seen[2]
    bounds = "" if speedup is None or speedup.prompts < 2 else f" {wording.interval(speedup.low, speedup.high, 2)}"
    order = 0.0 if speedup is None else speedup.mean
    return order, [drafter, draft, records[0].budget, str(len(done)), *shown[:2], same, shown[2] + bounds]
