"""Write gpu_time.csv of runs whose jobs were logged: ``python -m longdecode.analysis.gpu_time results/NAME ...``."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from longdecode.evals import manifest
from longdecode.evals.run_config import load_run_config
from longdecode.evals.store import write_table
from longdecode.evals.sweep import scoring_seconds


def gpu_time(folder: Path) -> pd.DataFrame:
    """Return the seconds of a GPU that scoring took, by jobs.csv, beside what ``longdecode plan`` prices it at.

    A card is taken from the start of its first job to the end of its last.
    """
    jobs = pd.read_csv(folder / "jobs.csv")
    cards = jobs.groupby(["revision", "card"]).agg({"start_s": "min", "end_s": "max"})
    planned, taken = scoring_seconds(load_run_config(folder / "config.yaml")), (cards.end_s - cards.start_s).sum()
    return pd.DataFrame([(planned, taken, len(jobs))], columns=["planned_s", "taken_s", "jobs"])


if __name__ == "__main__":
    for place in map(Path, sys.argv[1:]):
        write_table(place / "gpu_time.csv", gpu_time(place))
        manifest.seal(place, [place / "gpu_time.csv"])
