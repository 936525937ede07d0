"""Measure one throughput job: lease a device, wait until it is at rest, time every open cell, write the records."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from longdecode.engine.device import resolve_device
from longdecode.engine.errors import ConfigError
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.evals.gate import Gate, gate_folder
from longdecode.evals.manifest import seal
from longdecode.evals.names import unknown_name
from longdecode.evals.records import SpeedRecord
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import results_root
from longdecode.evals.throughput.decode import DecodeBench
from longdecode.evals.throughput.equal_memory import EqualMemoryBench
from longdecode.evals.throughput.harness import Bench, SpeedCell, SpeedStore
from longdecode.evals.throughput.kernels import KernelBench
from longdecode.evals.throughput.own_choices import OwnChoicesBench
from longdecode.evals.throughput.spec import EQUAL_MEMORY, KERNELS, OWN_CHOICES
from longdecode.evals.throughput.statistics import good_times, median

_BENCHES = {KERNELS: KernelBench, EQUAL_MEMORY: EqualMemoryBench, OWN_CHOICES: OwnChoicesBench}
Choose = Callable[[SpeedCell], bool]


def measure_speed(
    run: RunConfig, name: str, output: Path, *, choose: Choose = lambda cell: True, leased: bool = False
) -> list[SpeedRecord]:
    """Time a job's cells and write all its records to ``output``.

    Args:
        name: one of ``run.throughput.jobs``.
        output: the parquet file; the journal's place follows from it.
        choose: which cells to run now; all of them when left out. Cells that the journal already has stay as they are.
        leased: the caller holds the GPU's lease.

    Returns:
        The records made now.

    Raises:
        ConfigError: the configuration asks for no throughput tests, or has no such job.
        DeviceBusyError: the device did not come to rest.
        LockHeldError: another process runs this job.
    """
    if run.throughput is None:
        raise ConfigError(f"{run.source}: no throughput tests are configured (key 'throughput')")
    if name not in run.throughput.jobs:
        raise ConfigError(f"{run.source}: throughput: {unknown_name('job', name, run.throughput.jobs)}")
    device = resolve_device(run.device)
    if device.type == "cuda" and leased:
        device = torch.device("cuda", device.index or 0)
    lease: AbstractContextManager[torch.device] = nullcontext(device) if leased else lease_gpu(device, alone=True)
    with lease as leased_device, _current(leased_device):
        bench: Bench = _BENCHES.get(name, DecodeBench)(run, name, leased_device)
        cells = list({cell.key: cell for cell in bench.cells()}.values())
        with SpeedStore(
            output,
            SpeedRecord,
            cells,
            lambda cell: bench.origin(cell).fingerprint,
            wanted=filter(choose, cells),
            on_add=lambda record: print(told(record), file=sys.stderr, flush=True),
        ) as store:
            started, todo = time.monotonic(), store.open(cells)
            print(f"{name}: {len(todo)} of {len(cells)} cells to time", file=sys.stderr, flush=True)
            if todo:
                # What is loaded by now stays; collecting it over and over between cells would take longer than timing.
                gc.collect()
                gc.freeze()
                bench.guard.wait(idle=True)
                bench.time(store, Gate(run, leased_device, gate_folder(output)))
            store.finish()
            seal(results_root(output), [output])
            print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
            return store.fresh


def told(record: SpeedRecord) -> str:
    """Describe a record in one line for the log: its cell, and its median or its status."""
    where = " ".join(str(part) for part in record.key if part is not None)
    if record.status != "ok":
        return f"{where}: {record.status}: {record.reason}"
    times = [us for us, _ in good_times(record.samples)]
    return f"{where}: {median(times):,.1f} us ({len(record.samples) - len(times)} of {len(record.samples)} disturbed)"


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one: graphs are replayed on the current device's stream."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
