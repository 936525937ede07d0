"""Plan a run's workflow: the files of its jobs, the settings and code that each depends on, and its threads."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from longdecode.engine.config_reader import built_model, prompt_files
from longdecode.engine.disk import FileLock, LockHeldError, writing
from longdecode.engine.errors import ConfigError, refuse_unknown
from longdecode.evals import fingerprint, run_config
from longdecode.evals.fairness import tuned_variants
from longdecode.evals.fingerprint import hash_texts, narrowed, quality_settings
from longdecode.evals.run_config import RunConfig
from longdecode.evals.tasks.registry import get_task
from longdecode.evals.throughput import spec as speed

HEADS = ("chained/own", "chained/books", "medusa/books")
"""Sets of draft heads that a model's training makes, by kind and by what they read: TokenSwift's, and Medusa's."""
ROLE_FILES = ("roles.json", "curve.csv", "gates.csv", "run.json")
"""Files that a training of head roles writes."""
CLUSTER_THREADS = 8
"""Threads of a job on a cluster, where the profile does not say."""


def config_path(root: Path, profile: str) -> Path:
    """Return the configuration file of a profile.

    Raises:
        ConfigError: there is no such profile; the message gives the nearest name.
    """
    profiles = [path.stem for path in (root / "config").glob("*.yaml")]
    refuse_unknown(f"--config profile={profile}", "profile", [profile], profiles)
    return root / "config" / f"{profile}.yaml"


def require_target(root: Path, target: str) -> None:
    """Refuse a target that is no rule of the workflow; one with a slash is a file, which Snakemake looks for.

    Raises:
        ConfigError: the message gives the nearest rule.
    """
    files = (root / "workflow" / "Snakefile", *(root / "workflow" / "rules").glob("*.smk"))
    rules = re.findall(r"^rule (\w+):", "\n".join(path.read_text(encoding="utf-8") for path in files), re.MULTILINE)
    refuse_unknown("--target", "target", [target] if "/" not in target else [], rules)


def checked(
    values: Any, files: Iterable[str | Path], keys: Iterable[str], check_params: bool = True,
    check_fairness: bool = True,
) -> RunConfig:  # fmt: skip
    """Check the configuration of a workflow.

    Args:
        values: files and command line merged.
        files: the configuration files, as errors name them.
        keys: keys that the command line gave.
        check_params: see ``build_run_config``; a job's own process takes for granted what the first one has checked.
        check_fairness: likewise; tuning itself does without.

    Raises:
        ConfigError: a value is wrong; the message gives file, key, value and the nearest valid name.
    """
    given = ", ".join(key for key in keys if key != "profile")
    source = ", ".join(os.path.relpath(path) for path in files) + (f" with --config {given}" if given else "")
    return run_config.build_run_config(values, source, check_params=check_params, check_fairness=check_fairness)


class Plan:
    """The jobs of a run.

    Args:
        run: the configuration.
        root: the project's folder.
        cores: what ``--cores`` gives, 1 or more; ``None`` where jobs run on a cluster.
        on_cluster: tells whether jobs run elsewhere, which is known once jobs are planned.
    """

    def __init__(
        self, run: RunConfig, root: Path, cores: int | None = None, on_cluster: Callable[[], bool] = lambda: False
    ):
        if cores is not None and cores < 1:
            raise ConfigError(f"--cores {cores}: no job could run; give 1 or more, or `all`")
        self._on_cluster = on_cluster
        self.run, self.root, self.cores = run, root, cores
        self.results, self.report = f"results/{run.profile}", f"reports/{run.profile}"
        on = {suite: [variant for variant in run.methods if suite in run.suites_of(variant)] for suite in run.suites}
        self.suite_variants = {suite: variants for suite, variants in on.items() if variants}
        self.record_files = run_config.record_files(run)
        self.records = [str(file.path(Path(self.results) / "records")) for file in self.record_files]
        self.speed_jobs = speed.jobs_of(run.throughput)
        self.speed_records = [f"{self.results}/speed/{job}.parquet" for job in self.speed_jobs]
        trained = [f"{self.results}/identification/{spec.model}/{name}" for name, spec in run.role_trainings.items()]
        self.role_files, *history = ([f"{folder}/{file}" for folder in trained] for file in ROLE_FILES)
        self.tuning_files = [f"{self.results}/tuning/{model}.json" for model in run.models]
        self.tuned_methods = tuned_variants(run) or {run_config.REFERENCE_METHOD: run_config.REFERENCE_METHOD}
        self.tuned_on = sorted(set(run.tuning.records.values()))
        self.overlap = [f"{self.results}/overlap.csv"] if run.overlap else []
        self.retrospection = [f"{self.results}/retrospection/{model}.parquet" for model in run.retrospection.models]
        self.generation = [f"{self.results}/generation/{name}.parquet" for name in run.generation.runs]
        self.forks = {name: f"{self.results}/forks/{spec.model}/{name}" for name, spec in run.fork_trainings.items()}
        self.locality = [f"{self.results}/locality.csv"] if run.locality else []
        self.declarations = sorted(str(path) for path in (root / "reporting" / "papers").glob("*.yaml"))
        self.analysis = [f"{self.results}/{name}" for name in run_config.RESULT_TABLES]
        # Committed results lack gates that were never kept.
        known = "".join(path.read_text("utf-8", "replace") for path in Path(self.results).glob("manifest.txt"))
        files = [*self.gate_files(run.methods), *sum(history, self.role_files), *self.head_files]
        self.once_made = [path for path in files if f"  {path.removeprefix(self.results)[1:]}\n" in known]

    def hold_profile(self) -> None:
        """Lock the profile for as long as this process lives: two runs of one name would mix their results.

        Raises:
            ConfigError: another run holds it; the message says who, where and since when.
            StorageError: the folder cannot be written.
        """
        folder = Path(self.results)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / ".lock")
        try:
            self._lock.acquire(" ".join(sys.argv[1:])[:200])
        except LockHeldError as error:
            ways = "wait until it ends, end it (`kill`), or give this run another name: --config profile=NAME"
            raise ConfigError(f"profile {self.run.profile!r} is being run by {error.holder}; {ways}") from None

    def reopen(self) -> None:
        """Set the records of jobs that began and did not end aside, where the next job finds them.

        Snakemake puts back the records that a failed job was to update, and takes them for the job's result.
        """
        from longdecode.evals.store import kept_path

        begun = [path.read_text(encoding="utf-8") for path in Path(self.results, "logs").rglob("*.begun")]
        for path in filter(Path.is_file, map(Path, "\n".join(begun).splitlines())):
            (kept := kept_path(path)).parent.mkdir(parents=True, exist_ok=True)
            path.unlink() if kept.exists() else path.rename(kept)

    def require_gpu_limit(self, resources: Iterable[str]) -> None:
        """Require a limit on jobs that share a GPU: without one, Snakemake starts them all at once.

        Raises:
            ConfigError: jobs use a GPU and ``gpu`` is not among the limited resources.
        """
        if self._has_gpu and "gpu" not in resources:
            raise ConfigError(
                f"{self.run.source}: device {self.run.device!r} needs a GPU limit: add --resources gpu=1 (a "
                "--resources option replaces the one in profiles/default/config.yaml)"
            )

    def gpus(self, wildcards: object = None) -> int:
        """Return how many GPUs a job asks for; on a cluster ``auto`` asks for one, whatever this machine has."""
        return int(self.run.device != "cpu" if self._on_cluster() else self._has_gpu)

    @property
    def made(self) -> list[str]:
        """Files that rules of this run make and that its configuration names, and forks that another is to train."""
        return [*self.role_files, *(f"{path}/model.safetensors" for path in sorted(self._forks)), *self.head_files]

    @cached_property
    def _forks(self) -> frozenset[str]:
        """Paths of forks: this run's, and models that another run is to train. A job that needs one says it lacks."""
        named = (spec.path for spec in self.run.models.values())
        others = {path for path in named if Path(path).match("results/*/forks/*/*/model") and not Path(path).is_dir()}
        return frozenset(others | {f"{fork}/model" for fork in self.forks.values()})

    @cached_property
    def _has_gpu(self) -> bool:
        """True where jobs run on a CUDA device; asks the system, because importing torch would take seconds."""
        hidden, device = os.getenv("CUDA_VISIBLE_DEVICES") in ("", "-1"), self.run.device
        on_auto = not hidden and any(Path(os.sep, "dev").glob("nvidia[0-9]*"))
        return on_auto if device == "auto" else device.startswith("cuda")

    @functools.cache  # noqa: B019
    def model_files(self, model: str) -> list[str]:
        """Return the files of a local checkpoint, whose change makes new records; none for a hub id or a shape.

        Of a model that the workflow builds, return the file that its rule makes.
        """
        if model not in self.run.models:
            return []
        path = self.run.models[model].path
        if built := built_model(path):
            return [str(built / "model.safetensors")]
        if path in self._forks:
            return [f"{path}/model.safetensors"]
        weights = (file for file in Path(path).glob("*") if file.suffix in (".safetensors", ".json"))
        return sorted({str(file) for file in (*weights, *prompt_files(Path(path)))})

    def method_files(self, variants: Iterable[str], model: str) -> list[str]:
        """Return the files that parameters name, such as head roles: what makes them is run first."""
        known = (self.run.methods[variant] for variant in variants if variant in self.run.methods)
        return sorted({str(path) for spec in known for path in spec.files_of(model)})

    def gate_files(self, variants: Iterable[str]) -> list[str]:
        """Return the gate files that say whether variants conform."""
        return [f"{self.results}/gate/{variant}.json" for variant in sorted({*variants} & {*self.run.methods})]

    def timed_gates(self, job: str) -> list[str]:
        """Return the gate files of the variants that a throughput job times."""
        return self.gate_files(speed.variants_of(self.run.throughput, job))

    @property
    def gate_models(self) -> list[str]:
        """Return the files of the models whose heads the gate needs to know."""
        models = {at.model for variant in self.run.methods for at in run_config.launches_of(self.run, variant)}
        return sorted({path for model in models for path in self.model_files(model)})

    def timed_files(self, job: str) -> list[str]:
        """Return the files of every model that a throughput job times, and those that its variants' parameters name."""
        grids = self.run.throughput
        models, variants = speed.models_of(grids, job), speed.variants_of(grids, job)
        return sorted({path for m in models for path in (*self.model_files(m), *self.method_files(variants, m))})

    @property
    def head_files(self) -> list[str]:
        """Draft heads of every model of the run."""
        return [f"{self.results}/heads/{model}/{made}/heads.json" for model in self.run.models for made in HEADS]

    def depends(self, stage: str, **names: Any) -> str:
        """Return all settings and the code that the files of a job depend on, and no others.

        Args:
            stage: the rule's name.
            names: the wildcards of the job.
        """
        about = {"device": self.run.device, "dtype": self.run.dtype, "seed": self.run.seed}
        return json.dumps(about | getattr(self, f"_{stage}")(**names), sort_keys=True, default=str)

    def _gate(self) -> dict[str, Any]:
        methods = {variant: spec.method for variant, spec in self.run.methods.items()}
        return {
            "methods": methods,
            "launches": {variant: repr(run_config.launches_of(self.run, variant)) for variant in methods},
            "code": {method: fingerprint.gate_code_hash(method) for method in set(methods.values())},
        }

    def _evaluate(
        self, model: str, suite: str, variant: str | None = None, context: int | None = None
    ) -> dict[str, Any]:
        run = narrowed(self.run, suite, context)
        variants = self.suite_variants[suite] if variant is None else [variant]
        return {
            "variants": {name: quality_settings(run, model, suite, name) for name in variants},
            "code": self._suite_code(suite, tuple(sorted({self.run.methods[name].method for name in variants}))),
        }

    @functools.cache  # noqa: B019
    def _suite_code(self, suite: str, methods: tuple[str, ...]) -> str:
        tasks = sorted({get_task(name, suite=suite).code_module for name in self.run.suites[suite].tasks})
        return hash_texts(fingerprint.quality_code_hash(method, task) for method in methods for task in tasks)

    def _throughput(self, job: str) -> dict[str, Any]:
        grids = speed.grids_of(self.run.throughput, job)
        timed = {name: model for grid in grids for name, model in grid.timed_on.items() if name in self.run.methods}
        methods = {name: self._methods([name], model)[name] for name, model in timed.items()}
        named = () if job == speed.KERNELS else {"full", *(method for method, _ in methods.values())}
        code = fingerprint.speed_code_hash(speed.code_module(job), named)
        return {"job": repr(grids), "methods": methods, "code": code}

    def _tune_model(self, model: str) -> dict[str, Any]:
        known = {name: variant for name, variant in self.tuned_methods.items() if variant in self.run.methods}
        methods = {name: [variant, self.run.methods[variant].own_params(model)] for name, variant in known.items()}
        spec = asdict(replace(self.run.tuning, records={}))
        return {"model": asdict(self.run.models[model]), "methods": methods, "tuning": spec}

    def _train_roles(self, role_run: str, **_: str) -> dict[str, Any]:
        return self._training(self.run.role_trainings[role_run], self.code_of("training.roles.train"))

    def _train_fork(self, fork: str, **_: str) -> dict[str, Any]:
        return self._training(self.run.fork_trainings[fork], self.code_of("training.forks.train", "methods"))

    def _training(self, run: Any, code: str) -> dict[str, Any]:
        return {"data": self.run.data, "model": asdict(self.run.models[run.model]), "run": asdict(run), "code": code}

    def _train_heads(self, model: str) -> dict[str, Any]:
        return {"data": self.run.data, "model": model, "code": self.code_of("training.draft_heads.train")}

    def _overlap(self) -> dict[str, Any]:
        return {"overlap": self.run.overlap, "code": self.run.overlap and self.code_of("training.roles.overlap")}

    def _locality(self) -> dict[str, Any]:
        code = self.run.locality and self.code_of("training.forks.locality", "methods")
        return {"locality": self.run.locality, "code": code}

    def _retrospection(self, model: str) -> dict[str, Any]:
        spec, code = self.run.retrospection, self.code_of("evals.retrospection", "methods")
        about = {"data": self.run.data, "model": asdict(self.run.models[model]), "spec": repr((spec, self.run.budgets))}
        return about | {"methods": self._methods(spec.variants, model), "code": code}

    def _write_texts(self, writing: str) -> dict[str, Any]:
        spec, run = self.run.generation, self.run.generation.runs[writing]
        about = {"data": self.run.data, "model": asdict(self.run.models[run.model]), "run": repr((run, spec.samplers))}
        code = self.code_of("evals.generation.job", "methods")
        return about | {"methods": self._methods(run.named, run.model), "code": code}

    def code_of(self, module: str, *folders: str) -> str:
        """Hash a module of the package with all that it imports, and the files in folders of what it looks up."""
        return fingerprint.code_hash([f"longdecode.{module}"], ()) + (self.folder_hash(*folders) if folders else "")

    @functools.cache  # noqa: B019
    def folder_hash(self, *folders: str) -> str:
        """Hash the code and templates in folders of the project, and the data beside them."""
        return hash_texts(fingerprint.folder_hash(self.root / folder) for folder in folders)

    @property
    def threads(self) -> tuple[int, int]:
        """Threads that a job asks of Snakemake, and that torch gets, so that jobs fill the machine once.

        ``--cores 8`` on two processors runs two jobs of four declared threads, each with one torch thread. Without
        ``--cores``, as on a cluster, this machine's processors say nothing: ``CLUSTER_THREADS``, or the profile's
        ``set-threads``.
        """
        if self.cores is None:
            return CLUSTER_THREADS, CLUSTER_THREADS
        threads = max(1, self.cores // (processors := _processors()))
        return threads, max(1, threads * processors // self.cores)

    @property
    def speed_threads(self) -> tuple[int, int]:
        """Threads that a throughput job asks for, and torch's.

        On a CPU it asks for all, as jobs side by side would slow each other, and computes with all but one: threads
        that wait for each other lose tenfold where anything else needs their processor.
        """
        return self.threads if self.gpus() or self.cores is None else (self.cores, max(1, _processors() - 1))

    def _methods(self, variants: Iterable[str], model: str) -> dict[str, Any]:
        known = {variant: self.run.methods[variant] for variant in variants if variant in self.run.methods}
        return {variant: [spec.method, spec.params_of(model)] for variant, spec in known.items()}


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
