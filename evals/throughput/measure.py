"""Measure one throughput job: lease a device, wait until it is at rest, time every open cell, write the records."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from longdecode.engine.device import resolve_device
from longdecode.engine.errors import CheckpointError, ConfigError, DeviceMemoryError
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.evals.gate import Gate, gate_folder
from longdecode.evals.manifest import seal
from longdecode.evals.names import unknown_name
from longdecode.evals.records import SpeedRecord
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import results_root
from longdecode.evals.throughput.cells import SpeedCell, SpeedStore, told
from longdecode.evals.throughput.equal_memory_spec import JOB as EQUAL_MEMORY_JOB
from longdecode.evals.throughput.own_choices_spec import JOB as OWN_CHOICES_JOB
from longdecode.evals.throughput.spec import KERNELS_JOB, ThroughputSpec
from longdecode.evals.throughput.speed_job import SpeedJob

Choose = Callable[[SpeedCell], bool]


def measure_speed(
    run: RunConfig,
    name: str,
    output: Path,
    *,
    choose: Choose | None = None,
    leased: bool = False,
    keep_going: bool = False,
) -> list[SpeedRecord]:
    """Time a job's cells and write all its records to ``output``.

    Args:
        name: ``kernels``, ``equal_memory``, ``own_choices``, or a model of the configuration's ``throughput.decode``.
        output: the parquet file; the journal's place follows from it.
        choose: which cells to run now; all of them when left out. Cells that the journal already has stay as they are.
        leased: the caller holds the GPU's lease.
        keep_going: print an error that no status stands for and go on, its cell left without a record.

    Returns:
        The records made now.

    Raises:
        ConfigError: the configuration asks for no throughput tests, or has no such job.
        DeviceBusyError: the device did not come to rest.
        LockHeldError: another process runs this job.
    """
    spec = run.throughput
    if spec is None:
        raise ConfigError(f"{run.source}: no throughput tests are configured (key 'throughput')")
    if name not in spec.jobs:
        raise ConfigError(f"{run.source}: throughput: {unknown_name('job', name, spec.jobs)}")
    device = resolve_device(run.device)
    lease: AbstractContextManager[torch.device] = (
        nullcontext(_indexed(device)) if leased else lease_gpu(device, alone=True)
    )
    with lease as leased_device, _current(leased_device):
        job = _job(run, spec, name, leased_device, keep_going)
        cells = _cells(job, spec)
        with SpeedStore(
            output,
            SpeedRecord,
            cells,
            lambda cell: job.origin(cell).fingerprint,
            wanted=[cell for cell in cells if choose is None or choose(cell)],
            on_add=lambda record: print(told(record), file=sys.stderr, flush=True),
        ) as store:
            started = time.monotonic()
            todo = store.open(cells)
            print(f"{name}: {len(todo)} of {len(cells)} cells to time", file=sys.stderr, flush=True)
            if todo:
                # What is loaded by now stays; collecting it over and over between cells would take longer than timing.
                gc.collect()
                gc.freeze()
                job.guard.wait_until_idle()
                _time(job, spec, store, todo, Gate(run, leased_device, gate_folder(output)))
            store.finish()
            seal(results_root(output), [output])
            print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
            return store.fresh


def _job(run: RunConfig, spec: ThroughputSpec, name: str, device: torch.device, keep_going: bool) -> SpeedJob:
    if name == OWN_CHOICES_JOB:
        from longdecode.evals.throughput.own_choices import OwnChoicesJob

        return OwnChoicesJob(run, spec, name, device, keep_going)
    return SpeedJob(run, spec, name, device, keep_going)


def _cells(job: SpeedJob, spec: ThroughputSpec) -> list[SpeedCell]:
    """All cells of a job."""
    if spec.own_choices is not None and job.name == OWN_CHOICES_JOB:
        from longdecode.evals.throughput.own_choices import own_choices_cells

        return own_choices_cells(job.run, spec.own_choices, job.dtype)
    if job.name == KERNELS_JOB:
        from longdecode.evals.throughput.kernels import kernel_cells

        return kernel_cells(spec.kernels, job.device)
    from longdecode.engine.config_reader import read_config, resolve_checkpoint
    from longdecode.evals.throughput.decode_cells import Labels, decode_cells
    from longdecode.evals.throughput.models import shape_config

    if (shared := spec.equal_memory) is not None and job.name == EQUAL_MEMORY_JOB:
        from longdecode.evals.throughput.equal_memory_cells import equal_memory_cells

        return equal_memory_cells(job.run, shared, shape_config(shared.model, max(shared.contexts)), job.dtype)
    model = job.run.models.get(job.name)
    config = read_config(resolve_checkpoint(model.path, model.revision)) if model else shape_config(job.name)
    labels = Labels(job.run, job.name)
    found = [cell for part in spec.decode[job.name].by_rows() for cell in decode_cells(labels, part, config)]
    return list({cell.key: cell for cell in found}.values())


def _time(job: SpeedJob, spec: ThroughputSpec, store: SpeedStore, todo: Sequence[SpeedCell], gate: Gate) -> None:
    if job.name == OWN_CHOICES_JOB:
        from longdecode.evals.throughput.own_choices import OwnChoicesBench, OwnChoicesJob

        assert isinstance(job, OwnChoicesJob)
        OwnChoicesBench(job, store, gate).run()
        return
    if job.name == KERNELS_JOB:
        from longdecode.evals.throughput.kernels import KernelBench

        KernelBench(job, store, spec.kernels).run()
        return
    from longdecode.evals.throughput.decode import DecodeBench
    from longdecode.evals.throughput.models import load_model

    try:
        model = load_model(job.run, spec.model_of(job.name), job.device, job.dtype, max(cell.context for cell in todo))
    except (DeviceMemoryError, CheckpointError) as error:
        status = job.status_or_raise(error) or "failed_gate"
        for cell in todo:
            store.add(job.closed(cell, "random" if status == "oom" else "checkpoint", status, str(error)))
        return
    if (shared := spec.equal_memory) is not None and job.name == EQUAL_MEMORY_JOB:
        from longdecode.evals.throughput.equal_memory import EqualMemoryBench

        EqualMemoryBench(job, store, model, shared, gate).run()
        return
    DecodeBench(job, store, model, spec.decode[job.name], gate).run()


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one: graphs are replayed on the current device's stream."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _indexed(device: torch.device) -> torch.device:
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device
