"""Stages of a run: each rule of the workflow calls the stage of its name, in a process of its own."""

from __future__ import annotations

import io
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from longdecode.evals.run_config import RunConfig

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CALLS: Mapping[str, tuple[str, str, str | None, int]] = {
    "throughput": ("evals.throughput.measure", "measure_speed", "job", 0),
    "retrospection": ("evals.retrospection", "measure_retrospection", "model", 0),
    "write_texts": ("evals.generation.job", "write_texts", "writing", 0),
    "tune_model": ("evals.tuning", "tune", "model", 0),
    "train_roles": ("training.roles.train", "run_planned", "role_run", 1),
    "train_fork": ("training.forks.train", "run_planned", "fork", 2),
    "train_heads": ("training.draft_heads.train", "run_planned", "model", 3),
    "overlap": ("training.roles.overlap", "measure_overlap", None, 0),
    "nosa_locality": ("training.forks.locality", "measure_locality", None, 0),
}
"""Stages that are one call of a function with the run, a wildcard's value if one is named, and the first output.

Of a stage that writes a folder, the number says how many levels above the first output it is.
"""
EVALUATE = "evaluate"
"""Rules of this stage are named ``evaluate_<suite>``."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job of Snakemake: the object that its scripts get, with typed paths and the run as the job has it."""

    rule: Any

    @property
    def outputs(self) -> list[Path]:
        """The files that the job writes."""
        return [Path(name) for name in self.rule.output]

    @property
    def inputs(self) -> list[Path]:
        """The files that the job reads."""
        return [Path(name) for name in self.rule.input]

    def named(self, wildcard: str) -> Any:
        """Return the value of a wildcard, ``None`` where the rule does not have it."""
        return self.rule.wildcards.get(wildcard)

    @property
    def run(self) -> RunConfig:
        """The configuration, whose ``auto`` device is the one that the job asked for."""
        from longdecode.evals.run_config import build_run_config, granted

        run = build_run_config(self.rule.config, "configuration", check_params=False)
        return granted(run, self.rule.resources.get("gpu", 0))


def call(job: Job) -> None:
    """Run a stage of ``CALLS``; a killed one goes on at its next record or state."""
    module, function, wildcard, level = CALLS[job.rule.rule]
    act = getattr(import_module(f"longdecode.{module}"), function)
    output = (job.outputs[0], *job.outputs[0].parents)[level]
    _waiting(lambda: act(job.run, *([job.named(wildcard)] if wildcard else []), output))


def gate(job: Job) -> None:
    """Check each variant's method and its launches and write the outcomes, whatever they are; say what is refused."""
    from longdecode.engine.device import lease_gpu, resolve_device
    from longdecode.evals.gate import Gate

    run = job.run
    with lease_gpu(resolve_device(run.device)) as device:
        opened = Gate(run, device, job.outputs[0].parent)
        for path in job.outputs:
            for outcome in opened.run(path.stem).verdicts:
                if outcome.refusal is not None:
                    print(f"{path.stem} on {outcome.model} ({outcome.status}), no cells: {outcome.refusal}")


def evaluate(job: Job) -> None:
    """Score a suite on one model with all its variants; a killed job goes on at its next batch."""
    from longdecode.evals.evaluate import evaluate_suite
    from longdecode.evals.fingerprint import narrowed

    outputs = dict(zip(job.rule.params.variants, job.outputs, strict=True))
    suite, context = job.rule.params.suite, job.named("context")
    run = narrowed(job.run, suite, int(context) if context else None)
    _waiting(lambda: evaluate_suite(run, job.named("model"), suite, outputs))


def built_model(job: Job) -> None:
    """Build a model from its GGUF file, with the adaptor that the rule names merged."""
    from longdecode.models.build import build
    from longdecode.models.sources import MODELS

    model = MODELS[job.named("built")]
    build(model, job.outputs[0].parent, adaptor=job.inputs[0].parent if model.adaptor else None)


def miniature_train(job: Job) -> None:
    """Train the miniature; a killed run goes on from its last checkpoint."""
    from longdecode.training.miniature.train import run

    # On a CPU it would take days.
    run(job.outputs[0].parents[1], str(job.run.data.get("pg19") or "emozilla/pg19"), "cuda")


def smollm2_train(job: Job) -> None:
    """Train the long-context adaptor; a killed run goes on from its last checkpoint."""
    from longdecode.training.long_context.train import run_planned

    run_planned(job.run, job.inputs[0].parent, job.outputs[0].parents[1])


def tables(job: Job) -> None:
    """Write the configuration as it was run, then every table from the records, then the instrument's checks."""
    import yaml

    from longdecode.analysis.stage import write_tables
    from longdecode.evals import manifest
    from longdecode.evals.instrument import check_instrument
    from longdecode.evals.run_config import load_run_config
    from longdecode.evals.store import kept_path, write_text

    rule, config = job.rule, Path(job.rule.output.config)
    write_text(config, yaml.safe_dump(json.loads(rule.params.config), sort_keys=False))
    manifest.seal(config.parent, [config])
    write_tables(config.parent)
    for path in job.inputs:
        kept_path(path).unlink(missing_ok=True)
    run = load_run_config(config, check_params=False)  # it was checked before its jobs ran
    check_instrument(run, config.parent / "records", Path(rule.output.instrument))


def report(job: Job) -> None:
    """Build the pages from what was written, all of it unchanged; end the run where an instrument check failed."""
    from longdecode.engine.disk import writing
    from longdecode.reporting.build import build_checked

    with writing(job.outputs[0].parent):
        build_checked(Path(job.rule.input.config).parent, job.outputs[0].parent, job.inputs)


STAGES = {s.__name__: s for s in (gate, evaluate, built_model, miniature_train, smollm2_train, tables, report)}
"""Stages by the names of their rules."""


def run_stage(rule: Any) -> None:
    """Run the stage of a rule, with its threads and its log, and enter what it wrote in the run's manifest.

    Args:
        rule: the object that Snakemake gives to a script.

    Raises:
        SystemExit: the stage failed; the reason stands in the log and on standard error.
    """
    # Before torch is imported.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(rule.resources.get("torch_threads", rule.threads))))
    name = EVALUATE if rule.rule.startswith(f"{EVALUATE}_") else rule.rule
    with logged(Path(rule.log[0])):
        from longdecode.engine.disk import writing

        with writing(begun := Path(rule.log[0]).with_suffix(".begun")):
            begun.write_text("\n".join(path for path in rule.output if "/records/" in path), encoding="utf-8")
        STAGES.get(name, call)(Job(rule))
        _seal(rule)
        begun.unlink(missing_ok=True)  # a job that outlived its workflow shared the note and has removed it


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Show and keep what is printed; our own errors are said without a traceback.

    Raises:
        SystemExit: the body failed.
    """
    with _opened(path) as kept, redirect_stdout(_Tee(sys.stdout, kept)), redirect_stderr(_Tee(sys.stderr, kept)):
        from longdecode.engine.errors import LongDecodeError

        try:
            yield
        except Exception as error:
            ours = isinstance(error, LongDecodeError)
            print(f"{type(error).__name__}: {error}" if ours else traceback.format_exc(), file=sys.stderr)
            raise SystemExit(1) from None


class _Tee:
    """A text stream that writes to two."""

    def __init__(self, shown: TextIO, kept: TextIO):
        self.shown, self.kept = shown, kept

    def write(self, text: str) -> int:
        with suppress(OSError):  # a full disk must not hide the error that says so
            self.kept.write(text)
        return self.shown.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.kept.flush()
        self.shown.flush()

    def isatty(self) -> bool:
        return False


def _opened(log: Path) -> TextIO:
    """Open a job's log; where the disk refuses, say so and go on without one."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("w", encoding="utf-8", buffering=1)
    except OSError as error:
        print(f"{log} could not be written: {error.strerror}", file=sys.stderr)
        return io.StringIO()


def _waiting(work: Callable[[], object]) -> object:
    """Do a job's work once no other process fills its outputs.

    A job may outlive a workflow that was killed; what it writes is taken over when it ends.
    """
    from longdecode.engine.disk import LockHeldError

    said = False
    while True:
        try:
            return work()
        except LockHeldError as error:
            if not said:
                print(f"{error}; waiting for it to end", file=sys.stderr)
            said = True
            time.sleep(1)


def _seal(rule: Any) -> None:
    """Enter the evidence that a job wrote in its run's manifest; a training wrote all that its folders hold."""
    from longdecode.evals import manifest

    root, outputs = Path("results") / rule.config["profile"], {*map(Path, rule.output)}
    if rule.rule in CALLS and CALLS[rule.rule][3]:
        outputs.update(path for folder in {path.parent for path in outputs} for path in manifest.evidence(folder))
    if written := [path for path in outputs if path.suffix in manifest.SUFFIXES and root in path.parents]:
        manifest.seal(root, written)
