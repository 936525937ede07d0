"""Plan a sweep that does not fit this machine: jobs, GPU hours, disk and downloads, from step times measured before.

A step's time follows the bytes that it reads: a line through the steps of ``speed.csv``, all methods and contexts of
the 8B shape on one H200. A prefill's time follows its operations, at the mean rate of the prefills measured there. A
method is taken to read its budget and an eighth of the context, for choosing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from longdecode.engine.errors import ConfigError
from longdecode.evals.generation.spec import GenerationRun
from longdecode.evals.plan import Plan
from longdecode.evals.record_files import RecordFile
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.evals.tasks.registry import folder_of, get_task
from longdecode.evals.yaml_file import read_yaml

MEASURED_MODEL, MEASURED_BYTES = "llama3-8b", 15.0e9  # weights that a step reads, of 16.1 GB with the embedding
ATTENTION_OPERATIONS = 2 * 32 * 32 * 128
"""Of a causal prefill, a squared token: layers, heads, head width. Weights take as many a token as they have bytes."""
CHOOSING_SHARE = 1 / 8
RECORD_BYTES, TOKEN_BYTES = 600, 3
"""Bytes of a stored sample without its output, and of each token of it (zstd; results/tiny and results/h200)."""
JOB_SECONDS = 90.0
"""Loading a checkpoint of 8B, its gate and the first kernels, a job."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step by bytes read, and of a prefill by operations, on the measured device."""

    step_seconds: float
    seconds_per_byte: float
    seconds_per_operation: float
    device: str

    def step(self, read_bytes: float) -> float:
        """Return the seconds of one decoding step."""
        return self.step_seconds + self.seconds_per_byte * read_bytes

    def prefill(self, tokens: int, weight_share: float) -> float:
        """Return the seconds of one row's prompt; ``weight_share`` is the model's size over the measured one's."""
        return self.seconds_per_operation * _operations(tokens) * weight_share


@dataclass(slots=True)
class Cost:
    """Totals of some jobs."""

    jobs: int = 0
    gpu_hours: float = 0.0
    disk_bytes: float = 0.0
    downloads: dict[str, float] | None = None

    def add(self, other: Cost) -> None:
        """Add another total; what both download counts once."""
        self.jobs += other.jobs
        self.gpu_hours += other.gpu_hours
        self.disk_bytes += other.disk_bytes
        self.downloads = {**(self.downloads or {}), **(other.downloads or {})}


def measured_times(speed_csv: Path) -> StepTimes:
    """Fit a line to measured steps, and a rate to measured prefills; what was disturbed throughout has no time.

    Raises:
        ConfigError: the table has too few steps, or no prefill.
    """
    frame = pd.read_csv(speed_csv, low_memory=False).rename(columns={"label": "variant"})
    rows = frame[(frame["bench"] == "decode") & (frame["model"] == MEASURED_MODEL) & (frame["status"] == "ok")]
    rows = rows.dropna(subset=["median_us"])
    steps, prefills = rows[rows["stage"] == "step"].dropna(subset=["bytes_min"]), rows[rows["stage"] == "prefill"]
    prefills = prefills[(prefills["variant"] == "full") & (prefills["batch"] == 1)]
    if len(steps) < 3 or prefills.empty:
        raise ConfigError(f"{speed_csv}: no steps and prefills of {MEASURED_MODEL} to plan with")
    slope, start = np.polyfit(steps["bytes_min"], steps["median_us"] * 1e-6, 1)
    rate = prefills["median_us"].sum() * 1e-6 / sum(map(_operations, prefills["context"].astype(float)))
    return StepTimes(max(0.0, float(start)), float(slope), float(rate), str(steps["device"].iloc[0]))


def _operations(tokens: float) -> float:
    """Return the operations of the measured model's prefill."""
    return MEASURED_BYTES * tokens + ATTENTION_OPERATIONS * tokens**2


def cost_of(run: RunConfig, sizes: Mapping[str, Any], times: StepTimes) -> Cost:
    """Add up the jobs of a run's samples; its throughput tests count by their own times.

    Raises:
        ConfigError: ``sizes`` lacks a checkpoint or a suite of the run.
    """
    plan = Plan(run, Path())
    cost = Cost(downloads={})
    groups: dict[tuple[str, ...], list[RecordFile]] = {}
    for file in plan.record_files:
        own = {"suite": (), "context": (str(file.context),), "cell": (str(file.context), file.label)}[run.jobs]
        groups.setdefault((file.model, file.suite, *own), []).append(file)
        cost.add(_samples_cost(run, file, sizes, times))
    gates = {run.gate_of(label) for label in run.methods}
    heads = {path for model in run.models for path in plan.method_files(run.methods, model)} - set(plan.role_files)
    learning = {Path(path).parents[2] for path in heads & set(plan.made)}  # one job makes all heads of a model
    trained = {"roles": len(plan.role_files), "heads": len(learning)}
    cost.jobs = len(groups) + len(gates) + len(plan.speed_jobs) + len(plan.generation) + sum(trained.values())
    cost.gpu_hours += cost.jobs * JOB_SECONDS / 3600
    cost.gpu_hours += sum(count * _size(sizes, "training_hours", kind, run) for kind, count in trained.items() if count)
    for text in run.generation.runs.values() if run.generation else ():
        cost.add(_texts_cost(run, text, sizes, times))
    for model in run.models.values():
        known = _size(sizes, "checkpoints", model.path, run)
        cost.downloads = {**(cost.downloads or {}), model.path: known["bytes"]}
    for name, place in run.data.items():
        if place is not None:
            cost.downloads = {**(cost.downloads or {}), f"data: {name}": _size(sizes, "data", name, run)}
    cost.disk_bytes += sum((cost.downloads or {}).values())
    return cost


def _samples_cost(run: RunConfig, file: RecordFile, sizes: Mapping[str, Any], times: StepTimes) -> Cost:
    model, spec = _size(sizes, "checkpoints", run.models[file.model].path, run), run.suites[file.suite]
    weights = MEASURED_BYTES * model["bytes"] / 16.1e9
    kv_bytes = 4.0 * model["layers"] * model["kv_heads"] * model["head_dim"]
    seconds = samples = 0.0
    new = _size(sizes, "new_tokens", folder_of(file.suite)[0], run)
    for context in spec.contexts if file.context is None else (file.context,):
        for task in (get_task(name, run.data) for name in spec.tasks):
            count = min(spec.samples, (sizes.get("problems") or {}).get(task.name, math.inf)) * task.samples_per_problem
            for budget in run.budgets_of(file.label):
                chosen = budget.tokens(context) if not budget.of_bytes else math.ceil((budget.value or 1) * context)
                read = context if chosen is None else min(context, chosen + CHOOSING_SHARE * context)
                batches = math.ceil(count / spec.batch)
                rows = min(count, spec.batch)
                seconds += (
                    batches
                    * min(new, context // 2 if new > context // 2 else new)
                    * times.step(weights + rows * kv_bytes * read)
                )
                samples += count
            # One prefill serves all budgets of a job.
            seconds += count * times.prefill(context, weights / MEASURED_BYTES)
    return Cost(0, seconds / 3600, samples * (RECORD_BYTES + TOKEN_BYTES * new))


def _texts_cost(run: RunConfig, text: GenerationRun, sizes: Mapping[str, Any], times: StepTimes) -> Cost:
    """Price long texts as if every label took a step of Full for each token: drafting can only be faster."""
    model = _size(sizes, "checkpoints", run.models[text.model].path, run)
    weights = MEASURED_BYTES * model["bytes"] / 16.1e9
    kv_bytes = 4.0 * model["layers"] * model["kv_heads"] * model["head_dim"]
    count = len(text.named) * len(text.samplers) * text.books
    seconds = sum(
        times.prefill(prompt, weights / MEASURED_BYTES)
        + text.tokens * times.step(weights + kv_bytes * (prompt + text.tokens / 2))
        for prompt in text.prompts
    )
    return Cost(0, count * seconds / 3600, count * len(text.prompts) * (RECORD_BYTES + TOKEN_BYTES * text.tokens))


def _size(sizes: Mapping[str, Any], kind: str, name: str, run: RunConfig) -> Any:
    found = (sizes.get(kind) or {}).get(name)
    if found is None:
        raise ConfigError(
            f"{run.source}: no {kind} of {name!r} in the sizes; known: {', '.join(sizes.get(kind) or {})}"
        )
    return found


def lines(runs: Mapping[str, RunConfig], sizes: Mapping[str, Any], times: StepTimes) -> Iterator[str]:
    """Yield the table of a sweep, a row a run and one for all, then the checkpoints that are gated."""
    yield f"step times: results/h200/speed.csv, {times.device}, scaled by bytes; one job a row of a GPU"
    yield f"{'run':<20}{'jobs':>6}{'GPU hours':>12}{'disk GB':>10}{'download GB':>13}"
    total = Cost(downloads={})
    for name, run in runs.items():
        cost = cost_of(run, sizes, times)
        total.add(cost)
        yield _row(name, cost)
        total.disk_bytes -= sum((cost.downloads or {}).values())
    total.disk_bytes += sum((total.downloads or {}).values())
    yield _row("all", total)
    paths = {model.path for run in runs.values() for model in run.models.values()}
    for path in sorted(path for path in paths if sizes["checkpoints"][path].get("gated")):
        yield f"gated: https://huggingface.co/{path} (accept its licence there, then `hf auth login`)"


def _row(name: str, cost: Cost) -> str:
    gigabytes = sum((cost.downloads or {}).values()) / 1e9
    return f"{name:<20}{cost.jobs:>6,}{cost.gpu_hours:>12,.1f}{cost.disk_bytes / 1e9:>10,.1f}{gigabytes:>13,.1f}"


def main(arguments: list[str] | None = None) -> None:
    """Print what the runs of a folder of configurations take."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="of run configurations and sizes.yaml, such as config/papers")
    parser.add_argument("--speed", type=Path, default=Path("results/h200/speed.csv"))
    given = parser.parse_args(arguments)
    try:
        sizes = read_yaml(given.folder / "sizes.yaml")
        files = sorted(path for path in given.folder.glob("*.yaml") if path.name != "sizes.yaml")
        runs = {path.stem: load_run_config(path) for path in files}
        print(*lines(runs, sizes, measured_times(given.speed)), sep="\n")
    except ConfigError as error:
        raise SystemExit(f"ConfigError: {error}") from None


if __name__ == "__main__":
    main()
