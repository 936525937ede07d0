"""Processes of one host that share a model: a rank a GPU, and how they start, end and fail together."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from longdecode.engine.device import resolve_device
from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.engine.model_config import ModelConfig

T = TypeVar("T")

GROUP_TIMEOUT = timedelta(minutes=10)
"""Longest wait for another rank, which may still be reading its weights from a slow disk."""


class RankError(LongDecodeError):
    """A process of a tensor-parallel group failed or died; the others were ended."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One of ``world`` processes that share a model."""

    index: int
    world: int

    def part(self, count: int) -> slice:
        """Return this rank's share of ``count`` rows, heads or channels; the last shares are shorter if need be."""
        width = -(-count // self.world)
        return slice(min(self.index * width, count), min((self.index + 1) * width, count))

    def share_of(self, whole: ModelConfig) -> ModelConfig:
        """Return the config of this rank's share: its heads and feed-forward channels.

        Raises:
            ConfigError: the number of GPUs does not divide the KV heads or the feed-forward channels, or the model has
                experts.
        """
        if whole.experts is not None:
            raise ConfigError(f"gpus = {self.world}: a mixture of experts ({whole.family}) runs on one GPU")
        for count, parts in ((whole.num_kv_heads, "KV heads"), (whole.intermediate_size, "feed-forward channels")):
            if self.world < 1 or count % self.world:
                raise ConfigError(f"gpus = {self.world}: the model's {count} {parts} cannot be divided by it")
        return replace(
            whole,
            num_heads=whole.num_heads // self.world,
            num_kv_heads=whole.num_kv_heads // self.world,
            intermediate_size=whole.intermediate_size // self.world,
        )


def over_gpus(gpus: int, device: str, function: Callable[[Rank, torch.device], T]) -> list[T]:
    """Call a function in one new process a GPU, which form a group of ``torch.distributed``.

    Args:
        gpus: processes.
        device: ``auto``, ``cuda`` or ``cpu``; NCCL joins GPUs, gloo processes on a CPU.
        function: at the top level of a module, or a ``partial`` of such a one; the same work on every rank.

    Returns:
        What it returned on each rank.

    Raises:
        ConfigError: there are fewer GPUs, or ``device`` names one of them.
        RankError: a rank failed or died, with its text; the others were ended.
    """
    target = resolve_device(device)
    if target.index is not None:
        raise ConfigError(f"device {device!r} names one GPU and gpus = {gpus} asks for several; allowed: auto, cuda")
    if target.type == "cuda" and gpus > torch.cuda.device_count():
        raise ConfigError(f"gpus = {gpus}, but torch sees {torch.cuda.device_count()} CUDA devices")
    with TemporaryDirectory(prefix="longdecode-ranks-") as folder:
        ranks = mp.spawn(_run_rank, (gpus, target.type, folder, function), nprocs=gpus, join=False)
        try:
            while not ranks.join():
                pass
        except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
            # The first to fail is the cause: others then fail for want of it, and may be noticed before. One that died
            # without a word did so before all that speak of it, unless torch ended it for another's failure.
            said = min(Path(folder).glob("*.error"), key=lambda path: path.stat().st_mtime_ns, default=None)
            rank, text = (said.stem, said.read_text()) if said else (str(error.error_index), str(error))
            for index, process in enumerate(ranks.processes):
                ended = index != error.error_index and process.exitcode in (-signal.SIGTERM, -signal.SIGKILL)
                if process.exitcode and not ended and not Path(folder, f"{index}.error").exists():
                    rank, text = str(index), f"process {index} terminated with exit code {process.exitcode}"
            raise RankError(f"rank {rank} of {gpus} failed: {text.strip()}") from error
        finally:
            for process in ranks.processes:
                if process.is_alive():
                    process.kill()
                process.join()
        return [pickle.loads(Path(folder, str(index)).read_bytes()) for index in range(gpus)]


def _run_rank(index: int, world: int, kind: str, folder: str, function: Callable[[Rank, torch.device], object]) -> None:
    """Join the group, call the function and leave its result in ``folder``."""
    device = torch.device(kind, index) if kind == "cuda" else torch.device(kind)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host, whose name need not resolve
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")  # pays for large sums alone; a step's are some KB
    if kind == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // world))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=index,
        world_size=world,
        timeout=GROUP_TIMEOUT,
    )
    try:
        result = function(Rank(index, world), device)
    except Exception:
        Path(folder, f"{index}.error").write_text(traceback.format_exc())
        raise
    Path(folder, str(index)).write_bytes(pickle.dumps(result))
    if kind == "cuda":
        torch.cuda.synchronize(device)
    dist.all_reduce(torch.zeros(1))  # by gloo: nobody leaves while another may still read from its memory
    sys.stdout.flush()
    sys.stderr.flush()
    # A communicator that a CUDA graph has captured may wait forever for the graph's end when it is destroyed.
    os._exit(0)
