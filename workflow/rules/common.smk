import functools
import json
import os
import re
import sys
from pathlib import Path

import yaml
from snakemake.utils import update_config, validate

ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ.update(
    PYTHONPATH=os.pathsep.join(
        filter(None, [str(ROOT / "src"), os.getenv("PYTHONPATH")])
    )
)

from longdecode.engine.errors import ConfigError
from longdecode.evals.names import unknown_name
from longdecode.evals.hashing import (
    hash_files,
    hash_texts,
    quality_code_hash,
    speed_code_hash,
)
from longdecode.evals.run_config import ModelSpec, RunConfig, build_run_config
from longdecode.evals.tasks.registry import get_task
from longdecode.evals.throughput.spec import KERNELS_JOB


def config_path(profile: str) -> Path:
    """The configuration file of a profile; an unknown profile ends the run with the nearest name."""
    profiles = [path.stem for path in (ROOT / "config").glob("*.yaml")]
    if profile not in profiles:
        raise SystemExit(
            f"--config profile={profile}: {unknown_name('profile', profile, profiles)}"
        )
    return ROOT / "config" / f"{profile}.yaml"


def retyped(value):
    """A value of --config with the types YAML gives it; Snakemake hands over everything inside a list or mapping as text."""
    if isinstance(value, dict):
        return {key: retyped(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [retyped(entry) for entry in value]
    return yaml.safe_load(value) if isinstance(value, str) else value


def config_source() -> str:
    """What the configuration was read from, as errors name it."""
    files = ", ".join(os.path.relpath(path) for path in workflow.configfiles)
    keys = ", ".join(key for key in workflow.config_settings.config if key != "profile")
    return f"{files} with --config {keys}" if keys else files


def checked(values: dict, source: str) -> RunConfig:
    """The run that a configuration asks for; a wrong one ends the run with its message alone.

    A job's own process takes for granted what the run's first process has checked.
    """
    first = workflow.is_main_process
    try:
        run = build_run_config(values, source, check_params=first)
    except ConfigError as error:
        raise SystemExit(f"ConfigError: {error}")
    if first:
        validate(values, ROOT / "workflow" / "schemas" / "config.schema.yaml")
    return run


def wants_gpu(device: str) -> bool:
    """Whether jobs will run on a CUDA device; asked of the system, because importing torch would take seconds."""
    if device != "auto":
        return device.startswith("cuda")
    hidden = os.getenv("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(Path(os.sep, "dev").glob("nvidia[0-9]*"))


def require_gpu_limit() -> None:
    """End the run when jobs share a GPU without a limit: without one, Snakemake starts them all at once."""
    if workflow.is_main_process and "gpu" not in workflow.global_resources:
        raise SystemExit(
            f"{RUN.source}: device {RUN.device!r} needs a GPU limit: add --resources gpu=1 (a --resources option "
            "replaces the one in profiles/default/config.yaml)"
        )


def model_files(model: ModelSpec) -> list[str]:
    """Files of a local checkpoint, so that new weights make new records; none for a hub id, whose revision counts."""
    folder = Path(model.path)
    files = (
        path for path in folder.glob("*") if path.suffix in (".safetensors", ".json")
    )
    return sorted(map(str, files))


def method_files(label: str, model: str) -> list[str]:
    """Files that a label's parameters name, such as head roles: what makes them is run first."""
    return sorted(map(str, RUN.methods[label].files_of(model)))


def suite_settings(model: str, suite: str) -> str:
    """Return all settings that the records of a model and suite depend on, and no others."""
    methods = {label: RUN.methods[label] for label in SUITE_LABELS[suite]}
    settings = {
        "data": RUN.data,
        "device": RUN.device,
        "dtype": RUN.dtype,
        "methods": {
            label: [
                method.method,
                method.params_of(model),
                [budget.text for budget in RUN.budgets_of(label)],
            ]
            for label, method in methods.items()
        },
        "model": [RUN.models[model].path, RUN.models[model].revision],
        "seed": RUN.seed,
        "suite": config["suites"][suite],
    }
    return json.dumps(settings, sort_keys=True, default=str)


def suite_code(suite: str) -> str:
    """Hash the code that can change a score of a suite under any of its labels."""
    tasks = {type(get_task(name)).__module__ for name in RUN.suites[suite].tasks}
    methods = {RUN.methods[label].method for label in SUITE_LABELS[suite]}
    return hash_texts(
        quality_code_hash(method, task)
        for method in sorted(methods)
        for task in sorted(tasks)
    )


def speed_code(job: str) -> str:
    """Hash the code that can change a time of a throughput job."""
    if job == KERNELS_JOB:
        return speed_code_hash("kernels", ())
    labels = {"full", *RUN.throughput.decode[job].methods}
    methods = {RUN.methods[label].method for label in labels if label in RUN.methods}
    return speed_code_hash("decode", methods | {"full"})


def folder_hash(*folders: str) -> str:
    """Hash of the files in these folders of the project that can change what a rule writes."""
    files = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    return hash_files((path for path in files if "__pycache__" not in path.parts), ROOT)


def evaluate_threads() -> tuple[int, int]:
    """Threads that a job asks of Snakemake and threads that torch gets, so that jobs fill the machine once.

    ``--cores 8`` on two processors runs two jobs of four declared threads, each with one torch thread.
    """
    processors = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
    cores = workflow.cores or processors
    threads = max(1, cores // processors)
    return threads, max(1, threads * processors // cores)


def speed_files(job: str) -> list[str]:
    """Files of the checkpoint that a throughput job times, and of its methods; none of the former for random weights."""
    weights = model_files(RUN.models[job]) if job in RUN.models else []
    labels = RUN.throughput.decode[job].methods if job in RUN.throughput.decode else ()
    timed = (label for label in labels if label in RUN.methods)
    return weights + sorted(
        {file for label in timed for file in method_files(label, job)}
    )


def speed_settings(job: str) -> str:
    """All settings that a throughput job's records depend on, and no others."""
    below = config["throughput"]
    timed = below.get("kernels") if job == "kernels" else below["decode"][job]
    labels = () if job == "kernels" else RUN.throughput.decode[job].methods
    methods = {
        label: [spec.method, spec.params_of(job)]
        for label, spec in RUN.methods.items()
        if label in labels
    }
    settings = {
        "device": RUN.device,
        "dtype": RUN.dtype,
        "job": timed,
        "methods": methods,
        "seed": RUN.seed,
    }
    return json.dumps(settings, sort_keys=True, default=str)


def speed_threads() -> tuple[int, int]:
    """Threads that a throughput job asks for, and torch's.

    On a CPU it asks for all, as jobs side by side would slow each other, and computes with all but one: threads that wait
    for each other lose tenfold where anything else needs their processor.
    """
    if GPUS:
        return THREADS, TORCH_THREADS
    processors = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
    return workflow.cores or processors, max(1, processors - 1)


if not workflow.configfiles:

    configfile: str(config_path(config.get("profile", "demo")))


update_config(config, retyped(dict(workflow.config_settings.config)))
RUN = checked(config, config_source())
GPUS = int(wants_gpu(RUN.device))
if GPUS:
    require_gpu_limit()

THREADS, TORCH_THREADS = evaluate_threads()
RESULTS = f"results/{RUN.profile}"
REPORT = f"reports/{RUN.profile}"
SUITE_LABELS = {
    suite: labels
    for suite in RUN.suites
    if (labels := [label for label in RUN.methods if suite in RUN.suites_of(label)])
}
RECORDS = [
    f"{RESULTS}/records/{model}/{label}/{suite}.parquet"
    for model in RUN.models
    for suite, labels in SUITE_LABELS.items()
    for label in labels
]

SPEED_JOBS = RUN.throughput.jobs if RUN.throughput else ()
SPEED_RECORDS = [f"{RESULTS}/speed/{job}.parquet" for job in SPEED_JOBS]
SPEED_NAMES = (
    "speed",
    "growth",
    "breakeven",
    "breakdown",
    "correction",
    "over_baselines",
)
SPEED_TABLES = [f"{RESULTS}/{name}.csv" for name in SPEED_NAMES] if SPEED_JOBS else []
SPEED_THREADS = speed_threads()


wildcard_constraints:
    job="|".join(map(re.escape, SPEED_JOBS)) or "none",
    model="|".join(map(re.escape, RUN.models)),
