"""Lines can be told apart and axes show what there is to see."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure

from longdecode.methods.registry import method_names
from longdecode.reporting import drawing
from longdecode.reporting.identity import HUES, looks
from longdecode.reporting.results import ORACLE


def test_methods_that_share_a_colour_differ_in_marker_and_line() -> None:
    labels = ["full", *(f"method{n}" for n in range(len(HUES) + 3)), "variant"]
    kinds = [*labels[:-1], "method0"]
    found = looks(labels, kinds, reference="full")
    for first, second in zip(labels[1:4], labels[1 + len(HUES) :], strict=False):
        one, other = found[first], found[second]
        assert one.colour == other.colour and one.marker != other.marker and one.dashes != other.dashes
    assert found["full"].dashes == "--" and found["variant"].dashes == ":"


def test_a_method_looks_the_same_in_every_report() -> None:
    hues = yaml.safe_load((Path(drawing.__file__).parent / "families.yaml").read_text("utf-8"))["hues"]
    assert set(hues) == set(method_names()) - {"full", ORACLE}, "each method of methods/ has a colour in families.yaml"
    whole = looks(list(hues), list(hues), reference="full", hues=hues)
    assert len({(look.colour, look.marker) for look in whole.values()}) == len(hues)
    for labels in (["quest", "retro"], ["shadowkv", "quest", "tova"], ["new", "quest"]):
        found = looks(labels, labels, reference="full", hues=hues)
        assert all(found[label].colour == HUES[hues[label]] for label in labels if label in hues)
        assert all(found[label].marker == whole[label].marker for label in labels if label in hues)
    drawn = looks(["lychee", "new"], ["lychee", "new"], reference="full", hues=hues)
    assert drawn["new"].colour != drawn["lychee"].colour, "one that has no colour takes one that is free here"
    both = looks(["tova", "duo"], ["tova", "duo"], reference="full", hues=hues)
    assert both["tova"].colour == both["duo"].colour and both["tova"].dashes != both["duo"].dashes


@pytest.mark.parametrize(("high", "top"), [(0.2, 23.0), (0.39, 44.85), (0.4, 104.0), (0.9, 104.0), (0.0, 104.0)])
def test_an_axis_of_low_scores_ends_above_them(high: float, top: float) -> None:
    axes = Figure().add_subplot()
    drawing.score_axis(axes, True, rows=pd.DataFrame({"value": [0.0, high / 2], "high": [high, None]}))
    assert axes.get_ylim()[1] == pytest.approx(top)


def test_an_axis_without_rows_goes_to_the_whole() -> None:
    axes = Figure().add_subplot()
    drawing.score_axis(axes, True)
    assert axes.get_ylim() == (-4, 104)
