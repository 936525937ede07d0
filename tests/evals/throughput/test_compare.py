"""Two revisions side by side: a clone of this repository against itself, and revisions that cannot be compared."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from longdecode.evals.records import SpeedRecord
from longdecode.evals.store import write_records
from longdecode.evals.throughput.compare import CELL, CompareError, compare, read_times, table, worktree

ROOT = Path(__file__).parents[3]


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of this repository, without what is not committed."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_a_revision_against_itself(clone: Path, tmp_path: Path) -> None:
    values = yaml.safe_load((ROOT / "config" / "tiny.yaml").read_text())
    values["throughput"] = [
        {"bench": "kernels", "model": "miniature-shape", "ops": ["decode_attention"], "contexts": [512], "rounds": 5}
    ]
    config = tmp_path / "bench.yaml"
    config.write_text(yaml.safe_dump(values))
    found = compare("HEAD", config, 1, ["--variants", "decode_attention"], root=clone)
    assert list(found.columns[: len(CELL)]) == CELL
    timed = found[found["status"] == "ok"]
    assert set(timed["variant"]) == {"longdecode", "torch_flash"}
    # No more than that: what one call takes on a machine that does other things says nothing.
    assert ((timed["ratio_low"] > 0) & (timed["ratio_low"] <= timed["ratio_high"])).all()
    assert not list((clone / "build").glob("worktree-*"))


def test_an_unknown_revision_is_refused(clone: Path) -> None:
    with pytest.raises(CompareError, match="no-such-rev"), worktree("no-such-rev", clone):
        pass


def test_records_of_any_schema_version_are_read(speed_record, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_records(tmp_path / "x.parquet", [speed_record([5, 6, 7], disturbed=[1])], SpeedRecord)
    rows = pq.read_table(tmp_path / "x.parquet")
    later = rows.set_column(0, "schema_version", [[99]]).append_column("more", [[1]])
    pq.write_table(later, tmp_path / "y.parquet")
    row = read_times(tmp_path).query("us == 6").iloc[0]
    assert (row["method"], row["variant"], row["status"], row["op_sizes"]) == ("quest", "quest", "ok", "")
    assert len(read_times(tmp_path)) == 2


def times(
    us: list[float], status: str = "ok", sides: tuple[str, ...] = ("other", "this", "this", "other")
) -> pd.DataFrame:
    cell = dict(zip(CELL, ("decode", "quest", "quest", "step", 1024, 1, "64", ""), strict=True))
    return pd.DataFrame(
        [
            cell | {"status": status, "us": one, "side": side, "pair": number // 2}
            for number, (one, side) in enumerate(zip(us, sides, strict=False))
        ]
    )


def test_ratios_are_taken_between_neighbours() -> None:
    """Other over this: 100 over 50, then 300 over 150."""
    (row,) = table(times([100, 50, 150, 300])).to_dict("records")
    assert row["ratio"] == pytest.approx(2.0)
    assert (row["other_us"], row["this_us"]) == (200, 100)
    (row,) = table(times([50, 100, 300, 150])).to_dict("records")
    assert row["ratio"] == pytest.approx(0.5)
    (row,) = table(times([50, 100, 100, 200])).to_dict("records")
    assert row["ratio_low"] < 1 < row["ratio_high"]


def test_what_one_revision_lacks_has_no_ratio() -> None:
    both, other = times([100, 50, 150, 300]), times([9, 9, 9, 9]).assign(variant="new")
    found = table(pd.concat([both, other[other["side"] == "this"]])).set_index("variant")
    assert found.loc["new", "status"] == "missing"
    assert found["ratio"].notna().to_dict() == {"quest": True, "new": False}
    failed = table(pd.concat([both.iloc[:3], times([1]).assign(status="oom", pair=1, us=float("nan"))])).iloc[0]
    assert failed["status"] == "oom" and failed["ratio"] != failed["ratio"]
