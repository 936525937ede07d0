"""One throughput job: the run, its device and clock, the guard, and how a record is put together."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

import torch

from longdecode.engine.device import NvmlMonitor, device_name, resolve_dtype
from longdecode.engine.errors import MonitorError
from longdecode.evals import provenance
from longdecode.evals.failures import status_of
from longdecode.evals.fingerprint import file_hashes, hash_settings, hash_texts, speed_code_hash
from longdecode.evals.records import Provenance, SpeedRecord, SpeedSample, Status, Weights
from longdecode.evals.run_config import RunConfig
from longdecode.evals.throughput.cells import SpeedCell
from longdecode.evals.throughput.equal_memory_spec import JOB as EQUAL_MEMORY_JOB
from longdecode.evals.throughput.guard import Guard
from longdecode.evals.throughput.models import model_hash
from longdecode.evals.throughput.spec import KERNELS_JOB, ThroughputSpec
from longdecode.evals.throughput.timing import Block, Clock, clock_for, time_pair

REFERENCE = "full"


class SpeedJob:
    """Everything that is fixed while a job's cells are timed.

    Args:
        run: the configuration.
        name: a model of its ``throughput.decode``, ``kernels`` or ``equal_memory``.
        device: the device leased for this job.
        keep_going: see ``measure_speed``.
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
        self.model_hash = "none" if name == KERNELS_JOB else model_hash(run, spec.model_of(name))
        self._origins: dict[tuple[str, str], Provenance] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that all cells share; code and methods are in each record's provenance."""
        below = self.spec.part(self.name)
        timed = [below.rounds, getattr(below, "steps", None), getattr(below, "shape", None)]
        shared = {"profile": self.run.profile, "job": self.name, "seed": self.run.seed, "timed": timed}
        return shared | {"torch": provenance.versions()["torch"]}

    def origin(self, cell: SpeedCell) -> Provenance:
        """Collect the provenance of a cell: its code hash covers what times it and the two methods of its pairs."""
        where = (cell.subject, cell.label)
        if where not in self._origins:
            kernels = self.name == KERNELS_JOB
            spec = None if kernels else self.run.methods.get(cell.label)
            module = self.name if self.name in (KERNELS_JOB, EQUAL_MEMORY_JOB) else "decode"
            self._origins[where] = provenance.collect(
                settings={},
                code=speed_code_hash(module, () if kernels else (REFERENCE, cell.subject)),
                model=self.model_hash,
                data=hash_texts(file_hashes(spec.files_of(self.spec.model_of(self.name)))) if spec else "none",
                device=self.device,
                dtype=self.dtype,
            )
        return self.of_cell(self._origins[where], cell)

    def of_cell(self, origin: Provenance, cell: SpeedCell) -> Provenance:
        """Return the provenance of one cell from that of all cells of its method."""
        settings = self.settings | {"cell": cell.key, "params": dict(cell.params)}
        return origin.model_copy(
            update={"settings_hash": hash_settings(settings, device_name(self.device), str(self.dtype))}
        )

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
            model=self.spec.model_of(self.name),
            weights=weights,
            method=cell.subject,
            variant=cell.label,
            params=dict(cell.params),
            stage=cell.stage,
            context=cell.context,
            batch=cell.batch,
            budget=cell.budget.text,
            budget_tokens=cell.budget_tokens,
            seed=self.run.seed,
            provenance=self.origin(cell),
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
