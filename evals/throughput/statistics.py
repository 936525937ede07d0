"""From samples to numbers: medians, percentiles, bootstrap intervals of median ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from longdecode.evals.records import SpeedSample
from longdecode.evals.stats import Interval, generator


def good_times(samples: Sequence[SpeedSample]) -> list[tuple[float, float | None]]:
    """Return the times of the samples that nothing disturbed, each beside the reference's."""
    return [(sample.us, sample.reference_us) for sample in samples if sample.disturbed is None]


def median(values: Sequence[float]) -> float:
    """Return the median; NaN of nothing."""
    return float(np.median(values)) if len(values) else math.nan


def spread(values: Sequence[float]) -> Interval:
    """Return the median with the 5th and 95th percentile (linear interpolation); NaN of nothing."""
    if not len(values):
        return Interval()
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return Interval(float(middle), float(low), float(high))


def median_ratio(ratios: Sequence[float], confidence: float, resamples: int, identity: Sequence[object]) -> Interval:
    """Return the median of per-sample ratios with a percentile bootstrap interval; the draw depends on ``identity``.

    Source: Efron and Tibshirani 1993, section 13.3 (percentile interval).
    """
    if not len(ratios):
        return Interval()
    values = np.asarray(ratios, dtype=np.float64)
    drawn = generator("speed", *identity).integers(len(values), size=(resamples, len(values)))
    medians = np.median(values[drawn], axis=1)
    low, high = np.quantile(medians, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(np.median(values)), float(low), float(high))
