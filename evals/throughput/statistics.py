"""From samples to numbers: medians, percentiles, bootstrap intervals of median ratios, straight lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from longdecode.evals.records import SpeedSample
from longdecode.evals.stats import Floats, generator

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its bounds; NaN where there is nothing to say."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """A least-squares line ``y = intercept + slope x`` and how well it fits; bounds need three points or more."""

    slope: float
    slope_low: float
    slope_high: float
    intercept: float
    r2: float
    points: int


def good_times(samples: Sequence[SpeedSample]) -> list[tuple[float, float | None]]:
    """Times of the samples that nothing disturbed, each beside the reference's."""
    return [(sample.us, sample.reference_us) for sample in samples if sample.disturbed is None]


def median(values: Sequence[float]) -> float:
    """The median; NaN of nothing."""
    return float(np.median(values)) if len(values) else NAN


def spread(values: Sequence[float]) -> Interval:
    """Median with the 5th and 95th percentile (linear interpolation); NaN of nothing."""
    if not len(values):
        return Interval(NAN, NAN, NAN)
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    return Interval(float(middle), float(low), float(high))


def median_ratio(ratios: Sequence[float], confidence: float, resamples: int, identity: Sequence[object]) -> Interval:
    """The median of per-sample ratios with a percentile bootstrap interval; the draw depends on ``identity`` alone.

    Source: Efron and Tibshirani 1993, section 13.3 (percentile interval).
    """
    if not len(ratios):
        return Interval(NAN, NAN, NAN)
    values = np.asarray(ratios, dtype=np.float64)
    drawn = generator("speed", *identity).integers(len(values), size=(resamples, len(values)))
    medians = np.median(values[drawn], axis=1)
    low, high = np.quantile(medians, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(np.median(values)), float(low), float(high))


def fit_line(x: Sequence[float], y: Sequence[float], confidence: float) -> Line:
    """Least squares over two points or more; the slope's interval is Student's, NaN below three points.

    Source: the ordinary least-squares slope and its standard error with ``n - 2`` degrees of freedom.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    points = len(xs)
    if points < 2 or np.ptp(xs) == 0:
        return Line(NAN, NAN, NAN, NAN, NAN, points)
    centred: Floats = xs - xs.mean()
    scatter = float(centred @ centred)
    slope = float(centred @ (ys - ys.mean())) / scatter
    intercept = float(ys.mean()) - slope * float(xs.mean())
    residual = ys - (intercept + slope * xs)
    total = float(((ys - ys.mean()) ** 2).sum())
    r2 = 1 - float(residual @ residual) / total if total > 0 else NAN
    half = NAN
    if points > 2:
        error = (float(residual @ residual) / (points - 2) / scatter) ** 0.5
        half = float(student.ppf(0.5 + confidence / 2, points - 2)) * error
    return Line(slope, slope - half, slope + half, intercept, r2, points)
