"""Measure one throughput job: lease a device, wait until it is at rest, time every open cell, write the records.

``python -m longdecode.analysis.speed`` does it by hand, all cells or some, without Snakemake.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from math import nan
from pathlib import Path
from statistics import median

from longdecode.engine.device import lease_gpu, resolve_device
from longdecode.engine.errors import refuse_unknown
from longdecode.evals.gate import Gate, gate_folder
from longdecode.evals.manifest import seal
from longdecode.evals.records import SpeedRecord
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import results_root
from longdecode.evals.throughput.decode import DecodeBench
from longdecode.evals.throughput.equal_memory import EqualMemoryBench, OwnChoicesBench
from longdecode.evals.throughput.harness import Bench, SpeedCell, SpeedStore
from longdecode.evals.throughput.kernels import KernelBench
from longdecode.evals.throughput.spec import EQUAL_MEMORY, KERNELS, OWN_CHOICES, jobs_of

_BENCHES = {KERNELS: KernelBench, EQUAL_MEMORY: EqualMemoryBench, OWN_CHOICES: OwnChoicesBench}
Choose = Callable[[SpeedCell], bool]


def measure_speed(run: RunConfig, name: str, output: Path, *, choose: Choose = lambda cell: True) -> list[SpeedRecord]:
    """Time a job's cells and write all its records to ``output``.

    Args:
        name: one of the run's ``jobs_of``.
        output: the parquet file; the journal's place follows from it.
        choose: which cells to run now; all of them when left out. Cells that the journal already has stay as they are.

    Returns:
        The records made now.

    Raises:
        ConfigError: the configuration asks for no throughput tests, or has no such job.
        DeviceBusyError: the device did not come to rest.
        LockHeldError: another process runs this job.
    """
    refuse_unknown(f"{run.source}: throughput", "job", [name], jobs_of(run.throughput))
    with lease_gpu(resolve_device(run.device), alone=True) as device:
        bench: Bench = _BENCHES.get(name, DecodeBench)(run, name, device)
        cells = list({cell.key: cell for cell in bench.cells()}.values())
        with SpeedStore(output, SpeedRecord, cells, lambda cell: bench.origin(cell).fingerprint) as store:
            started, todo = time.monotonic(), list(filter(choose, store.open(cells)))
            fresh: list[SpeedRecord] = []
            print(f"{name}: {len(todo)} of {len(cells)} cells to time", file=sys.stderr, flush=True)
            if todo:
                # What is loaded by now stays; collecting it over and over between cells would take longer than timing.
                gc.collect()
                gc.freeze()
                bench.guard.wait(idle=True)
                for record in bench.time(todo, store, Gate(run, device, gate_folder(output))):
                    _tell(record)
                    fresh.append(record)
            store.finish()
            seal(results_root(output), [output])
            print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
            return fresh


def _tell(record: SpeedRecord) -> None:
    """Describe a record in one line of the log: its cell, and its median or its status."""
    where = " ".join(str(part) for part in record.key if part is not None)
    found, times, taken = f"{record.status}: {record.reason}", [s.us for s in record.clean], len(record.samples)
    if record.status == "ok":
        found = f"{median(times or [nan]):,.1f} us ({taken - len(times)} of {taken} disturbed)"
    print(f"{where}: {found}", file=sys.stderr, flush=True)
