"""The timing core: blocks of work timed in rounds of A B B A, on CUDA by events, elsewhere by the host's clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from longdecode.evals.records import SpeedSample
from longdecode.evals.throughput.guard import Guard

WARMUP_RUNS = 2
MAX_REPEATS = 2000
SPIN_CYCLES = 1_000_000
"""About half a millisecond at the clock of an H200."""


def _nothing() -> None:
    """Do nothing: the block needs no reset."""


@dataclass(frozen=True, slots=True)
class Block:
    """Hold the work that is timed in one go.

    Args:
        run: enqueues the work (CUDA) or does it (CPU).
        calls: how many calls of the subject one ``run`` makes; times are divided by it.
        reset: brings state back to where the block starts; never timed.
        keep: whatever must outlive the block, such as the tensors a captured graph works on.
    """

    label: str
    run: Callable[[], None]
    calls: int = 1
    reset: Callable[[], None] = _nothing
    keep: Any = None


class Clock(Protocol):
    """Times one run of a block."""

    def time_us(self, run: Callable[[], None], watch: Callable[[], None]) -> float:
        """Return microseconds of ``run``; ``watch`` is called while the work runs where possible, never inside."""
        ...


class CudaClock:
    """CUDA events around the work on the current stream; the device is looked at while it works.

    The device spins for a moment first, so that the work is enqueued by the time the first event passes and the cost
    of launching it from an idle device is not counted.
    """

    def __init__(self, device: torch.device):
        self.device = device

    def time_us(self, run: Callable[[], None], watch: Callable[[], None]) -> float:
        """See ``Clock``; waits for the device once, at the end."""
        stream = torch.cuda.current_stream(self.device)
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(self.device)
        torch.cuda._sleep(SPIN_CYCLES)
        start.record(stream)
        run()
        stop.record(stream)
        watch()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e3


class HostClock:
    """The host's monotonic clock around a direct call."""

    def time_us(self, run: Callable[[], None], watch: Callable[[], None]) -> float:
        """See ``Clock``."""
        start = time.perf_counter()
        run()
        elapsed = time.perf_counter() - start
        watch()
        return elapsed * 1e6


def clock_for(device: torch.device) -> Clock:
    """Return the clock that fits a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


def long_enough(block: Block, clock: Clock, target_us: float) -> Block:
    """Return the block repeated until one run takes about ``target_us``, so that neither clock nor launch gaps matter.

    Two runs find the repetition; a block with a reset is left as it is, because repeating it would drift.
    """
    block.run()
    once = max(clock.time_us(block.run, _nothing), 1e-3)
    repeats = min(MAX_REPEATS, max(1, math.ceil(target_us / once)))
    if repeats == 1 or block.reset is not _nothing:
        return block
    inner = block.run

    def run() -> None:
        for _ in range(repeats):
            inner()

    return replace(block, run=run, calls=block.calls * repeats)


def time_pair(subject: Block, reference: Block | None, *, rounds: int, clock: Clock, guard: Guard) -> list[SpeedSample]:
    """Time a subject against its reference in rounds of A B B A (reference, subject, subject, reference).

    Drift that is linear over a round touches both alike. Without a reference a round is the subject twice.

    Returns:
        One sample a round, each time the mean of its two runs per call; disturbed ones are marked, not dropped.

    Raises:
        DeviceBusyError: the device did not come to rest in time.
    """
    order = [subject, subject] if reference is None else [reference, subject, subject, reference]
    guard.wait_until_alone()
    for block in (order[:2] if reference is not None else order[:1]) * WARMUP_RUNS:
        block.reset()
        clock.time_us(block.run, _nothing)
    guard.begin()
    times: list[tuple[float, float | None]] = []
    for _ in range(rounds):
        mine: list[float] = []
        theirs: list[float] = []
        for block, into in zip(order, _destinations(mine, theirs, reference), strict=True):
            block.reset()
            into.append(clock.time_us(block.run, guard.watch) / block.calls)
        guard.end_round()
        times.append((sum(mine) / 2, sum(theirs) / 2 if reference is not None else None))
    verdicts = guard.verdicts()
    return [
        SpeedSample(us=us, reference_us=reference_us, disturbed=verdict)
        for (us, reference_us), verdict in zip(times, verdicts, strict=True)
    ]


def swapped(samples: list[SpeedSample]) -> list[SpeedSample]:
    """Return the same rounds told from the reference's side."""
    return [
        SpeedSample(us=sample.reference_us, reference_us=sample.us, disturbed=sample.disturbed)
        for sample in samples
        if sample.reference_us is not None
    ]


def _destinations(mine: list[float], theirs: list[float], reference: Block | None) -> list[list[float]]:
    return [mine, mine] if reference is None else [theirs, mine, mine, theirs]
