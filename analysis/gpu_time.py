"""Write gpu_time.csv of runs whose jobs were logged: ``python -m longdecode.analysis.gpu_time results/NAME ...``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd

from longdecode.evals import manifest
from longdecode.evals.run_config import load_run_config
from longdecode.evals.store import write_table
from longdecode.evals.sweep import scoring_seconds, size_of

JOB = ["suite", "task", "context", "revision"]


def gpu_time(folder: Path) -> pd.DataFrame:
    """Return the seconds of a GPU that scoring took, beside what ``longdecode plan`` prices it at with as many starts.

    ``alone_s`` is what the jobs take one after another (``jobs_alone``), as the plan counts. ``taken_s`` is how long
    cards were held, from the start of the first job to the end of the last, by jobs side by side.
    """
    jobs = jobs_alone(folder)
    cards = jobs.groupby(["revision", "card"]).agg({"start_s": "min", "end_s": "max"})
    run, taken = load_run_config(folder / "config.yaml"), (cards.end_s - cards.start_s).sum()
    starts = len(jobs) * sum(size.start_seconds for model in run.models.values() if (size := size_of(model.path)))
    times = (scoring_seconds(run) + starts, jobs.alone_s.sum(), taken)
    return pd.DataFrame([(*times, len(jobs))], columns=["planned_s", "alone_s", "taken_s", "jobs"]).round(1)


def jobs_alone(folder: Path) -> pd.DataFrame:
    """Return the logged jobs with their work, and the seconds that each takes alone on its card.

    ``host_s`` is a job's time beside its prefills and steps: its start, prompts, graphs, scores. Jobs of other runs
    shared the cards too, so prefills and steps count at the speed of the fastest of their kind.
    """
    table = pd.concat(map(pd.read_parquet, sorted((folder / "records").rglob("*.parquet"))))
    times = pd.DataFrame([dict(measures) for measures in table.measures], table.index)
    table = table.assign(**times[["prefill_ms", "decode_ms", "decode_steps"]], number=table.sample_index // table.batch)
    table["revision"] = [json.loads(text)["revision"][:12] for text in table.provenance]
    cells = table.drop_duplicates([*JOB, "variant", "budget", "number"]).copy()
    pace = (cells.decode_ms / cells.decode_steps).groupby([cells[at] for at in ("context", "variant", "budget")])
    cells["quickest_ms"] = pace.transform("min") * cells.decode_steps
    quickest = cells.groupby("context").prefill_ms.transform("min")
    fills = cells.assign(quickest_ms=quickest).drop_duplicates([*JOB, "prefill_ms"])
    steps = {"batches": ("number", "size"), "decode_ms": ("decode_ms", "sum"), "steps_ms": ("quickest_ms", "sum")}
    reads = {"prompts": ("batch", "sum"), "prefill_ms": ("prefill_ms", "sum"), "fills_ms": ("quickest_ms", "sum")}
    jobs = pd.read_csv(folder / "jobs.csv")
    jobs = jobs if "context" in jobs else jobs.assign(context=cells.context.max())
    jobs = jobs.join(cells.groupby(JOB).agg(**steps), on=JOB).join(fills.groupby(JOB).agg(**reads), on=JOB)
    host = jobs.end_s - jobs.start_s - (jobs.decode_ms + jobs.prefill_ms) / 1e3
    return jobs.assign(host_s=host, alone_s=host + (jobs.steps_ms + jobs.fills_ms) / 1e3)


if __name__ == "__main__":
    for place in map(Path, sys.argv[1:]):
        write_table(place / "gpu_time.csv", gpu_time(place))
        manifest.seal(place, [place / "gpu_time.csv"])
