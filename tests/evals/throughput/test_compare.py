"""Two revisions side by side: a clone of this repository against itself, and revisions that cannot be compared."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from longdecode.evals.throughput.compare import COLUMNS, CompareError, compare, table, worktree

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
    values["throughput"] = {
        "kernels": {"shape": "miniature-shape", "ops": ["decode_attention"], "contexts": [512], "batches": [1],
                    "budgets": [64], "rounds": 5}
    }  # fmt: skip
    config = tmp_path / "bench.yaml"
    config.write_text(yaml.safe_dump(values))
    found = compare("HEAD", config, 1, ["--subjects", "decode_attention"], root=clone)
    assert tuple(found.columns) == COLUMNS
    timed = found[found["status"] == "ok"]
    assert set(timed["label"]) == {"longdecode", "torch_flash"}
    assert (timed["pairs"] == 2).all()
    assert ((timed["ratio_low"] <= 1) & (timed["ratio_high"] >= 1)).any()
    assert not list((clone / "build").glob("worktree-*"))


def test_unknown_and_too_old_revisions_are_refused(clone: Path) -> None:
    with pytest.raises(CompareError, match="'no-such-rev' is no revision"), worktree("no-such-rev", clone):
        pass
    git(clone, "rm", "-q", "evals/throughput/cli.py")
    git(clone, "commit", "-q", "-m", "without a bench")
    with pytest.raises(CompareError, match="has no throughput bench"), worktree("HEAD", clone):
        pass


def test_ratios_are_taken_between_neighbours(speed_record) -> None:  # type: ignore[no-untyped-def]
    def run(us: float, **other: object) -> dict:  # type: ignore[type-arg]
        record = speed_record([us] * 3, **other)
        return {record.key: record}

    found = table([run(100), run(300)], [run(50), run(150)])
    row = found.iloc[0]
    assert row["ratio"] == pytest.approx(2.0) and row["verdict"] == "faster"
    assert (row["other_us"], row["this_us"], row["pairs"]) == (200, 100, 2)
    lost = table([run(100), {}], [run(50), run(50)]).iloc[0]
    assert (lost["status"], lost["pairs"]) == ("missing", 1) and lost["ratio"] != lost["ratio"]
    failed = table([run(1), run(1)], [run(1, status="oom", reason="full", samples=[]), run(1)]).iloc[0]
    assert (failed["status"], failed["reason"]) == ("oom", "full")
    assert failed["verdict"] == lost["verdict"] == ""
