"""Show throughput at equal device memory: labels side by side, what each piece brings, and theory beside times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Compared, Comparison, Prose, agreement, compared
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.printed import printed_only
from longdecode.reporting.papers.sections.memory_rows import (
    EARLIER,
    Ratio,
    bench_rows,
    context_text,
    fetch_rate,
    hit_text,
    ratios,
    set_by,
    step_texts,
)
from longdecode.reporting.wording import DASH, number, short_tokens

_PARTS = {
    "resident": "nothing to fetch: every listed block is on the device",
    "step": "the step",
    "refetch": "without the diff: every listed block is fetched",
    "eager": "without the CUDA graph",
}
_PAIRED = ("Context", "Label", "Over", "Batches")

Rivals = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class EqualMemory:
    """Fill the part on throughput at equal device memory, from the rows of the bench ``offload``.

    Args:
        part: key of its words: ``text``, ``missing``, and ``notes``, the footnotes to the ratios.
        table: published ratios, by ``baseline``.
        rivals: by baseline, the labels of this run that stand for it, of which the fastest at a context is compared.
        best: labels of the paper's method, likewise.
        printed: further published tables.
        forks: rivals and labels as above that stand for forks trained here, by how; print has no ratio for these.
        alike: by baseline, the rival's label that has the means of one of ours (spare slots, overlap). Where a context
            lacks it, ours does not stand against that rival: the means may be what is faster, not the method.
    """

    part: str
    table: str
    rivals: Rivals
    best: tuple[str, ...]
    printed: tuple[str, ...] = ()
    forks: Mapping[str, tuple[Rivals, tuple[str, ...]]] = field(default_factory=dict)
    alike: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return the paragraph, for each model the tables that its rows can fill, and what else is in print."""
        words = inputs.words(self.part)
        rows = offload_rows(inputs)
        found: list[Block] = [Prose(words["text"])]
        for model, mine in rows.groupby("model", sort=False) if len(rows) else ():
            about = inputs.timed(str(model))
            found += [self._ratios(inputs, mine, about), *self._footnotes(words, mine), *self._of_forks(mine, about)]
            found += [throughput_table(mine, about), *parts_tables(mine, about), *rates_tables(mine, about)]
        left = self.printed if len(rows) else (self.table, *self.printed)
        found += [printed_only(inputs.published, name) for name in left]
        return found if len(rows) else [*found, inputs.missing(words["missing"], "throughput")]

    def claimed(self, inputs: PaperInputs, baseline: str) -> Compared | None:
        """Return the largest ratio over a baseline beside the one in print; name where it is, and the least."""
        rows = offload_rows(inputs)
        found = self._over(_steps(rows), baseline) if len(rows) else []
        if not found:
            return None
        most, least = (pick(found, key=lambda ratio: ratio.value) for pick in (max, min))
        row = self._row(inputs, baseline, most)
        where = f"{most.mine['label']} at {most.between()[0]}"
        if len(found) > 1:
            where += f"; at {least.between()[0]} {wording.ratio(least.value)} ({least.mine['label']})"
        return replace(row, reason=where)

    def _ratios(self, inputs: PaperInputs, rows: pd.DataFrame, about: str) -> Comparison:
        """Return how many times as many tokens a second the method decodes, over each baseline at each context."""
        steps = _steps(rows)
        table = [
            compared(["", "", name, ""], inputs.published.figure(self.table, "ratio", baseline=name))
            if ratio is None
            else self._row(inputs, name, ratio)
            for name in self.rivals
            for ratio in self._over(steps, name) or (None,)
        ]
        caption = f"Tokens a second at equal device memory, the method's fastest label over a rival's fastest. {about}"
        return Comparison(caption, _PAIRED, table, "times")

    def _over(self, steps: pd.DataFrame, baseline: str) -> list[Ratio]:
        return ratios(steps, self.rivals[baseline], self.best, self.alike.get(baseline, {}))

    def _footnotes(self, words: Mapping[str, Any], rows: pd.DataFrame) -> Iterable[Prose]:
        """Yield what holds for several rows of the ratios, once."""
        yield Prose(" ".join(words["notes"]))
        if rows["earlier"].any():
            yield Prose(words["earlier"].format(mark=EARLIER))

    def _of_forks(self, rows: pd.DataFrame, about: str) -> Iterable[Cells]:
        """Yield the same ratios for forks that were trained here, if such labels were timed."""
        for how, (rivals, best) in self.forks.items():
            cells = [
                [*ratio.between(), wording.ratio(ratio.value), wording.interval(ratio.low, ratio.high, 2)]
                for labels in rivals.values()
                for ratio in ratios(_steps(rows), labels, best)
            ]
            if cells:
                yield Cells(f"The same {how}. {about}", (*_PAIRED, "Times", "95 %"), cells, frozenset({4}))

    def _row(self, inputs: PaperInputs, baseline: str, ratio: Ratio) -> Compared:
        printed = inputs.published.figure(self.table, "ratio", baseline=baseline)
        verdict, level = agreement(None if printed is None else printed.value, ratio.value, ratio.low, ratio.high)
        span = wording.interval(ratio.low, ratio.high, 2)
        return compared(ratio.between(), printed, wording.ratio(ratio.value), span, verdict, level)


def offload_rows(inputs: PaperInputs) -> pd.DataFrame:
    """Return the rows of the bench ``offload`` that have times, with their parameters as columns."""
    return bench_rows(inputs, "offload", _told)


def throughput_table(rows: pd.DataFrame, about: str) -> Cells:
    """Return every label at every context: batch, bytes, tokens a second, and the floor that the bus sets."""
    copied = _copy_rate(rows)
    cells = [
        [
            context_text(row["context"], row["earlier"]), str(row["label"]), f"{int(row['batch'])}", set_by(row),
            wording.megabytes(row["device_bytes"]), wording.gigabytes(row["host_bytes"] * row["batch"]),
            hit_text(row["hit_rate"]), *step_texts(row), wording.megabytes(row["fetched"] * row["batch"]),
            f"{wording.percent(row['early'] / row['fetched'])} %" if row["fetched"] else DASH,
            fetch_rate(row),
            number(row["fetched"] * row["batch"] / copied / 1e3, 2) if copied and row["fetched"] else DASH,
        ]
        for _, row in _steps(rows).iterrows()
    ]  # fmt: skip
    heads = (
        "Context", "Label", "Batch", "Set by", "A sequence on the device, MB", "All on the host, GB", "Hit rate",
        "Step, ms", "Tokens a second", "Fetched a step, MB", "of it on a guess",
        "GB/s over the step", "Floor of the bus, ms",
    )  # fmt: skip
    memory = wording.listing([wording.gigabytes(size) for size in sorted(set(rows["memory_bytes"]))])
    caption = f"Throughput with {memory} GB of device memory for keys and values. {about}"
    return Cells(caption, heads, cells, frozenset({2, *range(4, 13)}))


def parts_tables(rows: pd.DataFrame, about: str) -> Iterable[Cells]:
    """Yield, for each label that was taken apart, its step without one piece, and how much of a transfer is hidden."""
    for label, mine in rows[rows["stage"] == "transfer"].groupby("label", sort=False):
        transfer = mine.iloc[0]
        here = rows[(rows["context"] == transfer["context"]) & (rows["stage"].isin(_PARTS))]
        own = here[(here["label"] == label) & (here["asked"] == transfer["asked"])]
        times = {str(row["stage"]): float(row["median_us"]) * float(row["batch"]) / 1e3 for _, row in own.iterrows()}
        over = {str(row["stage"]): wording.ratio(float(row["ratio"])) for _, row in own.iterrows()}
        cells = [
            [_PARTS[stage], number(times[stage], 2), wording.ratio(times[stage] / times["step"]), over[stage]]
            for stage in _PARTS
            if stage in times and "step" in times
        ]
        alone = float(transfer["median_us"]) * float(transfer["batch"]) / 1e3
        rate, share = float(transfer["gb_per_s"]), float(transfer["ratio"])
        fetch = f"its transfers alone: {number(rate, 1)} GB/s, {wording.percent(share)} % of one copy"
        cells.append([fetch, number(alone, 2), wording.ratio(alone / times["step"]) if "step" in times else DASH, DASH])
        for _, row in _steps(here).iterrows():
            if row["fetched"] > 0 and row["subject"] == transfer["subject"]:
                step = float(row["median_us"]) * float(row["batch"]) / 1e3
                name = f"{row['label']}, batch {row['batch']}"
                cells.append([name, number(step, 2), _hidden(row, rows), wording.ratio(float(row["ratio"]))])
        caption = f"Pieces of a step of {label} at {short_tokens(int(transfer['context']))}, batch {transfer['batch']}."
        heads = (
            "Piece",
            "ms",
            "Of the step; of a label: of the longer of computing and transfer",
            "Tokens a second over Full's",
        )
        yield Cells(f"{caption} {about}", heads, cells, frozenset({1, 2, 3}))


def rates_tables(rows: pd.DataFrame, about: str) -> Iterable[Cells]:
    """Yield, for each label at several hit rates, measured throughput beside that of computing and copying in turn."""
    copied, steps = _copy_rate(rows), rows[rows["stage"] == "step"]
    for (label, context), mine in steps.groupby(["label", "context"], sort=False):
        still = rows[(rows["label"] == label) & (rows["context"] == context) & (rows["stage"] == "resident")]
        if len(mine) < 2 or still.empty or not copied:
            continue
        compute = float(still.iloc[0]["median_us"])
        cells = []
        for _, row in mine.sort_values("hit_rate").iterrows():
            theory = compute + float(row["fetched"]) / copied
            measured = float(row["median_us"])
            texts = (number(1e6 / theory, 0), number(1e6 / measured, 0), wording.ratio(theory / measured))
            cells.append([hit_text(row["hit_rate"]), *texts])
        caption = (
            f"Tokens a second of {label} by hit rate, {short_tokens(int(str(context)))}, batch {mine.iloc[0]['batch']}"
        )
        theory_words = "computing, then all blocks at a copy's rate"
        heads = ("Hit rate", f"In theory ({theory_words})", "Measured", "Measured over theory")
        yield Cells(f"{caption}. {about}", heads, cells, frozenset(range(4)))


def _steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the steps at each label's own hit rate."""
    steps = rows[rows["stage"] == "step"]
    return steps.drop_duplicates(["context", "label"]) if len(steps) else steps


def _told(params: Mapping[str, Any]) -> dict[str, Any]:
    hits = params.get("layer_hits") or []
    return {
        "asked": str(params.get("hit_rate")),
        "hit_rate": sum(hits) / len(hits) if hits else float("nan"),
    }


def _copy_rate(rows: pd.DataFrame) -> float | None:
    """Return the rate of a plain copy from pinned memory, bytes a microsecond, from the transfers' pairs."""
    found = rows[(rows["stage"] == "transfer") & rows["ratio"].notna()]
    return float((found["gb_per_s"] * 1e3 / found["ratio"]).max()) if len(found) else None


def _hidden(row: pd.Series, rows: pd.DataFrame) -> str:
    """Return a step over the longer of computing and transferring, per token.

    Computing is that of the method's quickest label that was taken apart: a label whose own computing is slower has
    hidden nothing by it.
    """
    still, copied = rows[(rows["stage"] == "resident") & (rows["context"] == row["context"])], _copy_rate(rows)
    still = still[still["subject"] == row["subject"]]
    if still.empty or not copied:
        return DASH
    compute = float(still["median_us"].min())
    longer = max(compute, float(row["fetched"]) / copied)
    return wording.ratio(float(row["median_us"]) / longer)
