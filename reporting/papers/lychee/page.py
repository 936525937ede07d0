"""The page of LycheeDecode: its sections in order."""

from __future__ import annotations

from collections.abc import Sequence

from longdecode.reporting.papers.blocks import Prose, Section
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.lychee import (
    benchmarks,
    head_curves,
    heads,
    kernels,
    latency,
    method,
    miniature,
    overlap,
    strategies,
    targets,
)
from longdecode.reporting.papers.lychee.common import METHOD, WORDS
from longdecode.reporting.papers.printed import printed_tables
from longdecode.reporting.papers.registry import Paper


def concerns(inputs: PaperInputs) -> bool:
    """Whether the method was scored or timed, its kernel timed, or its heads identified in this run."""
    speed = inputs.speed
    timed = speed is not None and (
        any(speed.kind(label) == METHOD for label in speed.labels)
        or bool(speed.table["subject"].astype(str).str.startswith("hybrid_attention").any())
    )
    return timed or bool(inputs.labels(METHOD)) or (inputs.folder / "identification").is_dir()


def sections(inputs: PaperInputs) -> Sequence[Section]:
    """The page, from what there is; parts that are missing say so and how to make them."""
    words = WORDS["published"]
    return [
        Section("What it does", "method", method.blocks(inputs)),
        Section("Targets", "targets", targets.blocks(inputs)),
        Section("LongBench by task and budget", "longbench", benchmarks.longbench(inputs)),
        Section(WORDS["miniature"]["title"], "miniature", miniature.blocks(inputs)),
        Section("RULER", "ruler", benchmarks.ruler(inputs)),
        Section("Mathematics", "math", benchmarks.mathematics(inputs)),
        Section("How heads are identified", "heads", [*heads.blocks(inputs), *head_curves.blocks(inputs)]),
        Section("Selection strategies at equal reads", "strategies", strategies.blocks(inputs)),
        Section("The hybrid-head kernel", "kernel", kernels.blocks(inputs)),
        Section("Whole steps against context", "latency", latency.blocks(inputs)),
        Section("What neighbouring layers share", "overlap", overlap.blocks(inputs)),
        Section(
            words["title"],
            "in-print",
            [Prose(words["text"].format(note=inputs.published.note)), *printed_tables(inputs.published)],
        ),
    ]


PAPER = Paper("LycheeDecode", WORDS["summary"], concerns, sections)
