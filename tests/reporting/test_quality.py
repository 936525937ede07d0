"""A chart against budget needs two points; bytes are the traffic model's, or those counted where they are more."""

from __future__ import annotations

import pandas as pd
import pytest

from longdecode.evals.summary import REFERENCE_METHOD
from longdecode.reporting.quality import _is_one_point, with_traffic


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


@pytest.mark.parametrize(("read", "share"), [(95.0, 0.25), (27.0, 0.25), (28.0, 0.28), (60.0, 0.6), (None, 0.25)])
def test_a_share_of_bytes_is_the_counted_one_where_that_is_a_tenth_larger(read: float | None, share: float) -> None:
    """A budget of 25 of 100 tokens; Full read 100, or 95 of a prompt that was shorter."""
    place = {"model": "m", "suite": "s", "task": "t", "context": 100, "batch": 1, "metadata_bytes_per_step": None}
    full_read = 380.0 if read == 95.0 else 100.0
    rows = pd.DataFrame([
        place | {"method": "full", "kind": REFERENCE_METHOD, "kv_bytes_per_step": 800.0, "kv_tokens_read": full_read},
        place | {"method": "a", "kind": "a", "kv_bytes_per_step": 200.0, "kv_tokens_read": read},
    ])  # fmt: skip
    found = with_traffic(rows).set_index("method")
    assert found["bytes_share"].to_dict() == pytest.approx({"full": 1.0, "a": share})
    assert found["bytes_per_step"]["a"] == 200 and "kv_tokens_read" in rows and len(rows.columns) == 10
    without = with_traffic(rows.drop(columns="kv_tokens_read")).set_index("method")
    assert without["bytes_share"]["a"] == 0.25
