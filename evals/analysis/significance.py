"""Return p-values of paired differences: a sign-flip permutation test, and Holm's correction over variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import permutation_test

from longdecode.evals.stats import holm as holm

Floats = NDArray[np.float64]


def sign_flip_p(groups: Sequence[Floats], draws: int, rng: np.random.Generator) -> float:
    """Return the two-sided p-value of a zero mean difference; each unit's sign may flip.

    Units that do not differ cannot change the statistic and are left out. Every pattern of signs is tried where
    ``draws`` allows it, else as many random ones.

    Args:
        groups: one array a task, ``[units]``, paired differences; tasks weigh the same.
        draws: the most patterns to try.
        rng: draws the random ones.

    Source: Fisher 1935, section 21; Phipson and Smyth 2010 (one is added to both counts of random draws).
    """
    parts = [group / (len(groups) * len(group)) for group in groups]
    gaps = np.concatenate(parts)
    gaps = gaps[gaps != 0]
    if len(gaps) < 2:
        return 1.0  # of one unit both patterns of signs are as extreme
    found: Any = permutation_test(
        (gaps,), _total, permutation_type="samples", n_resamples=draws, batch=max(1, 2_000_000 // len(gaps)),
        vectorized=True, rng=rng,
    )  # fmt: skip
    return float(found.pvalue)


def _total(gaps: Floats, axis: int = -1) -> Floats:
    return np.asarray(np.sum(gaps, axis=axis))
