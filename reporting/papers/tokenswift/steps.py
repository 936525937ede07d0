"""Time of the parts of a step on the timed shapes, and speedups composed of it and of measured acceptance."""

from __future__ import annotations

import pandas as pd

from longdecode.evals.sampled_steps import NAME as SAMPLED
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.tokenswift.texts import longest, value, written

STAGES = ("draft", "verify", "keep", "speculative_step")
PAPER_AR_MS = 172.0
"""Milliseconds a token of the paper's own autoregressive loop: 4.9 hours for 102,400 tokens (figure 1)."""


def steps(inputs: PaperInputs) -> list[Block]:
    """Return stages over Full's step, and the speed of the three baselines."""
    words = inputs.words("steps")
    rows, bases = list[list[str]](), list[list[str]]()
    for (model, label, budget, context), at in _timed(inputs):
        stages = {str(row["stage"]): row for _, row in at.iterrows() if pd.notna(row["ratio"])}
        if "speculative_step" not in stages:
            continue
        shown = [_over(stages.get(stage)) for stage in STAGES]
        tree = next((f"{r.measures['rows']:.0f}" for r in written(inputs.folder, label=label)), wording.DASH)
        rows.append([str(model), str(label), tree, str(budget), f"{context:,}", *shown])
    speed = inputs.speed
    table = pd.DataFrame() if speed is None else speed.table
    for _, row in table.iterrows():
        if row["bench"] == "decode" and row["batch"] == 1 and row["n"] > 0:
            ours = row["label"] == "full" and row["stage"] == "step"
            if ours or (row["label"] == "hf_full" and row["stage"] == "step"):
                name = words["ours"] if ours else words["stock"]
                bases.append(
                    [str(row["model"]), name, f"{int(row['context']):,}", wording.number(row["median_us"] / 1000, 2)]
                )
    bases.append(["llama3.1-8b", words["theirs"], "mean to 102,400", wording.number(PAPER_AR_MS, 0)])
    heads = ("Model", "Label", "Rows verified", "Budget", "Context", "Draft", "Verify", "Keep", "Whole step")
    blocks: list[Block] = [Cells(words["caption"], heads, rows, frozenset({2, 4, 5, 6, 7, 8}))] if rows else []
    blocks = blocks or [inputs.missing(words["missing"], "throughput")]
    baseline = Cells(words["baselines"], ("Model", "Baseline", "Context", "ms"), bases, frozenset({3}))
    return [Prose(words["text"]), *blocks, baseline, _sampled(inputs)]


def _sampled(inputs: PaperInputs) -> Block:
    """Return what drawing by a sampler adds to whole steps, or the command that times it."""
    words, path = inputs.words("steps"), inputs.folder / SAMPLED
    if not path.is_file():
        return inputs.missing(words["unsampled"], "sampled")
    timed = pd.read_csv(path).to_dict("records")
    fulls = {(row["model"], row["context"], row["sampler"]): row for row in timed if row["label"] == "full"}
    rows = []
    for row in timed:
        full = fulls.get((row["model"], row["context"], row["sampler"]))
        over = [None if full is None else row[name] / full[name] for name in ("greedy_us", "sampled_us")]
        rows.append(
            [row["model"], row["label"], str(row["rows"]), f"{row['context']:,}", row["sampler"],
             wording.number(row["greedy_us"], 0), wording.number(row["sampled_us"], 0), wording.number(row["ratio"], 3),
             wording.interval(row["low"], row["high"], 3), f"{row['n']} of {row['n'] + row['disturbed']}",
             *(wording.number(times, 2) for times in over)]
        )  # fmt: skip
    heads = ("Model", "Label", "Rows verified", "Context", "Sampler", "Greedily", "Drawn", "Drawn over greedily",
             "Interval", "Pairs undisturbed", "Over Full's, greedily", "Over Full's, drawn")  # fmt: skip
    return Cells(words["sampled"], heads, rows, frozenset({2, 3, 5, 6, 7, 10, 11}))


def composed(inputs: PaperInputs) -> list[Block]:
    """Return tokens a step of a real model times the step's ratio on the timed shape; labelled composed."""
    words, over = inputs.words("composed"), dict[tuple[str, str, str], dict[int, float]]()
    for (shape, label, budget, context), at in _timed(inputs):
        timed = at[(at["stage"] == "speculative_step") & at["ratio"].notna()]
        if len(timed):
            over.setdefault((shape, label, str(budget)), {})[context] = 1 / float(timed["ratio"].iloc[0])
    contexts, rows = sorted({context for steps in over.values() for context in steps}), list[list[str]]()
    for (shape, label, budget), steps in over.items():
        texts = written(inputs.folder, label=label)
        for place in dict.fromkeys((r.model, r.task, r.context) for r in texts):
            own = [r for r in texts if (r.model, r.task, r.context) == place]
            tokens = value(own, {}, "tokens_per_step", longest(own))
            if tokens is not None:
                shown = [shape, label, budget, f"{place[0]}, {place[1]}, {place[2]:,}", wording.number(tokens.mean, 2)]
                for step in map(steps.get, contexts):
                    shown += [wording.number(step, 2), wording.number(tokens.mean / step if step else None, 2)]
                rows.append(shown)
    heads = ["Shape", "Label", "Budget", "Acceptance measured on", "Tokens a step"]
    for short in map(wording.short_tokens, contexts):
        heads += [f"{short}: step over Full's", f"{short}: composed"]
    table = Cells(words["caption"], heads, rows, frozenset(range(4, len(heads))))
    return [Prose(words["text"]), table if rows else inputs.missing(words["missing"], "throughput")]


def _timed(inputs: PaperInputs) -> list[tuple[tuple[str, str, str, int], pd.DataFrame]]:
    if inputs.speed is None:
        return []
    table = inputs.speed.table
    decode = table[(table["bench"] == "decode") & (table["batch"] == 1) & (table["n"] > 0)]
    return [(key, at) for key, at in decode.groupby(["model", "label", "budget", "context"], sort=False)]  # type: ignore[misc]


def _over(row: pd.Series | None) -> str:
    """Return a stage's time over Full's step: the inverse of its ratio."""
    return wording.DASH if row is None or pd.isna(row["ratio"]) else wording.number(1 / float(row["ratio"]), 2)
