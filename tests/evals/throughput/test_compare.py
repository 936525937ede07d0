"""Two revisions side by side: a clone of this repository against itself, and revisions that cannot be compared."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import yaml

from longdecode.evals.records import SpeedRecord
from longdecode.evals.store import write_records
from longdecode.evals.throughput.compare import (
    BENCH,
    COLUMNS,
    CompareError,
    Timed,
    compare,
    exported,
    read_timed,
    table,
    worktree,
)

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
    # No more than that: what one call takes on a machine that does other things says nothing.
    assert ((timed["ratio_low"] > 0) & (timed["ratio_low"] <= timed["ratio_high"])).all()
    assert not list((clone / "build").glob("worktree-*"))


def test_unknown_and_too_old_revisions_are_refused(clone: Path) -> None:
    with pytest.raises(CompareError, match="'no-such-rev' is no revision"), worktree("no-such-rev", clone):
        pass
    git(clone, "rm", "-q", "evals/throughput/cli.py")
    git(clone, "commit", "-q", "-m", "without a bench")
    with pytest.raises(CompareError, match="has no throughput bench"), worktree("HEAD", clone):
        pass


def test_an_exported_tree_needs_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert exported(ROOT) == ROOT
    with pytest.raises(CompareError, match="symbolic links"):
        exported(tmp_path)
    asked: list[tuple[Path, str, str]] = []
    gated: list[str] = []

    def process(command: list[str], *, cwd: Path, env: dict[str, str], **rest: object) -> SimpleNamespace:
        asked.append((cwd, command[command.index("--config") + 1], env["PYTHONPATH"]))
        gate = Path(command[command.index("--output") + 1]) / "gate"
        gated.append((gate / "full.json").read_text() if gate.exists() else "")
        gate.mkdir(parents=True, exist_ok=True)
        (gate / "full.json").write_text(str(cwd))
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", process)
    monkeypatch.setenv("PYTHONPATH", f"src:{tmp_path}")
    monkeypatch.chdir(ROOT)
    before, config = tmp_path / "before", ROOT / "config" / "tiny.yaml"
    (before / BENCH.parent).mkdir(parents=True)
    (before / BENCH).touch()
    (before / "src").mkdir()
    (before / "src" / "longdecode").symlink_to("..")
    compare(before, config, 1, root=ROOT)
    other, this = (before.resolve(), str(config)), (ROOT, str(config))
    assert [where[:2] for where in asked] == [other, this, this, other]
    assert gated == ["", "", str(ROOT), str(before.resolve())]  # each revision's gates are its own, and checked once
    # This tree's rooms are not on the path of the other's process; packages carried beside them are.
    assert asked[0][2] == f"{before.resolve()}/src:{tmp_path}" and asked[1][2] == f"{ROOT}/src:{tmp_path}"


def test_records_of_any_schema_version_are_read(speed_record, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_records(tmp_path / "x.parquet", [speed_record([5, 6, 7], disturbed=[1])], SpeedRecord)
    rows = pq.read_table(tmp_path / "x.parquet")
    later = rows.set_column(0, "schema_version", [[99]]).append_column("more", [[1]])
    pq.write_table(later, tmp_path / "y.parquet")
    ((key, timed),) = read_timed(tmp_path / "y.parquet")
    assert key == ("decode", "quest", "quest", "step", 1024, 1, "64", None)
    assert (timed.status, timed.times_us, timed.disturbed) == ("ok", (5, 7), 1)


def test_ratios_are_taken_between_neighbours() -> None:
    key = ("decode", "quest", "quest", "step", 1024, 1, "64", None)

    def run(us: float, status: str = "ok", reason: str | None = None) -> dict:  # type: ignore[type-arg]
        return {key: Timed(status, reason, (us,) * 3, 0)}

    found = table([run(100), run(300)], [run(50), run(150)])
    row = found.iloc[0]
    assert row["ratio"] == pytest.approx(2.0) and row["verdict"] == "faster"
    assert (row["other_us"], row["this_us"], row["pairs"]) == (200, 100, 2)
    lost = table([run(100), {}], [run(50), run(50)]).iloc[0]
    assert (lost["status"], lost["pairs"]) == ("missing", 1) and lost["ratio"] != lost["ratio"]
    failed = table([run(1), run(1)], [run(1, status="oom", reason="full"), run(1)]).iloc[0]
    assert (failed["status"], failed["reason"]) == ("oom", "full")
    assert failed["verdict"] == lost["verdict"] == ""
