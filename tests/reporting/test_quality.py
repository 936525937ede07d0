"""A chart against budget needs two points."""

from __future__ import annotations

import pandas as pd
import pytest

from longdecode.evals.summary import REFERENCE_METHOD
from longdecode.reporting.quality import _is_one_point


@pytest.mark.parametrize(
    ("points", "alone"),
    [
        ([("quest", "256")], True),
        ([("quest", "bytes=0.25")], True),
        ([("quest", "256"), ("quest", "bytes=0.25")], True),
        ([("quest", "256"), ("quest", "512")], False),
        ([("quest", "256"), ("lychee", "256")], False),
    ],
)
def test_one_method_at_one_budget_is_no_chart(points: list[tuple[str, str]], alone: bool) -> None:
    rows = [{"method": method, "budget": budget, "kind": method} for method, budget in points]
    full = {"method": "full", "budget": "full", "kind": REFERENCE_METHOD}
    assert _is_one_point(pd.DataFrame([full, *rows, *rows])) is alone
