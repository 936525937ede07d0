"""One site over all committed runs, made once and parsed; and tables of a small made-up run for single functions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from longdecode.reporting.build import build_all
from longdecode.reporting.runs import Run, read_run
from site_pages import Maker, Parsed, parsed

ROOT = Path(__file__).parents[2]
COMMITTED = re.findall("^!/results/(.+)/$", (ROOT / ".gitignore").read_text(encoding="utf-8"), re.MULTILINE)
"""Runs that are in the tree: others, such as the demo's, may lie beside them."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one site over all committed runs."""
    results = tmp_path_factory.mktemp("committed")
    for name in COMMITTED:
        (results / name).symlink_to(ROOT / "results" / name, target_is_directory=True)
    return build_all(results, tmp_path_factory.mktemp("site")).parent


@pytest.fixture(scope="session")
def pages(site: Path) -> dict[str, Parsed]:
    """Its pages by name."""
    return {path.stem: parsed(path) for path in sorted(site.glob("*.html"))}


@pytest.fixture(scope="session")
def committed() -> dict[str, Run]:
    """The committed runs by name."""
    found = (ROOT / "results" / name for name in sorted(COMMITTED))
    return {folder.name: read_run(folder) for folder in found if (folder / "config.yaml").is_file()}


COMPARED: dict[str, Any] = {
    "b": "full", "model": "007", "b_model": "007", "suite": "s", "task": "s", "context": 4096, "batch": 8,
    "budget": "512", "b_budget": "full", "n": 300, "a_value": 90.0, "b_value": 91.0, "difference": -1.0, "low": -1.8,
    "high": 0.2, "unit": "points", "better": "higher", "p": 0.1, "p_holm": 0.1, "margin": 2.0, "verdict": "within",
    "status": "ok", "revision": "506356214176",
}  # fmt: skip
SCORED: dict[str, Any] = {
    "suite": "s", "task": "s", "metric": "accuracy", "model": "007", "method": "quest", "params": "{}", "budget": "512",
    "budget_tokens": 512, "context": 4096, "batch": 8, "n": 300, "value": 0.9, "low": 0.88, "high": 0.92,
    "unit": "fraction", "status": "ok", "device": "D", "revision": "506356214176", "data_source": "generated",
    "kv_tokens_read": 512.0,
}  # fmt: skip
TIMED: dict[str, Any] = {
    "bench": "decode", "model": "007", "weights": "checkpoint", "method": "quest", "params": "{}", "stage": "step",
    "context": 4096, "batch": 8, "budget": "512", "budget_tokens": 512, "op_sizes": "", "status": "ok", "n": 8,
    "median_us": 500.0, "ratio": 1.5, "ratio_low": 1.49, "ratio_high": 1.51, "floor_us": 100.0, "fraction": 0.2,
    "tokens_per_s": 2000.0, "device": "D", "revision": "506356214176",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Maker:
    """Writer of a run's tables: rows are given by what differs from one row within the margin."""

    def write(compared: list[dict[str, Any]], scored: list[dict[str, Any]], timed: list[dict[str, Any]]) -> Path:
        for name, usual, rows in (
            ("comparisons", COMPARED, compared), ("summary", SCORED, scored), ("speed", TIMED, timed)
        ):  # fmt: skip
            if rows:
                pd.DataFrame([usual | row for row in rows]).to_csv(tmp_path / f"{name}.csv", index=False)
        return tmp_path

    return write


@pytest.fixture
def small(folder: Maker) -> Path:
    """A run of Full and two methods at one place: Quest is within the margin, SnapKV is faster and worse."""
    full = {"method": "full", "variant": "full", "budget": "full", "budget_tokens": None}
    snapkv = {"variant": "snapkv", "method": "snapkv"}
    return folder(
        [{"a": "quest"}, {"a": "snapkv", "difference": -30.0, "low": -35.0, "high": -25.0, "verdict": "worse"}],
        [full, {"variant": "quest"}, snapkv | {"value": 0.6}],
        [full | {"ratio": 1.0}, {"variant": "quest"}, snapkv | {"ratio": 2.5, "device": "E"}],
    )
