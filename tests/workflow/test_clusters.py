"""Cluster profiles as they are planned: threads and GPUs from profile and configuration, not from this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from longdecode import running
from longdecode.analysis.gpu_time import gpu_time, jobs_alone
from longdecode.engine.device import resolve_device
from longdecode.engine.disk import FileLock
from longdecode.engine.errors import ConfigError
from longdecode.evals import sweep
from longdecode.evals.budgets import Budget
from longdecode.evals.fairness import read_tuning
from longdecode.evals.plan import CLUSTER_THREADS, Plan
from longdecode.evals.run_config import build_run_config, granted, load_run_config
from longdecode.evals.specs import MethodSpec
from longdecode.evals.sweep import RUNTIME_GB, cost_of, kept_bytes, piece_bytes, prefill_seconds, size_of, step_seconds

ROOT = Path(__file__).resolve().parents[2]
HEADS = {"llama2-7b": "NousResearch/Yarn-Llama-2-7b-128k", "qwen2.5-coder-1.5b-yarn": "qwen2.5-coder-1.5b-yarn"}


@pytest.mark.parametrize("profile", ["slurm", "generic"])
def test_a_profile_is_planned_without_cores(profile: str, snakemake: Any, write_config: Any) -> None:
    path = write_config(device="auto")
    target = ("--", "results/trial/summary.csv")
    said = snakemake("-n", "--configfile", path, *target, check=True, profile=profile).stdout
    # A dry run has cores of its own, which a real one on a cluster lacks; unlocking parses as that does.
    snakemake("--unlock", "--configfile", path, *target, check=True, profile=profile)
    evaluation = said[said.index("rule evaluate_mini_recall") :]
    assert "mem_mb=16000" in evaluation and "runtime=240" in evaluation and "Traceback" not in said


def test_auto_asks_a_cluster_for_a_gpu_and_a_job_without_one_refuses(write_config: Any) -> None:
    def plan(device: str, on_cluster: bool) -> Plan:
        run = build_run_config(yaml.safe_load(write_config(device=device).read_text()), "c")
        return Plan(run, ROOT, None if on_cluster else 4, lambda: on_cluster)

    assert plan("auto", True).threads == (CLUSTER_THREADS, CLUSTER_THREADS)
    assert [plan(device, True).gpus() for device in ("auto", "cuda", "cpu")] == [1, 1, 0]
    run = plan("auto", True).run
    assert granted(run, 0).device == "cpu" and granted(run, 1).device == "cuda"
    if not Path(os.sep, "dev", "nvidia0").exists():
        with pytest.raises(ConfigError, match="torch sees 0 CUDA devices"):
            resolve_device(granted(run, 1).device)


def test_a_profile_has_one_run_at_a_time(snakemake: Any, write_config: Any, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "trial"
    folder.mkdir(parents=True)
    with FileLock(folder / ".lock"):
        done = snakemake("--cores", "1", "--configfile", write_config(), "--", "results/trial/config.yaml")
    last = done.stdout.strip().splitlines()[-1].partition(f"'trial' is being run by process {os.getpid()} of ")[2]
    assert done.returncode != 0 and " since 20" in last and "wait until it ends, end it" in last
    assert not (folder / "config.yaml").exists()


def test_a_killed_command_lets_go_of_its_profile(tmp_path: Path) -> None:
    """Its child, which holds the lock as Snakemake does, is killed with it, or does not begin where that came first."""
    take = "from longdecode.engine.disk import FileLock\nfrom pathlib import Path\nFileLock(Path('lock')).acquire()\n"
    (tmp_path / "work.py").write_text(f"{take}import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(60)")
    call = "r._follow([r.sys.executable, 'work.py'], {}, r.Path('log'), r.Told({}), r.Console())"
    command = ["env", f"PYTHONPATH={ROOT / 'src'}", sys.executable, "-c", f"import longdecode.running as r; {call}"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == -9
    FileLock(tmp_path / "lock").acquire(wait_seconds=10)
    for parent, status in ((os.getpid(), 0), (-1, 1)):
        done = subprocess.run(["true"], preexec_fn=lambda parent=parent: running._die_with(parent), check=False)
        assert done.returncode == status


def fitted(terms: Any, taken: Any) -> Any:
    """Return the rates by which sums of terms come nearest to what was taken, each error counted by its share."""
    taken = np.asarray(taken)[:, None]
    return pytest.approx(list(np.linalg.lstsq(terms / taken, np.ones(len(taken)), rcond=None)[0]), rel=2e-3)


def test_a_plan_is_priced_by_the_steps_prefills_and_memory_that_were_measured() -> None:
    sizes = {name: size_of(name) for name in ("llama3-8b", "qwen2.5-coder-1.5b")}
    runs = (ROOT / "results" / name for name in ("h200", "qwen", "qwen-32k", "qwen-budgets"))
    table = pd.concat(pd.read_csv(run / "speed.csv", low_memory=False) for run in runs).dropna(subset=["bytes_min"])
    table = table[(table["bench"] == "decode") & table["model"].isin(sizes) & ~table["method"].str.startswith("hf_")]
    steps = table[table["stage"] == "step"].dropna(subset=["median_us"])
    layers = steps["model"].map({name: size.layers for name, size in sizes.items()})
    rates = fitted(np.c_[layers, steps["bytes_min"]], steps["median_us"] * 1e-6)
    assert [step_seconds(0, 1), step_seconds(1, 0)] == rates
    for row in pd.read_csv(ROOT / "results/qwen/prefill.csv").itertuples():
        size, tokens = sizes[row.model], row.context * row.batch
        assert row.batch * prefill_seconds(row.context, size) == pytest.approx(row.prefill_ms * 1e-3, rel=0.13)
        # Streams of the batch and a piece's activations, beside weights and caches.
        filled = piece_bytes(size.width, tokens) + 4 * size.width * tokens
        assert 0 < filled + RUNTIME_GB * 1e9 - (row.peak_bytes - row.held_bytes) < 2.2e9
    # Methods with a cache of their own are timed without the prompt beside it.
    run = load_run_config(ROOT / "config" / "h200.yaml")
    steps = steps[steps["model"] == "llama3-8b"]
    peaks = steps.groupby(["variant", "context", "batch"])["peak_bytes"]
    for place in (("full", 524288, 1), ("quest", 524288, 1), ("retro", 131072, 4), ("lychee_eighth", 131072, 4)):
        name, context, batch = place
        needed = 16.06e9 + batch * (context * 131072 + kept_bytes(run, "llama3-8b", name, context, [Budget(4096)]))
        assert 0.2e9 < peaks.max()[place] - needed < 0.6e9 < RUNTIME_GB * 1e9


def test_plans_are_what_the_able_model_s_jobs_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGDECODE_CACHE", str(tmp_path))  # with the checkpoint here, methods' own bytes count too
    runs = [ROOT / "results" / name for name in ("qwen-32k", "qwen-64k", "qwen-budgets")]
    jobs, size = pd.concat(map(jobs_alone, runs)), size_of("qwen2.5-coder-1.5b")
    retro, table = load_run_config(ROOT / "results/retro/config.yaml"), pd.read_csv(ROOT / "results/retro/refill.csv")
    rates = fitted(np.c_[jobs.batches, jobs.prompts * jobs.context], jobs.host_s - size.start_seconds)
    assert [sweep.TIMES["batch_seconds"], sweep.TIMES["seconds_per_made_token"]] == rates
    for row in pd.concat(map(gpu_time, runs)).itertuples():
        assert row.planned_s == pytest.approx(row.alone_s, rel=0.25)
    # The peak of results/qwen/prefill.csv, without what CUDA itself holds.
    assert 0 < cost_of(load_run_config(ROOT / "config/qwen-64k.yaml")).memory_bytes - 22.76e9 < 1e9
    # Nothing is fitted to these times: rates are of RULER's jobs above, lengths of other jobs of this model and task.
    # Rows of the corrected method stay in batches.
    costs, corrected = {}, MethodSpec("tidal", {"correction": "rewrite"})
    for row, spec in product(table.itertuples(), (corrected, MethodSpec("full"))):
        where = {"contexts": (row.context,), "samples": row.n, "batch": row.batch, "tasks": (row.task,)}
        suite = replace(retro.suites["math"], **where, refill=row.mode == "refill")
        run = replace(retro, methods={"full": spec}, suites={"math": suite}, throughput=())
        seconds = sweep.scoring_seconds(run) + size.start_seconds
        assert spec is corrected or seconds == pytest.approx(row.job_s, rel=0.2)
        costs[spec.method, row.context, row.mode] = seconds, cost_of(run).memory_bytes
    assert costs["tidal", 4096, "refill"] == costs["tidal", 4096, "static"]
    # A quarter of the rows more: keys and values of 28 layers, and what goes from layer to layer of a prefill.
    more = costs["full", 4096, "refill"][1] - costs["full", 4096, "static"][1]
    assert more == pytest.approx(16 * 4096 * (28 * 2 * 2 * 128 * 2 + 4 * 12 * 128))


def test_trainings_gates_times_and_tuning_are_priced_by_what_they_took() -> None:
    for name, unlike in (("qwen-roles", "hard_concrete0"), ("qwen-nosa", "")):  # its steps took half of its kin's
        run, planned, taken = load_run_config(ROOT / "results" / name / "config.yaml"), 0.0, 0.0
        trainings = {**run.role_trainings, **run.fork_trainings}
        for file in (ROOT / "results" / name).glob("*/*/*/run.json"):
            about = json.loads(file.read_text())
            seconds = about.get("seconds") or about["last"]["seconds"]
            own = sweep.training_seconds(trainings[file.parent.name], size_of("qwen2.5-coder-1.5b"))
            assert file.parent.name == unlike or own == pytest.approx(seconds, rel=0.27)
            planned, taken = planned + own, taken + seconds
        assert planned == pytest.approx(taken, rel=0.25) and cost_of(run).seconds["training"] > planned - 1
    planned, taken = 0.0, 0.0
    for name in ("h200", "qwen-32k", "qwen-budgets"):
        for file in {*(folder := ROOT / "results" / name).glob("speed/*.parquet")} - {folder / "speed/kernels.parquet"}:
            told = pd.to_datetime([json.loads(text)["started_at"] for text in pd.read_parquet(file).provenance])
            between = told.to_series().sort_values().diff().dt.total_seconds()
            taken += between[between < 120].sum()  # more lies between two jobs
        planned += cost_of(run := load_run_config(folder / "config.yaml")).seconds["times"]
    assert planned == pytest.approx(taken, rel=0.25)
    # 69 gates of these runs in 280 seconds, seven at a time.
    assert cost_of(run).seconds["gates"] == pytest.approx(len(run.methods) * 280 * 7 / 69, rel=0.25)
    assert cost_of(run).seconds["tuning"] == 0  # its record is here
    for name, model in (("qwen", "qwen2.5-coder-1.5b"), ("real", "smollm2-long")):
        record = read_tuning(ROOT / "results" / name / "tuning" / f"{model}.json")
        run, taken = load_run_config(ROOT / "config" / f"{name}.yaml"), sum(t.seconds for t in record.methods.values())
        assert sweep.tuning_seconds(run, model, size_of(model).layers) == pytest.approx(taken, rel=0.25)
    # The paper's of 7B, and "some four minutes" of the recipe that the able model has.
    heads = [sweep.heads_seconds(name, size_of(path)) for name, path in HEADS.items()]
    assert heads == pytest.approx([8 * 3600, 300], rel=0.25)


def test_the_container_is_built_from_the_lock_and_copies_nothing_a_run_makes() -> None:
    import tomllib

    from packaging.specifiers import SpecifierSet

    lines = (ROOT / "container" / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    (base,) = [line.split(":")[1] for line in lines if line.startswith("ARG BASE=python:")]
    assert [line for line in lines if line.startswith("FROM ")] == ["FROM $BASE"]
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert SpecifierSet(wanted).contains(base.split("-")[0] + ".0")
    for line in lines:
        if line.startswith("RUN "):
            subprocess.run(["sh", "-n", "-c", line[4:]], check=True)
        if line.startswith("COPY "):
            assert (ROOT / line.split()[1]).exists()
    assert any(line.startswith("COPY requirements.lock") for line in lines)
    left_out = (ROOT / ".dockerignore").read_text().splitlines()
    assert {".venv", ".git", ".snakemake", "results/*", "reports/*"} <= set(left_out)
    kept = [line.replace("/", "", 1).rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    evidence = [line for line in kept if line.lstrip("!").startswith(("results", "reports"))]
    assert [line for line in left_out if line.lstrip("!").startswith(("results", "reports"))] == evidence


def test_make_takes_the_python_of_the_image(tmp_path: Path) -> None:
    """The Dockerfile leaves the mark by which make knows an environment of this lock, where make looks for it."""
    text = (ROOT / "container" / "Dockerfile").read_text()
    (mark,) = [line[4:] for line in text.splitlines() if line.startswith("RUN touch ")]
    (environment,) = [line.partition("=")[2] for line in text.splitlines() if line.startswith("ENV LONGDECODE_VENV=")]
    here = mark.replace("/opt/longdecode/requirements.lock", str(ROOT / "requirements.lock"))
    (tmp_path / "bin").mkdir()
    subprocess.run(["sh", "-c", here.replace(environment, str(tmp_path))], check=True)
    command = ["make", "--no-print-directory", "-n", "verify", f"LONGDECODE_VENV={tmp_path}"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert planned.startswith(f"{tmp_path}/bin/python -m longdecode verify") and "pip" not in planned
