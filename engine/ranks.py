"""Processes of one host that share a model: a rank a GPU, and how they start, end and fail together."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryDirectory
from typing import Any, Self, cast

import torch
import torch.distributed as dist

from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.engine.model_config import ModelConfig

GROUP_TIMEOUT = timedelta(minutes=10)
"""Longest wait for another rank, which may still be reading its weights from a slow disk."""
Make = Callable[["Rank", torch.device], Callable[..., Iterable[Any]]]
"""Called once on a rank: returns what answers calls there. At the top level of a module, or a ``partial`` of that."""


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


class Ranks:
    """A process a device; together they form a group of ``torch.distributed``. A context manager that ends them.

    They start with the first call, and again with the next one after a call that failed or was given up.

    Args:
        devices: NCCL joins GPUs, gloo processes on a CPU.
        make: see ``Make``; the same work on every rank.
    """

    def __init__(self, devices: Sequence[torch.device], make: Make):
        self.devices, self.make = tuple(devices), make
        self._processes, self._ends = list[Any](), list[Connection]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self._processes:
            process.kill()  # a communicator that a CUDA graph has captured may wait forever for the graph's end
        for process in self._processes:
            process.join()
        self._processes, self._ends = [], []

    def answers(self, *call: Any) -> Iterator[list[Any]]:
        """Yield what the ranks answer to a call: a list of their first answers, one of their second and so on.

        Args:
            call: the arguments of what ``make`` returned.

        Raises:
            RankError: a rank died, or failed with an error that is not ours.
            LongDecodeError: the first error of ours on a rank.
        """
        is_done = False
        try:
            if not self._processes:
                self._start()
            for end in self._ends:
                with suppress(OSError):  # of one that died, as is found when it does not answer
                    end.send_bytes(pickle.dumps(call))
            while (answers := self._next())[0] is not ...:
                yield answers
            is_done = True
        finally:
            if not is_done:  # the others may wait for one that failed, without end
                self.__exit__()

    def _start(self) -> None:
        spawn, self._folder = get_context("spawn"), TemporaryDirectory(prefix="longdecode-ranks-")
        for index, device in enumerate(self.devices):
            ours, theirs = spawn.Pipe()
            args = Rank(index, len(self.devices)), device, self._folder.name, theirs, self.make
            self._processes.append(spawn.Process(target=_run_rank, args=args, daemon=True))
            self._processes[-1].start()
            theirs.close()  # so that its end is seen
            self._ends.append(ours)

    def _next(self) -> list[Any]:
        """Return the next answer of each rank, ``...`` at the end; raise the first error."""
        found = dict[int, Any]()
        while len(found) < len(self._ends):
            for end in wait([end for index, end in enumerate(self._ends) if index not in found]):
                index = self._ends.index(cast(Connection, end))
                try:
                    found[index] = pickle.loads(self._ends[index].recv_bytes())
                except (EOFError, OSError):
                    self._processes[index].join()
                    how = f"it ended with exit code {self._processes[index].exitcode}"
                    raise RankError(f"rank {index} of {len(self._ends)} failed: {how}") from None
                if isinstance(found[index], Exception):
                    raise found[index]
        return [found[index] for index in range(len(found))]


def _run_rank(rank: Rank, device: torch.device, folder: str, end: Connection, make: Make) -> None:
    """Join the group and answer calls for as long as there is a caller."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one host, whose name need not resolve
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")  # pays for large sums alone; a step's are some KB
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // rank.world))
    backend, place = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", f"file://{folder}/rendezvous"
    dist.init_process_group(backend, place, GROUP_TIMEOUT, rank.world, rank.index)
    answer: Callable[..., Iterable[Any]] | None = None
    while True:
        try:
            call = pickle.loads(end.recv_bytes())
        except EOFError:
            os._exit(0)
        said: Any = ...
        try:
            answer = answer or make(rank, device)
            for made in answer(*call):
                end.send_bytes(pickle.dumps(made))
        except (LongDecodeError, MemoryError, torch.OutOfMemoryError) as error:  # their types tell a cell's status
            said = error
        except Exception:
            said = RankError(f"rank {rank.index} of {rank.world} failed: {traceback.format_exc()}")
        end.send_bytes(pickle.dumps(said))
