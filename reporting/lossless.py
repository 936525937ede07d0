"""The matrix of drafters: every attention method as the drafter of Full, by size of draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longdecode.evals.records import Record
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Prose
from longdecode.reporting.papers.tokenswift.exactness import replay
from longdecode.reporting.papers.tokenswift.texts import fulls, longest, texts, value

LOSSLESS = (
    "Lossless",
    "Which sparse method is the best lossless one? Each drafts for full attention, which verifies every token.",
)
"""Heading and first paragraph of the page."""
LOOPED = 0.25
"""Share of repeated 8-grams in Full's text from which on the page says that it goes in circles."""
_HEADS = ("Drafter", "Draft", "Budget", "Texts", "alpha", "Tokens a step", "Same text as Full", "Drawn alike",
          "Over Full, measured")  # fmt: skip


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
            "text counts texts that equal plain decoding's token for token, under the same noise, and says where the "
            "first of the others parts from it. In bfloat16 that happens at a near tie, because a block of rows rounds "
            "otherwise than one row; the text is another one from there on. Drawn alike: tokens that Full draws in "
            "float32 after the text's own past, and the largest error in the difference of two logits that explains "
            "the rest. The speedup is measured end to end against Full on the same prompts in the same job, steps "
            "alone."
        )
    ]
    looped = [full.measures["repeated_8"] for full in map(fulls(folder).get, map(id, records)) if full]
    if looped and max(looped) > LOOPED:
        blocks.append(
            Prose(
                f"Of Full's 8-grams here, {100 * max(looped):.0f} % stood in the text before: it goes in circles, "
                "which any drafter foretells, so that alpha tells the drafters apart less than their cost does."
            )
        )
    again = {
        (row["label"], row["budget"], row["context"], row["sampler"], row["sample"]): row for row in replay(folder)
    }
    theirs = fulls(folder)
    for model, sampler, prompt in dict.fromkeys((r.model, r.task, r.context) for r in records):
        here = [r for r in records if (r.model, r.task, r.context) == (model, sampler, prompt)]
        rows = [_row(list(group), theirs, again) for group in _groups(here)]
        rows.sort(key=lambda row: -row[0])
        device, (best, cells) = here[0].provenance.device, rows[0]
        if best > 0:
            fast = "is faster than plain decoding" if best > 1 else "comes nearest to plain decoding; none is faster"
            ran = sum(row[0] > 0 for row in rows)
            words = f"Of {ran} drafters and sizes on {model}, {cells[0]} {cells[1]} {fast}: {cells[-1]} times Full."
            blocks.append(Prose(words))
        caption = (
            f"{model}, sampler {sampler}, prompts of {prompt:,} tokens, {longest(here):,} tokens written, {device}."
        )
        blocks.append(Cells(caption, _HEADS, [row[1] for row in rows], frozenset({3, 4, 5, 8})))
    return blocks


def _groups(records: Sequence[Record]) -> list[list[Record]]:
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record.label, record.budget), []).append(record)
    return list(found.values())


def _row(
    records: list[Record],
    theirs: Mapping[int, Record],
    again: Mapping[Any, Mapping[str, Any]],
) -> tuple[float, list[str]]:
    drafter, _, draft = records[0].label.partition("+")
    done = [r for r in records if r.status == "ok"]
    if not done:
        reason = f"{records[0].status}: {records[0].reason}"
        holes = [wording.DASH] * 2
        return -1.0, [drafter, draft, records[0].budget, "0", *holes, reason, *holes]
    past = longest(done)
    seen = [value(done, theirs, column, past) for column in ("alpha", "tokens_per_step", "speedup")]
    shown = [wording.DASH if one is None else wording.number(one.mean, 2) for one in seen]
    same = f"{sum(int(r.measures['identical']) for r in done)} of {len(done)}"
    others = [int(r.measures["same_tokens"]) for r in done if not r.measures["identical"]]
    same += f" (to token {min(others):,})" if others else ""
    place = [(r.label, r.budget, r.context, r.task, r.sample_index) for r in done]
    told = [again[at] for at in place if at in again]
    alike = wording.DASH
    if told:
        alike = f"{sum(row['drawn'] for row in told):,} of {sum(row['tokens'] for row in told):,}"
        most = max(row["largest"] for row in told)
        alike += f" (rest within {wording.number(most, 2)})" if most > 0 else ""
    speedup = seen[2]
    bounds = "" if speedup is None or speedup.prompts < 2 else f" {wording.interval(speedup.low, speedup.high, 2)}"
    order = 0.0 if speedup is None else speedup.mean
    return order, [drafter, draft, records[0].budget, str(len(done)), *shown[:2], same, alike, shown[2] + bounds]
