"""Show throughput of checkpoints that choose for themselves what a step reads, at equal device memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from longdecode.evals.throughput.own_choices_spec import JOB, OwnChoicesSpec
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.sections.memory_rows import (
    EARLIER,
    bench_rows,
    context_text,
    fetch_rate,
    hit_text,
    ratios,
    set_by,
    step_texts,
)
from longdecode.reporting.wording import DASH, budget_order, number, short_tokens

_PLACE = ["context", "budget", "prompts"]


@dataclass(frozen=True, slots=True)
class OwnChoices:
    """Fill the part on throughput by the model itself, from the rows of the bench ``own_choices``.

    Args:
        part: key of its words and of the command that fills it: ``text``; ``texts`` by kind of text; ``rows``,
            ``losses`` and ``limit``, of what was timed; ``caption`` and ``over``, of the tables; ``missing``.
        over: label of the paper's method and a rival's label, for each ratio.
    """

    part: str
    over: tuple[tuple[str, str], ...]

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return the paragraph, every label at every place, and the method over its rivals."""
        words, rows = inputs.words(self.part), own_rows(inputs)
        if rows.empty:
            return [Prose(words["text"]), inputs.missing(words["missing"], self.part)]
        about = [words["text"], *(words["texts"][kind] for kind in sorted(set(rows["text"]))), words["rows"]]
        device = f"Device: {wording.listing(sorted(set(rows['device'])))}."
        found: list[Block] = [Prose(" ".join([*about, *_losses(inputs, words)]))]
        found.append(_throughput(rows, words, device))
        if cells := self._ratios(rows):
            heads = ("Context", "Label", "Over", "Batches", "Budget", "Prompts", "Times", "95 %")
            found.append(Cells(f"{words['over']} {device}", heads, cells, frozenset({6})))
        return [*found, Prose(words["earlier"].format(mark=EARLIER))] if rows["earlier"].any() else found

    def _ratios(self, rows: pd.DataFrame) -> list[list[str]]:
        """Return each ratio at each place that has both labels."""
        return [
            [
                *ratio.between(), wording.budget(str(ratio.mine["budget"])), str(ratio.mine["prompts"]),
                wording.ratio(ratio.value), wording.interval(ratio.low, ratio.high, 2),
            ]
            for mine, rival in self.over
            for _, here in rows.groupby(_PLACE, sort=False)
            for ratio in ratios(here, (rival,), (mine,))
        ]  # fmt: skip


def own_rows(inputs: PaperInputs) -> pd.DataFrame:
    """Return the rows of the bench ``own_choices`` by context, budget and prompts, full attention first at a context.

    Columns beside those of ``bench_rows``: ``prompts``, ``text``, ``hit_rate``, and ``loss`` and ``full_loss`` in
    nats a token.
    """
    rows = bench_rows(inputs, JOB, _told, also=("budget",))
    if rows.empty:
        return rows
    keys = rows.assign(
        _full=rows["label"] != "full", _budget=rows["budget"].map(budget_order), _own=rows["prompts"] == "own"
    )
    order = ["context", "_full", "_budget", "_own"]
    return keys.sort_values(order, kind="stable").drop(columns=order[1:])


def _told(params: Mapping[str, Any]) -> dict[str, Any]:
    missed = params.get("miss_rate")
    return {
        "prompts": params["prompts"],
        "text": params["text"],
        "hit_rate": float("nan") if missed is None else 1 - missed,
        "loss": params["loss"],
        "full_loss": params.get("full_loss"),
    }


def _losses(inputs: PaperInputs, words: Mapping[str, Any]) -> Iterable[str]:
    """Yield over how many tokens losses are, where the run's configuration still tells."""
    if said := (inputs.results.config.get("throughput") or {}).get(JOB):
        given = {name: said[name] for name in ("sequences", "rounds", "steps") if name in said}
        spec = OwnChoicesSpec({}, (), **given)
        yield words["losses"].format(tokens=f"{spec.scored:,}", rows=spec.sequences)


def _throughput(rows: pd.DataFrame, words: Mapping[str, Any], device: str) -> Cells:
    """Return every label at every place: batch, bytes, tokens a second, what it fetched, and its loss."""
    cells = [
        [
            context_text(row["context"], row["earlier"]), wording.budget(str(row["budget"])), str(row["prompts"]),
            str(row["label"]), str(row["model"]), f"{int(row['batch'])}", set_by(row, words["limit"]),
            wording.megabytes(row["device_bytes"]), *step_texts(row), wording.ratio(float(row["ratio"])),
            wording.interval(row["ratio_low"], row["ratio_high"], 2),
            wording.megabytes(row["fetched"]) if row["fetched"] else DASH, hit_text(row["hit_rate"]), fetch_rate(row),
            DASH if pd.isna(row["full_loss"]) else number(row["loss"] - row["full_loss"], 3, signed=True),
        ]
        for _, row in rows.iterrows()
    ]  # fmt: skip
    heads = (
        "Context", "Budget", "Prompts", "Label", "Fork", "Batch", "Set by", "A sequence on the device, MB", "Step, ms",
        "Tokens a second", "Over Full", "95 %", "Fetched a token, MB", "Hit rate", "GB/s over the step",
        "Loss minus Full's, nats",
    )  # fmt: skip
    sizes = rows.groupby("context")["memory_bytes"].max()
    memory = [f"{wording.gigabytes(size)} GB at {short_tokens(int(str(context)))}" for context, size in sizes.items()]
    caption = words["caption"].format(memory=wording.listing(memory))
    return Cells(f"{caption} {device}", heads, cells, frozenset({5, 7, 8, 9, 10, 12, 13, 14, 15}))
