"""Verdicts on differences by hand."""

from __future__ import annotations

import math

import pytest

from longdecode.evals.analysis.margin import judge, margin_of


@pytest.mark.parametrize(
    ("low", "high", "p", "higher", "verdict"),
    [
        (-1.9, 0.5, 0.3, True, "within"),
        (-2.1, 0.5, 0.3, True, "cannot tell"),
        (-5.0, -2.1, 0.001, True, "worse"),
        (-5.0, -0.1, 0.04, True, "worse"),
        (-5.0, -0.1, 0.06, True, "cannot tell"),  # the interval excludes 0, but not after Holm
        (-0.7, -0.2, 0.001, True, "within"),  # sure and small
        (3.0, 9.0, 0.001, True, "within"),  # a gain loses nothing
        (0.5, 1.9, 0.001, False, "within"),  # of a loss, higher is worse
        (2.5, 9.0, 0.001, False, "worse"),
        (-9.0, -2.5, 0.001, False, "within"),
        (math.nan, math.nan, 1.0, True, "cannot tell"),
    ],
)
def test_the_whole_interval_of_the_loss_decides(low: float, high: float, p: float, higher: bool, verdict: str) -> None:
    assert judge(low, high, p, 2.0, higher, 64, 0.05) == verdict


def test_few_units_and_units_without_a_margin_decide_nothing() -> None:
    assert judge(0.0, 0.0, 1.0, 2.0, True, 9, 0.05) == "cannot tell"
    assert judge(0.0, 0.0, 1.0, None, True, 90, 0.05) == "cannot tell"


def test_margins_are_two_points_and_two_hundredths_of_a_nat() -> None:
    assert (margin_of("points"), margin_of("nats/byte"), margin_of("edits")) == (2.0, 0.02, None)
