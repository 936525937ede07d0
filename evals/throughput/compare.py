"""``make bench-compare REV=<rev>``: the same bench on two revisions, in one session on one machine.

The other revision is checked out as a worktree under ``build/``, or is an exported tree (``--baseline``). Processes of
both alternate A B B A (it, this tree, this tree, it) under one lease, so that neither has the cooler or the busier
half; ratios are taken between neighbours. Of the records only columns that every revision has are read.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from scipy.stats import t as student

from longdecode.engine.device import resolve_device
from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.evals.records import op_sizes_text
from longdecode.evals.run_config import load_run_config
from longdecode.evals.store import write_table
from longdecode.evals.throughput.statistics import Interval, median

BENCH = Path("evals/throughput/cli.py")
COLUMNS = (
    "bench", "subject", "label", "stage", "context", "batch", "budget", "op_sizes", "status", "reason", "other_us",
    "this_us", "ratio", "ratio_low", "ratio_high", "pairs", "disturbed", "verdict",
)  # fmt: skip
_CELL = COLUMNS[:8]


@dataclass(frozen=True, slots=True)
class Timed:
    """Hold one process's times of a cell, disturbed samples left out."""

    status: str
    reason: str | None
    times_us: tuple[float, ...]
    disturbed: int


Run = dict[tuple[Any, ...], Timed]


class CompareError(LongDecodeError):
    """The two revisions cannot be compared."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print the table, write it to ``build/bench-compare.csv``."""
    parser = argparse.ArgumentParser(prog="python -m longdecode.evals.throughput.compare", description=__doc__)
    other = parser.add_mutually_exclusive_group(required=True)
    other.add_argument("--rev", help="the revision to compare this tree with")
    other.add_argument("--baseline", type=Path, help="an exported tree of the other revision, where there is no git")
    parser.add_argument("--config", type=Path, default=Path("config/bench.yaml"), help="what to time")
    parser.add_argument("--repeats", type=int, default=2, help="how many times A B B A is run")
    parser.add_argument("--output", type=Path, default=Path("build/bench-compare.csv"))
    asked, filters = parser.parse_known_args(arguments)
    try:
        frame = compare(asked.baseline or asked.rev, asked.config.resolve(), asked.repeats, filters)
        write_table(asked.output, frame)
    except LongDecodeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    shown = frame.drop(columns=["reason", "pairs", "disturbed"])
    print(shown.to_string(index=False, float_format=lambda value: f"{value:,.3f}", na_rep=""))
    print(f"ratio: time of {asked.baseline or asked.rev} over this tree's; over 1, this tree is faster. {asked.output}")
    return 0


def compare(
    other: str | Path, config: Path, repeats: int, filters: Sequence[str] = (), root: Path = REPOSITORY
) -> pd.DataFrame:
    """Time both revisions, ``repeats`` times A B B A, and put their times side by side.

    Args:
        other: the other revision, as git names it, or the folder of its tree.
        config: a configuration with throughput tests; both revisions read this one file.
        filters: arguments for ``cli``, which choose cells.
        root: this repository.

    Raises:
        CompareError: no such revision or tree, it has no bench, or a run failed.
        ConfigError: the configuration is wrong.
    """
    if repeats < 1:
        raise ConfigError(f"--repeats is {repeats}; 1 or more is needed")
    device = resolve_device(load_run_config(config).device)
    checkout = nullcontext(exported(other)) if isinstance(other, Path) else worktree(other, root)
    with checkout as tree, lease_gpu(device, alone=True, uuids=_uuids(device)) as leased:
        runs: dict[str, list[Run]] = {"other": [], "this": []}
        gates: dict[str, Path] = {}
        for number in range(repeats):
            for step, side in enumerate(("other", "this", "this", "other")):
                folder = root / "build" / "bench-compare" / f"{number}-{step}-{side}"
                at = tree if side == "other" else root
                runs[side].append(_run(at, config, folder, str(leased), filters, gates.get(side)))
                gates[side] = folder / "gate"
    return table(runs["other"], runs["this"])


def exported(folder: Path) -> Path:
    """Check the tree of another revision, as ``git archive`` writes it.

    Raises:
        CompareError: there is none, or its links under ``src/`` were lost.
    """
    if not (folder / "src" / "longdecode" / BENCH).is_file():
        raise CompareError(f"{folder}: src/longdecode/{BENCH} is not there; a tree with its symbolic links is needed")
    return folder.resolve()


@contextmanager
def worktree(rev: str, root: Path) -> Iterator[Path]:
    """Check a revision out under ``build/``, removed afterwards.

    Raises:
        CompareError: git does not know the revision, or the revision has no throughput bench.
    """
    answer = _git(root, "rev-parse", "--verify", "--quiet", f"{rev}^{{commit}}")
    commit = answer.stdout.strip()
    if answer.returncode != 0 or not commit:
        raise CompareError(f"{rev!r} is no revision of {root.name}")
    if _git(root, "cat-file", "-e", f"{commit}:{BENCH.as_posix()}").returncode != 0:
        raise CompareError(f"{rev} ({commit[:12]}) has no throughput bench ({BENCH}); it cannot be compared")
    folder = root / "build" / f"worktree-{commit[:12]}"
    if folder.exists():
        shutil.rmtree(folder)
    _git(root, "worktree", "prune")
    made = _git(root, "worktree", "add", "--detach", str(folder), commit)
    if made.returncode != 0:
        raise CompareError(f"git could not check {rev} out: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        _git(root, "worktree", "remove", "--force", str(folder))


def table(other: Sequence[Run], this: Sequence[Run]) -> pd.DataFrame:
    """Tabulate medians over all good samples, and the ratio of neighbouring processes with its interval."""
    keys = dict.fromkeys(key for run in (*this, *other) for key in run)
    return pd.DataFrame([_row(key, other, this) for key in keys], columns=list(COLUMNS))


def geometric_ratio(ratios: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the geometric mean of ratios with Student's interval of their logarithms; one ratio has no bounds.

    The process is the unit, not the sample: samples of one process share its memory layout and its moment.
    """
    if not ratios:
        return Interval(math.nan, math.nan, math.nan)
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    centre = float(logs.mean())
    if len(logs) < 2:
        return Interval(math.exp(centre), math.nan, math.nan)
    half = float(student.ppf(0.5 + confidence / 2, len(logs) - 1)) * float(logs.std(ddof=1)) / len(logs) ** 0.5
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(min(centre + half, 700.0)))


def _row(key: tuple[Any, ...], other: Sequence[Run], this: Sequence[Run]) -> dict[str, Any]:
    found = [run.get(key) for run in (*other, *this)]
    bad = next((timed for timed in found if timed is None or timed.status != "ok"), None)
    complete = all(timed is not None and timed.status == "ok" for timed in found)
    pairs = [(_median(a.get(key)), _median(b.get(key))) for a, b in zip(other, this, strict=True)]
    ratios = [a / b for a, b in pairs if a == a and b == b]
    ratio = geometric_ratio(ratios if complete else [])
    missing = Timed("missing", "one revision does not know this cell", (), 0)
    shown = Timed("ok", None, (), 0) if complete else bad or missing
    return dict(zip(_CELL, key, strict=True)) | {
        "status": shown.status, "reason": shown.reason, "other_us": median([a for a, _ in pairs if a == a]),
        "this_us": median([b for _, b in pairs if b == b]), "ratio": ratio.value, "ratio_low": ratio.low,
        "ratio_high": ratio.high, "pairs": len(ratios), "disturbed": sum(t.disturbed for t in found if t is not None),
        "verdict": _verdict(ratio),
    }  # fmt: skip


def _verdict(ratio: Interval) -> str:
    """Return the interval's verdict on this tree; nothing where there is none."""
    if math.isnan(ratio.low):
        return ""
    if ratio.low > 1:
        return "faster"
    return "slower" if ratio.high < 1 else "no difference shown"


def _median(timed: Timed | None) -> float:
    return median(timed.times_us) if timed is not None else math.nan


def _run(tree: Path, config: Path, folder: Path, device: str, filters: Sequence[str], gate: Path | None = None) -> Run:
    """Run one process of one revision and read its records by cell; ``gate`` holds what its revision checked before."""
    if folder.exists():
        shutil.rmtree(folder)
    if gate is not None and gate.is_dir():
        shutil.copytree(gate, folder / "gate")
    command = [
        sys.executable, "-m", "longdecode.evals.throughput.cli", "--config", str(config), "--output", str(folder),
        "--device", device, "--leased", *filters,
    ]  # fmt: skip
    # Packages beside the environment stay on the path; another tree's rooms must not be found.
    beside = [Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = (tree / "src", *(entry for entry in beside if not (entry / "longdecode").is_dir()))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise CompareError(f"the bench of {tree.name} failed: {last}")
    found = {key: timed for file in sorted(folder.glob("*.parquet")) for key, timed in read_timed(file)}
    print(f"{folder.name}: {len(found)} cells", file=sys.stderr, flush=True)
    return found


def read_timed(file: Path) -> Iterator[tuple[tuple[Any, ...], Timed]]:
    """Yield the cells of a file of speed records, whatever the version of their schema."""
    names = {"method": "subject", "variant": "label"}  # records call them otherwise than this table
    for stored in pq.read_table(file).to_pylist():
        row = {names.get(name, name): value for name, value in stored.items()}
        times = tuple(sample["us"] for sample in row["samples"] if sample["disturbed"] is None)
        key = (*(row[name] for name in _CELL[:-1]), op_sizes_text(row["bench"], json.loads(row["params"])))
        yield key, Timed(row["status"], row["reason"], times, len(row["samples"]) - len(times))


def _uuids(device: torch.device) -> list[str]:
    """Return the GPUs' ids, asked for in a process of its own: this one must not be on the device that it has timed."""
    if device.type != "cuda":
        return []
    code = "from longdecode.engine.gpu_lease import gpu_uuids; print(*gpu_uuids())"
    return subprocess.check_output([sys.executable, "-c", code], text=True).split()


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)


if __name__ == "__main__":
    raise SystemExit(main())
