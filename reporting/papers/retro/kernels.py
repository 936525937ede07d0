"""Say what the time of a step is made of, RetroAttention's beside Quest's: the profiled kernels by their part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longdecode.reporting.papers.blocks import Block, Cells, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.wording import number, short_tokens

FILE = "step_kernels.txt"
QUEST = "quest"
PARTS = (
    ("projections and MLP", ("linear_",)),
    ("attention over chosen pages", ("sparse_decode_attention_", "attend_window_")),
    ("attention of the dense layers", ("decode_attention_",)),
    ("choosing pages", ("page_score_", "topk_select_")),
    ("writing keys and values, merging the window", ("rope_append_", "append_window_", "join_window_")),
    ("norms", ("add_rms_norm_",)),
)
REST = "the rest"
_HEAD = re.compile(r"^(\S+) context=(\d+) batch=(\d+): ([\d,]+) us, ([\d,]+) launches$")
_KERNEL = re.compile(r"^\s+([\d.]+)\s+(\d+)\s+[\d.]+\s+[\d.]+\s+(\S.*)$")


@dataclass(frozen=True, slots=True)
class StepParts:
    """One profiled step: microseconds and launches of the whole, and microseconds of each part."""

    label: str
    context: int
    batch: int
    us: float
    launches: int
    parts: dict[str, float]


def read_step_kernels(text: str) -> list[StepParts]:
    """Read what ``evals.throughput.step_kernels`` prints; kernels that it does not list are in the rest."""
    found: list[StepParts] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            label, context, batch, us, launches = head.groups()
            whole = float(us.replace(",", ""))
            found.append(
                StepParts(label, int(context), int(batch), whole, int(launches.replace(",", "")), {REST: whole})
            )
        elif found and (row := _KERNEL.match(line)):
            part = next((name for name, starts in PARTS if row[3].startswith(starts)), REST)
            if part != REST:
                found[-1].parts[part] = found[-1].parts.get(part, 0.0) + float(row[1])
                found[-1].parts[REST] -= float(row[1])
    return found


def step_parts(inputs: PaperInputs) -> list[Block]:
    """Return the parts of a step at every profiled size, and which windows and contexts were timed and not profiled."""
    words, file = inputs.words("parts"), inputs.folder / FILE
    found: list[Block] = [Prose(words["text"])]
    steps = read_step_kernels(file.read_text(encoding="utf-8")) if file.is_file() else []
    for base in (step for step in steps if step.label == QUEST):
        others = [s for s in steps if s.label != QUEST and (s.context, s.batch) == (base.context, base.batch)]
        if others:
            caption = words["caption"].format(context=short_tokens(base.context), batch=base.batch)
            heads = ("Part", QUEST, "%", *(name for step in others for name in (step.label, "%", "over Quest")))
            numeric = frozenset(range(1, len(heads)))
            found.append(Cells(caption, heads, list(_rows(base, others)), numeric))
    if len(found) == 1:
        return [*found, inputs.missing(words["missing"], "profile")]
    if absent := _not_profiled(inputs, steps):
        found.append(inputs.missing(words["absent"].format(what="; ".join(absent)), "profile"))
    return found


def _rows(base: StepParts, others: Sequence[StepParts]) -> Iterator[list[str]]:
    for name in (*(name for name, _ in PARTS), REST):
        yield [name, *_cells(base, base, name), *(cell for step in others for cell in _cells(step, base, name))]
    whole = [["whole step", number(step.us / 1000, 2), "100"] for step in (base, *others)]
    more = [number((step.us - base.us) / 1000, 2, signed=True) for step in others]
    yield [*whole[0], *(cell for row, gap in zip(whole[1:], more, strict=True) for cell in (*row[1:], gap))]
    launches = [f"{step.launches:,}" for step in (base, *others)]
    extra = [f"+{step.launches - base.launches:,}" for step in others]
    yield ["launches", launches[0], "", *(c for n, gap in zip(launches[1:], extra, strict=True) for c in (n, "", gap))]


def _cells(step: StepParts, base: StepParts, name: str) -> list[str]:
    us = step.parts.get(name, 0.0)
    cells = [number(us / 1000, 2), number(100 * us / step.us, 0)]
    return cells if step is base else [*cells, number((us - base.parts.get(name, 0.0)) / 1000, 2, signed=True)]


def _not_profiled(inputs: PaperInputs, steps: Sequence[StepParts]) -> list[str]:
    """Name the labels, each with its contexts, that were timed beside Quest and not profiled."""
    if inputs.speed is None:
        return []
    known = {(step.label, step.context) for step in steps}
    lacking: dict[tuple[int, ...], list[str]] = {}
    for label in inputs.speed.labels:
        if inputs.speed.kind(label) in (inputs.spec.method, QUEST):
            rows = inputs.speed.table[(inputs.speed.table["label"] == label) & (inputs.speed.table["status"] == "ok")]
            contexts = tuple(sorted({int(c) for c in rows["context"]} - {c for name, c in known if name == label}))
            if contexts:
                lacking.setdefault(contexts, []).append(label)
    return [
        f"{', '.join(labels)} at {', '.join(short_tokens(c) for c in contexts)}" for contexts, labels in lacking.items()
    ]
