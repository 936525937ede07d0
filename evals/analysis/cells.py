"""Group scored records into cells, and pair two cells prompt by prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.analysis.intervals import Floats
from longdecode.evals.problems import problem_of
from longdecode.evals.records import Record

Sample = tuple[int, int]
"""Seed and number of a sample."""


class PairError(LongDecodeError):
    """Two cells that cannot be compared: the same sample has another prompt in each."""


class Cell(NamedTuple):
    """One variant at one budget on one task: what a row of summary.csv is about."""

    model: str
    suite: str
    task: str
    context: int
    batch: int
    variant: str
    budget: str


Cells = Mapping[Cell, Mapping[Sample, Record]]


def scored_cells(records: Iterable[Record]) -> dict[Cell, dict[Sample, Record]]:
    """Return the scored samples of every cell; a cell that ended with another status than ``ok`` is left out."""
    found: dict[Cell, dict[Sample, Record]] = defaultdict(dict)
    failed: set[Cell] = set()
    for r in records:
        cell = Cell(r.model, r.suite, r.task, r.context, r.batch, r.variant, r.budget)
        if r.status == "ok":
            found[cell][r.seed, r.sample_index] = r
        elif not (r.status == "timeout" and r.sample_index >= 0):
            failed.add(cell)
    return {cell: samples for cell, samples in found.items() if cell not in failed}


def paired_units(ours: Mapping[Sample, Record], theirs: Mapping[Sample, Record]) -> tuple[Floats, Floats]:
    """Return both sides' scores by unit, ``[units]`` each: the mean over a problem's samples that both have scored.

    Raises:
        PairError: a sample has one prompt on one side and another on the other.
    """
    units: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for sample in sorted(ours.keys() & theirs.keys()):
        a, b = ours[sample], theirs[sample]
        if a.prompt_sha256 != b.prompt_sha256:
            raise PairError(
                f"{a.model}/{a.variant} and {b.model}/{b.variant}, {a.task} at {a.context}: sample {sample[1]} of seed "
                f"{sample[0]} has another prompt on each side; both must be scored on the same prompts"
            )
        units[problem_of(a)].append((float(a.score or 0.0), float(b.score or 0.0)))
    means = np.array([np.mean(scores, axis=0) for scores in units.values()]).reshape(-1, 2)
    return means[:, 0], means[:, 1]


def same_prompts(ours: Mapping[Sample, Record], theirs: Mapping[Sample, Record]) -> bool:
    """Return whether two cells share samples, all of them with the same prompts."""
    shared = ours.keys() & theirs.keys()
    return bool(shared) and all(ours[s].prompt_sha256 == theirs[s].prompt_sha256 for s in shared)


def is_bounded(samples: Mapping[Sample, Record]) -> bool:
    """Return whether a cell's scores are shares in [0, 1], where higher is better."""
    return all(r.higher_is_better and r.unit == "fraction" for r in samples.values())


def tokens_read(samples: Mapping[Sample, Record]) -> float:
    """Return the mean tokens that a step reads per KV head; NaN where no sample says so."""
    read = [r.measures["kv_tokens_read"] for r in samples.values() if "kv_tokens_read" in r.measures]
    return float(np.mean(read)) if read else float("nan")


def method_of(samples: Mapping[Sample, Record]) -> str:
    """Return the registered method of a cell's variant."""
    return next(iter(samples.values())).method
