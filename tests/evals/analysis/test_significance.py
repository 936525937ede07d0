"""The sign-flip test against every pattern written out, and Holm's correction by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import binomtest

from longdecode.evals.analysis.significance import holm, sign_flip_p


def test_a_small_sample_is_every_pattern_of_signs() -> None:
    gaps = np.array([0.5, -0.1, 0.3, 0.2, 0.4])
    flipped = [abs(np.dot(signs, gaps)) for signs in product((1, -1), repeat=5)]
    wanted = np.mean([total >= abs(gaps.sum()) - 1e-12 for total in flipped])
    assert sign_flip_p([gaps], 9999, np.random.default_rng(0)) == pytest.approx(wanted)


def test_equal_steps_are_the_exact_sign_test() -> None:
    gaps = np.array([1.0] * 9 + [-1.0] * 2 + [0.0] * 50)
    assert sign_flip_p([gaps], 9999, np.random.default_rng(0)) == pytest.approx(binomtest(9, 11).pvalue)


def test_units_that_agree_and_their_number_change_nothing() -> None:
    gaps = np.array([0.5, 0.1, 0.3, 0.2])
    padded = np.concatenate([gaps, np.zeros(500)])
    p = sign_flip_p([gaps], 999, np.random.default_rng(0))
    assert p == sign_flip_p([padded], 999, np.random.default_rng(0)) == 2 / 16


def test_nothing_that_differs_and_one_unit_show_nothing() -> None:
    rng = np.random.default_rng(0)
    assert sign_flip_p([np.zeros(9)], 99, rng) == sign_flip_p([np.array([0.7])], 99, rng) == 1.0


def test_a_p_value_is_never_zero() -> None:
    assert sign_flip_p([np.ones(60)], 999, np.random.default_rng(0)) >= 1 / 1000


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
