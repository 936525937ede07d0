"""What every throughput job has: the run, its device and clock, the guard, and how a record is put together."""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Literal

import torch

from longdecode.engine.device import NvmlMonitor, device_name, resolve_dtype
from longdecode.engine.errors import DeviceMemoryError, GateError, MonitorError, UnsupportedCellError
from longdecode.evals import provenance
from longdecode.evals.hashing import file_hashes, speed_code_hash
from longdecode.evals.records import Provenance, Status
from longdecode.evals.run_config import RunConfig
from longdecode.evals.throughput.guard import Guard
from longdecode.evals.throughput.ledger import SpeedCell
from longdecode.evals.throughput.models import model_hash
from longdecode.evals.throughput.records import SpeedRecord, SpeedSample
from longdecode.evals.throughput.spec import KERNELS_JOB, ThroughputSpec
from longdecode.evals.throughput.timing import Block, Clock, clock_for, time_pair

Weights = Literal["none", "random", "checkpoint"]


class SpeedJob:
    """Everything that is fixed while a job's cells are timed.

    Args:
        run: the configuration.
        name: a model of its ``throughput.decode``, or ``kernels``.
        device: the device leased for this job.
        keep_going: see ``run_speed_job``.
    """

    def __init__(self, run: RunConfig, spec: ThroughputSpec, name: str, device: torch.device, keep_going: bool = False):
        self.run = run
        self.keep_going = keep_going
        self.spec = spec
        self.name = name
        self.device = device
        self.dtype = resolve_dtype(run.dtype, device)
        self.clock: Clock = clock_for(device)
        self.guard = make_guard(device)
        self.model_hash = "none" if name == KERNELS_JOB else model_hash(run, name)
        self.code_hash = speed_code_hash()
        self._origin: Provenance | None = None

    @property
    def fingerprint(self) -> str:
        """Hash of all that determines the numbers, other than which cells are run."""
        below = self.spec.kernels if self.name == KERNELS_JOB else self.spec.decode[self.name]
        timed = [below.rounds, getattr(below, "steps", None), getattr(below, "shape", None)]
        methods = {
            label: [spec.method, spec.params_of(self.name), file_hashes(spec.files_of(self.name))]
            for label, spec in self.run.methods.items()
            if label in getattr(below, "methods", ())
        }
        parts = [
            self.run.profile, self.name, self.model_hash, methods, self.run.seed, timed, device_name(self.device),
            str(self.dtype), self.code_hash, provenance.versions()["torch"],
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()

    @property
    def origin(self) -> Provenance:
        """Where this job's numbers come from."""
        if self._origin is None:
            self._origin = provenance.collect(
                code=self.code_hash, model=self.model_hash, data="none", device=self.device, dtype=self.dtype
            )
        return self._origin

    def time(self, subject: Block, reference: Block | None, rounds: int) -> list[SpeedSample]:
        """Rounds of A B B A under this job's guard."""
        return time_pair(subject, reference, rounds=rounds, clock=self.clock, guard=self.guard)

    def timed(
        self, cell: SpeedCell, weights: Weights, samples: Sequence[SpeedSample], reference: str | None, **values: Any
    ) -> SpeedRecord:
        """The record of a cell just timed; what the guard saw goes with it."""
        seen = self.guard.summary()
        return self._record(
            cell, weights, status="ok", samples=list(samples), reference=reference, sm_clock_mhz=seen.sm_clock_mhz,
            temperature_c=seen.temperature_c, throttle=seen.throttle, **values,
        )  # fmt: skip

    def closed(self, cell: SpeedCell, weights: Weights, status: Status, reason: str) -> SpeedRecord:
        """The record of a cell that could not be timed."""
        return self._record(cell, weights, status=status, reason=reason)

    def status_or_raise(self, error: Exception) -> Status | None:
        """The status that an error gives its cells; ``None`` for another error where the job keeps going.

        Raises:
            Exception: the error itself, where it is no cell's own and the job does not keep going.
        """
        status = status_of(error)
        if status is None:
            if not self.keep_going:
                raise error
            traceback.print_exception(error)
        return status

    def _record(self, cell: SpeedCell, weights: Weights, **values: Any) -> SpeedRecord:
        return SpeedRecord(
            profile=self.run.profile,
            bench=cell.bench,
            model=self.spec.kernels.shape if cell.bench != "decode" else self.name,
            weights=weights,
            subject=cell.subject,
            label=cell.label,
            params=dict(cell.params),
            stage=cell.stage,
            context=cell.context,
            batch=cell.batch,
            budget=cell.budget.text,
            budget_tokens=cell.budget_tokens,
            seed=self.run.seed,
            provenance=self.origin,
            **values,
        )


def make_guard(device: torch.device) -> Guard:
    """The guard of a device; on CUDA without NVML it watches nothing, says so, and every record says so too."""
    if device.type != "cuda":
        return Guard(None)
    try:
        return Guard(NvmlMonitor(device))
    except MonitorError as error:
        print(f"{device}: clocks and other processes are not watched: {error}", file=sys.stderr)
        return Guard(None, str(error))


def status_of(error: Exception) -> Status | None:
    """The status an error gives its cell, or ``None`` for errors that are no cell's own."""
    if isinstance(error, DeviceMemoryError | torch.cuda.OutOfMemoryError | MemoryError):
        return "oom"
    if isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error):
        return "oom"
    if isinstance(error, UnsupportedCellError):
        return "unsupported"
    return "failed_gate" if isinstance(error, GateError) else None


def free_memory(device: torch.device, error: BaseException | None = None) -> None:
    """Give back what nothing refers to any more, an error's frames included."""
    if error is not None:
        error.__traceback__ = error.__cause__ = error.__context__ = None
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
