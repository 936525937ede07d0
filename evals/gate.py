"""The gate: a variant's conformance on a device, checked before its jobs and kept in a file that they read.

Its first part runs the conformance suite on a tiny model, its second the kernels of the run's own launches. What bars a
cell otherwise, such as too little memory, has its status here too.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import ValidationError

from longdecode.engine import errors
from longdecode.engine.device import device_name, resolve_dtype
from longdecode.evals import provenance
from longdecode.evals.fingerprint import gate_code_hash
from longdecode.evals.manifest import seal
from longdecode.evals.records import Status, Stored
from longdecode.evals.run_config import Launches, RunConfig, budget_at, launches_of
from longdecode.evals.store import results_root, write_text

T = TypeVar("T")
_REFUSALS = {"failed_gate": errors.GateError, "unsupported": errors.UnsupportedCellError}


class GateOutcome(Stored):
    """Outcome for one set of parameters on one model; ``checked`` names launches (tokens x rows at a budget)."""

    model: str
    params: dict[str, Any]
    status: Literal["passed", "failed_gate", "unsupported"] = "passed"
    message: str = ""
    checked: tuple[str, ...] = ()

    @property
    def refusal(self) -> Exception | None:
        """The error that bars the variant on this model from a table."""
        return _REFUSALS[self.status](self.message) if self.status in _REFUSALS else None


class GateFile(Stored):
    """The verdicts on a variant, one a model, and what they hold for."""

    method: str
    device: str
    code_hash: str
    revision: str
    dirty: bool
    versions: dict[str, str]
    verdicts: tuple[GateOutcome, ...]


class Gate:
    """The gate of a run on a device.

    Args:
        config: the run.
        device: where conformance is checked.
        folder: of the gate files.
    """

    def __init__(self, config: RunConfig, device: torch.device, folder: Path):
        self.config, self.device, self.folder = config, device, folder
        self._known: dict[str, GateOutcome] = {}

    def run(self, variant: str) -> GateFile:
        """Check a variant on every model that it runs on, and write the file; what was checked is not checked twice."""
        method, verdicts = self.config.methods[variant].method, list[GateOutcome]()
        for launches in launches_of(self.config, variant):
            conforms = self._once(f"{method} {launches.params}", self._conformance, method, launches)
            if conforms.status == "passed":
                conforms = self._once(f"{method} {launches}", self._launches, method, launches)
            verdicts.append(conforms.model_copy(update={"model": launches.model}))
        origin = provenance.origin(self.device)
        file = GateFile(method=method, code_hash=gate_code_hash(method), verdicts=tuple(verdicts), **origin)
        path = self.folder / f"{variant}.json"
        write_text(path, file.model_dump_json(indent=1) + "\n")
        seal(self.folder.parent, [path])
        return file

    def refusal(self, variant: str, model: str) -> Exception | None:
        """Return the error that bars a variant from the cells of a model: of its file, or of a check made now.

        A file that is missing, or holds for another device or other code, is written anew.
        """
        params = self.config.methods[variant].portable(model)
        for read in (self._read, self.run):
            for outcome in file.verdicts if (file := read(variant)) else ():
                if (outcome.model, outcome.params) == (model, params):
                    return outcome.refusal
        return errors.GateError(f"{variant} is neither scored nor timed on {model}: its gate has no outcome")

    def _read(self, variant: str) -> GateFile | None:
        """Return a variant's file where it holds for this device and code."""
        try:
            file = GateFile.model_validate_json((self.folder / f"{variant}.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValidationError):
            return None
        today = (device_name(self.device), gate_code_hash(file.method))
        return file if (file.device, file.code_hash) == today else None

    def _conformance(self, method: str, launches: Launches) -> GateOutcome:
        passed = GateOutcome(model=launches.model, params=dict(launches.params))
        try:
            check_method(method, self.device, passed.params)
        except (errors.GateError, errors.UnsupportedCellError) as error:
            return passed.model_copy(update={"status": status_of(error), "message": str(error)})
        return passed

    def _once(self, key: str, check: Callable[..., GateOutcome], *given: Any) -> GateOutcome:
        if key not in self._known:
            self._known[key] = check(*given)
        return self._known[key]

    def _launches(self, method: str, launches: Launches) -> GateOutcome:
        """Return the outcome on the launches of what conforms: passed where a model or the memory is not there."""
        from longdecode.evals.throughput.harness import config_of
        from longdecode.methods.conformance_launches import check_launches, launch_sizes

        dtype, checked = resolve_dtype(self.config.dtype, self.device), list[str]()
        problem: Exception | None = None
        try:
            shape = config_of(self.config, launches.model, launches.context)
            for place in launch_sizes(launches.context, launches.batch, shape, self.device, dtype):
                budget = budget_at(launches, place.context)
                check_launches(method, shape, launches.params, budget, place, self.device, dtype, seed=self.config.seed)
                checked.append(f"{place.context} tokens x {place.batch}" + (f", budget {budget}" if budget else ""))
        except torch.AcceleratorError:  # as of an illegal access: nothing more runs here
            raise
        except Exception as error:  # whatever a kernel raises at such a size fails it
            problem = error
        free_memory(self.device, problem)
        outcome = GateOutcome(model=launches.model, params=dict(launches.params), checked=tuple(checked))
        if problem is None:
            return outcome
        absent = isinstance(problem, errors.LongDecodeError) and not isinstance(problem, errors.GateError)
        status = "passed" if absent or status_of(problem) == "oom" else "failed_gate"
        message = f"on {launches.model}: {type(problem).__name__}: {problem}"
        return outcome.model_copy(update={"status": status, "message": message})


def check_method(method: str, device: torch.device, params: dict[str, Any]) -> None:
    """Run the conformance suite, which a job that finds a file has no use for."""
    from longdecode.methods import conformance

    conformance.check_method(method, device, params)


def gate_folder(output: Path) -> Path:
    """Return the folder of gate files, given the file of a job."""
    return results_root(output) / "gate"


def status_of(error: Exception) -> Status | None:
    """Return the status an error gives its cell, or ``None`` for an error that is no cell's own."""
    on_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    if on_cpu or isinstance(error, errors.DeviceMemoryError | torch.cuda.OutOfMemoryError | MemoryError):
        return "oom"
    if isinstance(error, errors.UnsupportedCellError):
        return "unsupported"
    # A damaged checkpoint ends its own cells, not the run.
    if isinstance(error, errors.GateError | errors.CheckpointError):
        return "failed_gate"
    return "data_unavailable" if isinstance(error, errors.DataUnavailableError) else None


def attempt(work: Callable[[], T], device: torch.device) -> tuple[T | None, Status | None, str]:
    """Return what work makes, or ``None`` with the status and the reason that its error gives a cell.

    The memory that it took is free by then. An error that is no cell's own goes on.
    """
    failure: Exception
    try:
        return work(), None, ""
    except Exception as error:
        failure = error
    # Outside the handler nothing but the error itself refers to the frames that hold its tensors.
    if (status := status_of(failure)) is None:
        raise failure
    free_memory(device, failure)
    return None, status, str(failure)


def free_memory(device: torch.device, error: BaseException | None = None) -> None:
    """Give back what nothing refers to any more, an error's frames included; call it outside the ``except`` block."""
    if error is not None:
        error.__traceback__ = error.__cause__ = error.__context__ = None
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
