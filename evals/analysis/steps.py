"""Set the decode step of one timed variant over another's, and tell the ratio that memory traffic allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from longdecode.evals.analysis.comparisons import PairRequest
from longdecode.evals.records import SpeedRecord, op_sizes_text
from longdecode.evals.run_config import REFERENCE_METHOD
from longdecode.evals.stats import Floats, Spread, bootstrap_interval, generator
from longdecode.evals.throughput.summary import good_times, median_ratio

_STEPS = ("step", "speculative_step")
_SAME_BATCH = "decode"
"""The bench whose steps are compared at one batch; equal-memory benches give each variant the batch that fits."""


def step_pairs(
    records: Sequence[SpeedRecord], requests: Sequence[PairRequest], spread: Spread
) -> Iterator[dict[str, Any]]:
    """Yield ``times_as_fast`` and ``extra_ms`` of each requested pair at one place.

    Over its reference a variant's ratio is that of speed.csv; over another variant it is the quotient of both medians.
    Times of the equal-memory benches are times a token of the whole batch, so that their ratio is one of throughput.
    """
    timed = [r for r in records if r.stage in _STEPS and r.status == "ok" and good_times(r.samples)]
    for request, a, b in product(requests, timed, timed):
        if a.variant in request.a and b.variant == request.b and _same_place(a, b):
            yield from _pair(a, b, spread)


def memory_bounds(records: Sequence[SpeedRecord]) -> Iterator[dict[str, Any]]:
    """Yield ``memory_bound``: bytes that a step of full attention must read, over those that the variant's must."""
    steps = [r for r in records if r.bench == _SAME_BATCH and r.stage == "step" and r.bytes_min]
    full = {_place(r): r.bytes_min for r in steps if r.method == REFERENCE_METHOD}
    for r in steps:
        if r.method != REFERENCE_METHOD and (reference := full.get(_place(r))) and r.bytes_min:
            yield _row(r) | {
                "measure": "memory_bound", "over": REFERENCE_METHOD, "value": reference / r.bytes_min, "unit": "times",
            }  # fmt: skip


def _place(r: SpeedRecord) -> tuple[object, ...]:
    return r.model, r.context, r.batch


def _same_place(a: SpeedRecord, b: SpeedRecord) -> bool:
    same_model = a.model == b.model or a.bench == "own_choices"
    same_batch = a.batch == b.batch or a.bench != _SAME_BATCH
    same_budget = b.budget in (a.budget, "full")
    return (a.bench, a.context) == (b.bench, b.context) and same_model and same_batch and same_budget


def _row(r: SpeedRecord) -> dict[str, Any]:
    return {
        "model": r.model, "variant": r.variant, "context": r.context, "batch": r.batch, "budget": r.budget,
        "setting": op_sizes_text(r.bench, r.params), "n": len(good_times(r.samples)), "source": "speed",
    }  # fmt: skip


def _pair(a: SpeedRecord, b: SpeedRecord, spread: Spread) -> Iterator[dict[str, Any]]:
    times = [np.array([us for us, _ in good_times(r.samples)]) for r in (a, b)]
    ratios = [np.array([full / us for us, full in good_times(r.samples) if full is not None]) for r in (a, b)]
    row = _row(a) | {
        "over": b.variant, "over_setting": op_sizes_text(b.bench, b.params), "n": min(map(len, times)),
    }  # fmt: skip

    def rng(measure: str) -> np.random.Generator:
        return generator("step pair", measure, spread.seed, *a.key, *b.key)

    ratio: Any = None
    if a.reference == b.variant and len(ratios[0]):
        key = (a.seed, *(part for part in a.key if part is not None))
        ratio = median_ratio(ratios[0].tolist(), spread.confidence, spread.resamples, key)
    elif all(map(len, ratios)):
        ratio = bootstrap_interval(ratios, spread, rng("times_as_fast"), _quotient_of_medians)
    more = bootstrap_interval([each / 1000 for each in times], spread, rng("extra_ms"), _difference_of_medians)
    for measure, unit, found in (("times_as_fast", "times", ratio), ("extra_ms", "ms", more)):
        if found is not None:
            yield row | found._asdict() | {"measure": measure, "unit": unit}


def _quotient_of_medians(ours: Floats, theirs: Floats, axis: int = -1) -> Floats:
    return np.asarray(np.median(ours, axis=axis) / np.median(theirs, axis=axis))


def _difference_of_medians(ours: Floats, theirs: Floats, axis: int = -1) -> Floats:
    return np.asarray(np.median(ours, axis=axis) - np.median(theirs, axis=axis))
