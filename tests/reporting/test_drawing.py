"""Lines can be told apart and axes show what there is to see."""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib.figure import Figure

from longdecode.reporting import drawing
from longdecode.reporting.identity import HUES, looks


def test_methods_that_share_a_colour_differ_in_marker_and_line() -> None:
    labels = ["full", *(f"method{n}" for n in range(len(HUES) + 3)), "variant"]
    kinds = [*labels[:-1], "method0"]
    found = looks(labels, kinds, reference="full")
    for first, second in zip(labels[1:4], labels[1 + len(HUES) :], strict=False):
        one, other = found[first], found[second]
        assert one.colour == other.colour and one.marker != other.marker and one.dashes != other.dashes
    assert found["full"].dashes == "--" and found["variant"].dashes == ":"


@pytest.mark.parametrize(("high", "top"), [(0.2, 23.0), (0.39, 44.85), (0.4, 104.0), (0.9, 104.0), (0.0, 104.0)])
def test_an_axis_of_low_scores_ends_above_them(high: float, top: float) -> None:
    axes = Figure().add_subplot()
    drawing.score_axis(axes, True, rows=pd.DataFrame({"value": [0.0, high / 2], "high": [high, None]}))
    assert axes.get_ylim()[1] == pytest.approx(top)


def test_an_axis_without_rows_goes_to_the_whole() -> None:
    axes = Figure().add_subplot()
    drawing.score_axis(axes, True)
    assert axes.get_ylim() == (-4, 104)
