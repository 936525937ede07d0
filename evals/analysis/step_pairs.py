"""Set the decode step of one timed variant over another's: times as fast, and milliseconds more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from longdecode.evals.analysis.intervals import Floats
from longdecode.evals.analysis.pairs import PairRequest
from longdecode.evals.records import SpeedRecord, op_sizes_text
from longdecode.evals.stats import generator
from longdecode.evals.summary import Spread
from longdecode.evals.throughput.statistics import good_times, median_ratio

_STEPS = ("step", "speculative_step")
_SAME_BATCH = "decode"
"""The bench whose steps are compared at one batch; equal-memory benches give each variant the batch that fits."""


def step_pairs(
    records: Sequence[SpeedRecord], requests: Sequence[PairRequest], spread: Spread
) -> Iterator[dict[str, Any]]:
    """Yield ``times_as_fast`` and ``extra_ms`` of each pair.

    Over its reference a variant's ratio is that of speed.csv; over another variant it is the quotient of both ratios.

    Times of the equal-memory benches are times a token of the whole batch, so that their ratio is one of throughput.
    """
    timed = [r for r in records if r.stage in _STEPS and r.status == "ok" and good_times(r.samples)]
    for request in requests:
        for a in (r for r in timed if r.variant in request.a):
            for b in (r for r in timed if r.variant == request.b and _same_place(a, r)):
                yield from _measures(a, b, spread)


def _same_place(a: SpeedRecord, b: SpeedRecord) -> bool:
    alike = (a.bench, a.model if a.bench != "own_choices" else "", a.context) == (
        b.bench, b.model if b.bench != "own_choices" else "", b.context,
    )  # fmt: skip
    return alike and (a.bench != _SAME_BATCH or a.batch == b.batch) and b.budget in (a.budget, "full")


def _measures(a: SpeedRecord, b: SpeedRecord, spread: Spread) -> Iterator[dict[str, Any]]:
    times = [np.array([us for us, _ in good_times(r.samples)]) for r in (a, b)]
    ratios = [np.array([full / us for us, full in good_times(r.samples) if full is not None]) for r in (a, b)]
    row = {
        "model": a.model, "variant": a.variant, "over": b.variant, "context": a.context, "batch": a.batch,
        "budget": a.budget, "setting": op_sizes_text(a.bench, a.params), "source": "speed",
        "over_setting": op_sizes_text(b.bench, b.params), "n": min(map(len, times)),
    }  # fmt: skip
    identity = (spread.seed, *a.key, *b.key)
    if a.reference == b.variant and len(ratios[0]):
        key = (a.seed, *(part for part in a.key if part is not None))
        paired = median_ratio(ratios[0].tolist(), spread.confidence, spread.resamples, key)
        yield row | {"measure": "times_as_fast", "unit": "times", "value": paired.value, "low": paired.low,
                     "high": paired.high}  # fmt: skip
    elif all(map(len, ratios)):
        found = _bounds(ratios, _quotient_of_medians, spread, ("times_as_fast", *identity))
        yield row | {"measure": "times_as_fast", "unit": "times"} | found
    more = _bounds([each / 1000 for each in times], _difference_of_medians, spread, ("extra_ms", *identity))
    yield row | {"measure": "extra_ms", "unit": "ms"} | more


def _bounds(
    sides: Sequence[Floats], statistic: Callable[..., Floats], spread: Spread, identity: Sequence[object]
) -> dict[str, float]:
    """Return a statistic of two samples with its percentile bootstrap interval, both sides resampled."""
    value = float(statistic(*sides))
    if min(map(len, sides)) < 2:
        return {"value": value}
    found: Any = bootstrap(
        tuple(sides), statistic, n_resamples=spread.resamples, confidence_level=spread.confidence, method="percentile",
        vectorized=True, rng=generator("step pair", *identity),
    )  # fmt: skip
    return {"value": value, "low": float(found.confidence_interval.low), "high": float(found.confidence_interval.high)}


def _quotient_of_medians(ours: Floats, theirs: Floats, axis: int = -1) -> Floats:
    return np.asarray(np.median(ours, axis=axis) / np.median(theirs, axis=axis))


def _difference_of_medians(ours: Floats, theirs: Floats, axis: int = -1) -> Floats:
    return np.asarray(np.median(ours, axis=axis) - np.median(theirs, axis=axis))
