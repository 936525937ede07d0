"""An op with sizes of its own on the speed page: a group of lines for each; other ops have none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from longdecode.reporting.speed import parts, tables
from longdecode.reporting.speed.measured import Speed, load_speed

ROW: dict[str, Any] = {
    "bench": "kernel", "model": "llama3-8b", "weights": "none", "subject": "hybrid_attention", "stage": "op",
    "context": 131072, "batch": 8, "budget": "0.1", "status": "ok", "n": 8, "disturbed": 0, "gb_per_s": 4000.0,
    "p5_us": 1.0, "p95_us": 2000.0, "fraction": 0.9, "floor_us": 90.0, "device": "gpu", "launch": "{}",
}  # fmt: skip


@pytest.fixture
def speed(tmp_path: Path) -> Speed:
    rows = []
    for heads, us in ((8, 900.0), (0, 120.0), (2, 300.0)):
        place = ROW | {"params": f'{{"full_heads": {heads}, "blocks": 204}}'}
        pair = {"ratio": 960.0 / us, "ratio_low": 950.0 / us, "ratio_high": 970.0 / us}
        rows.append(place | {"label": "torch_flash", "median_us": 960.0, "reference": "longdecode"})
        rows[-1] |= {"ratio": us / 960.0, "ratio_low": us / 970.0, "ratio_high": us / 950.0}
        rows.append(place | {"label": "longdecode", "median_us": us, "reference": "torch_flash"} | pair)
    pd.DataFrame(rows).assign(reason=None).to_csv(tmp_path / "speed.csv", index=False)
    found = load_speed(tmp_path, ())
    assert found is not None
    return found


def test_whole_heads_are_told_apart(speed: Speed) -> None:
    (table,) = tables.kernel_tables(speed, "llama3-8b")
    assert [group.size.split(", ")[3] for group in table.groups] == [
        "full heads 0", "full heads 2", "full heads 8",
    ]  # fmt: skip
    assert all([line.label for line in group.lines] == ["longdecode", "torch_flash"] for group in table.groups)
    assert [group.lines[1].more["ratio"] for group in table.groups] == ["8.00", "3.20", "1.07"]
    assert parts.bandwidth(speed, None, "llama3-8b", "") is None  # type: ignore[arg-type]


def test_a_run_without_hybrid_layers_is_read(tmp_path: Path) -> None:
    row = ROW | {"subject": "decode_attention", "label": "longdecode", "params": "{}", "median_us": 900.0}
    pd.DataFrame([row | {"ratio": None, "reference": None, "reason": None}]).to_csv(tmp_path / "speed.csv", index=False)
    found = load_speed(tmp_path, ())
    assert found is not None
    (table,) = tables.kernel_tables(found, "llama3-8b")
    assert [line.label for line in table.groups[0].lines] == ["longdecode"]
