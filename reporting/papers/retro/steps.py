"""Set RetroAttention's step beside Quest's: milliseconds more, by window, context and batch."""

from __future__ import annotations

import pandas as pd

from longdecode.reporting.papers.blocks import Block, Compared, Comparison, Level, Prose, compared
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.printed import printed_only
from longdecode.reporting.wording import budget, interval, number, short_tokens

QUEST = "quest"
HEADS = ("Window", "Context", "Batch", "Budget")


def steps(inputs: PaperInputs) -> list[Block]:
    """Return the differences of medians for every timed model, or how to time them."""
    words, speed = inputs.words("latency"), inputs.speed
    found: list[Block] = [Prose(words["text"].format(what=inputs.published.tables["latency"].what))]
    ran = False
    for model in [] if speed is None else speed.models:
        rows = _rows(inputs, model)
        if rows:
            ran = True
            found.append(Comparison(words["caption"].format(about=inputs.timed(model)), HEADS, rows, "ms"))
    if ran:
        return found
    return [*found, printed_only(inputs.published, "latency"), inputs.missing(words["missing"], "retro")]


def claimed(inputs: PaperInputs, window: int) -> Compared | None:
    """Return the row of one window at the longest context, batch 1, of the first model timed."""
    speed = inputs.speed
    rows = [row for model in ([] if speed is None else speed.models) for row in _rows(inputs, model)]
    mine = [row for row in rows if row.of[0] == str(window) and row.of[2] == "1"]
    return mine[-1] if mine else None


def _rows(inputs: PaperInputs, model: str) -> list[Compared]:
    speed = inputs.speed
    assert speed is not None
    table = speed.ok(model)
    own = [label for label in speed.labels if speed.kind(label) == inputs.spec.method]
    fixed = [(speed.params(label), label) for label in own if not speed.params(label).get("share")]
    by_window = {int(params.get("window", 2)): label for params, label in fixed}
    rows = []
    for window, label in sorted(by_window.items()):
        for _, ours in table[table["label"] == label].sort_values(["context", "batch"], kind="stable").iterrows():
            theirs = table[
                (table["label"] == QUEST)
                & (table["context"] == ours["context"])
                & (table["batch"] == ours["batch"])
                & (table["budget"] == ours["budget"])
            ]
            if len(theirs):
                rows.append(_row(inputs, window, ours, theirs.iloc[0]))
    return rows


def _row(inputs: PaperInputs, window: int, ours: pd.Series, theirs: pd.Series) -> Compared:
    printed = inputs.published.figure("latency", "more", window=window)
    more = (ours["median_us"] - theirs["median_us"]) / 1000
    low, high = (ours["p5_us"] - theirs["p95_us"]) / 1000, (ours["p95_us"] - theirs["p5_us"]) / 1000
    of = [str(window), short_tokens(int(ours["context"])), str(int(ours["batch"])), budget(str(ours["budget"]))]
    verdict: tuple[str, Level] = ("nothing published", "muted")
    if printed is not None:
        verdict = ("less", "shown") if more < printed.value else ("more", "worse")
    reason = inputs.words("latency")["reason"] if printed is not None else ""
    return compared(of, printed, number(more, 2, signed=True), interval(low, high, 2, signed=True), *verdict, reason)
