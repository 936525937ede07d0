"""``make bench-compare REV=<rev>``: the same bench on two revisions, in one session on one machine.

The other revision is checked out as a worktree under ``build/``. Processes of both alternate A B B A (it, this tree,
this tree, it) under one lease, so that neither has the cooler or the busier half; ratios are taken between neighbours.
Both read one configuration file, so that it must be one that both understand.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from scipy.stats import t as student

from longdecode.engine.device import resolve_device
from longdecode.engine.errors import LongDecodeError
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.evals.records import OLDER_NAMES, op_sizes_text
from longdecode.evals.run_config import load_run_config
from longdecode.evals.stats import Interval
from longdecode.evals.store import write_table

CELL = ["bench", "method", "variant", "stage", "context", "batch", "budget", "op_sizes"]


class CompareError(LongDecodeError):
    """The two revisions cannot be compared."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print the table, write it to ``build/bench-compare.csv``."""
    parser = argparse.ArgumentParser(prog="python -m longdecode.evals.throughput.compare", description=__doc__)
    parser.add_argument("--rev", required=True, help="the revision to compare this tree with")
    parser.add_argument("--config", type=Path, default=Path("config/bench.yaml"), help="what to time")
    parser.add_argument("--repeats", type=int, default=2, help="how many times A B B A is run")
    parser.add_argument("--output", type=Path, default=Path("build/bench-compare.csv"))
    asked, filters = parser.parse_known_args(arguments)
    try:
        frame = compare(asked.rev, asked.config.resolve(), asked.repeats, filters)
        write_table(asked.output, frame)
    except LongDecodeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(frame.to_string(index=False, float_format=lambda value: f"{value:,.3f}", na_rep=""))
    print(f"ratio: time of {asked.rev} over this tree's; over 1, this tree is faster. {asked.output}")
    return 0


def compare(
    rev: str, config: Path, repeats: int, filters: Sequence[str] = (), root: Path = REPOSITORY
) -> pd.DataFrame:  # fmt: skip
    """Time both revisions, ``repeats`` times A B B A, and put their times side by side.

    Args:
        rev: the other revision, as git names it.
        config: a configuration with throughput tests.
        filters: arguments for ``measure``, which choose cells.
        root: this repository.

    Raises:
        CompareError: no such revision, or a run failed.
    """
    device = resolve_device(load_run_config(config).device)
    with worktree(rev, root) as tree, lease_gpu(device, alone=True, uuids=_uuids(device)) as leased:
        runs: list[pd.DataFrame] = []
        shutil.rmtree(root / "build" / "bench-compare", ignore_errors=True)
        for number in range(repeats):
            for step, side in enumerate(("other", "this", "this", "other")):
                folder = root / "build" / "bench-compare" / side
                _run(tree if side == "other" else root, config, folder, str(leased), filters)
                runs.append(read_times(folder).assign(side=side, pair=2 * number + step // 2))
    return table(pd.concat(runs))


@contextmanager
def worktree(rev: str, root: Path) -> Iterator[Path]:
    """Check a revision out under ``build/``, removed afterwards.

    Raises:
        CompareError: git cannot check it out.
    """
    git = functools.partial(subprocess.run, cwd=root, capture_output=True, text=True, check=False)
    folder = root / "build" / f"worktree-{rev.replace('/', '-')}"
    git(["git", "worktree", "remove", "--force", str(folder)])
    made = git(["git", "worktree", "add", "--detach", str(folder), rev])
    if made.returncode != 0:
        raise CompareError(f"git could not check {rev} out: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        git(["git", "worktree", "remove", "--force", str(folder)])


def read_times(folder: Path) -> pd.DataFrame:
    """Return a run's cells with their median times, disturbed samples left out, whatever the version of the records."""
    rows = []
    for file in sorted(folder.glob("*.parquet")):
        for stored in pq.read_table(file).to_pylist():
            row = {OLDER_NAMES.get(name, name): value for name, value in stored.items()}
            times = [sample["us"] for sample in row["samples"] if sample["disturbed"] is None]
            row["op_sizes"] = op_sizes_text(row["bench"], json.loads(row["params"])) or ""
            rows.append({name: row[name] for name in (*CELL, "status")} | {"us": np.median(times) if times else np.nan})
    return pd.DataFrame(rows, columns=[*CELL, "status", "us"])


def table(times: pd.DataFrame) -> pd.DataFrame:
    """Return each cell's medians and the ratio of neighbouring processes with its interval.

    A cell has a ratio where every process of both revisions timed it.
    """
    rows = []
    processes = times.groupby(["side", "pair"]).ngroups
    for key, found in times.groupby(CELL, sort=False):
        sides = found.pivot_table(index="pair", columns="side", values="us", dropna=False)
        sides = sides.reindex(columns=["other", "this"])
        bad = found["status"][found["status"] != "ok"]
        complete = len(found) == processes and bad.empty
        ratio = geometric_ratio((sides["other"] / sides["this"]).to_numpy() if complete else np.array([]))
        status = "ok" if complete else "missing" if bad.empty else bad.iloc[0]
        medians = [sides[side].median() for side in ("other", "this")]
        rows.append((*key, status, *medians, ratio.value, ratio.low, ratio.high))
    return pd.DataFrame(rows, columns=[*CELL, "status", "other_us", "this_us", "ratio", "ratio_low", "ratio_high"])


def geometric_ratio(ratios: np.ndarray, confidence: float = 0.95) -> Interval:
    """Return the geometric mean of ratios with Student's interval of their logarithms; one ratio has no bounds.

    The process is the unit, not the sample: samples of one process share its memory layout and its moment.
    """
    if not len(ratios):
        return Interval()
    logs = np.log(ratios)
    if len(logs) < 2:
        return Interval(float(np.exp(logs[0])))
    half = student.ppf(0.5 + confidence / 2, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    low, centre, high = np.exp(np.minimum(logs.mean() + half * np.array([-1, 0, 1]), 700.0))
    return Interval(float(centre), float(low), float(high))


def _run(tree: Path, config: Path, folder: Path, device: str, filters: Sequence[str]) -> None:
    """Run one process of one revision; what its gate found stays for the next."""
    for old in (*folder.rglob("*.parquet"), *folder.rglob("*.jsonl")):
        old.unlink()
    command = [
        sys.executable, "-m", "longdecode.evals.throughput.measure", "--config", str(config), "--output", str(folder),
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
    print(f"{folder.name}: done", file=sys.stderr, flush=True)


def _uuids(device: torch.device) -> list[str]:
    """Return the GPUs' ids, asked for in a process of its own: this one must not be on the device that it has timed."""
    if device.type != "cuda":
        return []
    code = "from longdecode.engine.gpu_lease import gpu_uuids; print(*gpu_uuids())"
    return subprocess.check_output([sys.executable, "-c", code], text=True).split()


if __name__ == "__main__":
    raise SystemExit(main())
