"""Time work in rounds of A B B A, on CUDA by events around graph replays, elsewhere by the host's clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from longdecode.engine.kv_cache import KVCache
from longdecode.engine.steppers import capture
from longdecode.evals.records import SpeedSample
from longdecode.evals.throughput.guard import Guard
from longdecode.evals.throughput.spec import GRAPH_WARMUP_STEPS, WARMUP_BLOCKS

MAX_REPEATS = 2000
SPIN_CYCLES = 1_000_000
"""About half a millisecond at the clock of an H200."""


def nothing() -> None:
    """Do nothing: no reset is needed."""


@dataclass(frozen=True, slots=True)
class Case:
    """Hold what is timed in one go, its tensors ready, and what a record says of it beside its times.

    Args:
        variant: what stands in tables; of a reference the name that its partners give.
        run: enqueues the work (CUDA) or does it (CPU).
        calls: how many calls one ``run`` makes; times are divided by it.
        reset: brings state back to where the work starts; never timed.
        keep: whatever must outlive the work, such as the tensors a captured graph works on.
        bytes_min: bytes that a call must read or write once.
        caches: the key and value caches that it works in.
        params: parameters that only its making shows.
        found: parameters that only timing shows; called after it.
    """

    variant: str
    run: Callable[[], None]
    calls: int = 1
    reset: Callable[[], None] = nothing
    keep: Any = None
    bytes_min: int | None = None
    caches: tuple[KVCache, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    found: Callable[[], Mapping[str, Any]] = dict


Clock = Callable[[Callable[[], None], Callable[[], None]], float]
"""Returns microseconds of the first function; calls the second while the work runs where possible, never inside."""


def clock_for(device: torch.device) -> Clock:
    """Return the clock that fits a device: CUDA events around the work, elsewhere the host's monotonic clock."""
    return partial(_cuda_time, device) if device.type == "cuda" else _host_time


def _cuda_time(device: torch.device, run: Callable[[], None], watch: Callable[[], None]) -> float:
    """Time work on the current stream; wait for the device once, at the end.

    The device spins for a moment first, so that the work is enqueued by the time the first event passes and the cost
    of launching it from an idle device is not counted.
    """
    stream = torch.cuda.current_stream(device)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    torch.cuda._sleep(SPIN_CYCLES)
    start.record(stream)
    run()
    stop.record(stream)
    watch()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1e3


def _host_time(run: Callable[[], None], watch: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    elapsed = time.perf_counter() - start
    watch()
    return elapsed * 1e6


def captured(
    run: Callable[[], object], device: torch.device, reset: Callable[[], None] = nothing
) -> Callable[[], None]:
    """Return the replay of ``run`` captured as a graph after a warm-up on a side stream; on a CPU ``run`` itself.

    The graph is kept alive by what is returned; the tensors that ``run`` closes over by the caller.

    Args:
        reset: called before each warm-up and before the capture; more steps in a row than a block has leave the cache.
    """

    @torch.no_grad()
    def work() -> None:
        run()

    if device.type != "cuda":
        return work
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(GRAPH_WARMUP_STEPS):
            reset()
            work()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)
    reset()
    return capture(work, device)


def repeated(run: Callable[[], object], times: int) -> Callable[[], None]:
    """Return a function that calls another several times in a row."""

    def block() -> None:
        for _ in range(times):
            run()

    return block


def long_enough(case: Case, clock: Clock, target_us: float) -> Case:
    """Return the case repeated until one run takes about ``target_us``, so that neither clock nor launch gaps matter.

    Two runs find the repetition; a case with a reset is left as it is, because repeating it would drift.
    """
    case.run()
    once = max(clock(case.run, nothing), 1e-3)
    times = min(MAX_REPEATS, max(1, math.ceil(target_us / once)))
    if times == 1 or case.reset is not nothing:
        return case
    return replace(case, run=repeated(case.run, times), calls=case.calls * times)


def time_pair(case: Case, reference: Case | None, *, rounds: int, clock: Clock, guard: Guard) -> list[SpeedSample]:
    """Time a case against its reference in rounds of A B B A (reference, case, case, reference).

    Drift that is linear over a round touches both alike. Without a reference a round is the case twice.

    Returns:
        One sample a round, each time the mean of its two runs per call; disturbed ones are marked, not dropped.

    Raises:
        DeviceBusyError: the device did not come to rest in time.
    """
    order = [False, False] if reference is None else [True, False, False, True]

    def run(is_reference: bool, watch: Callable[[], None]) -> float:
        timed = reference if is_reference and reference is not None else case
        timed.reset()
        return clock(timed.run, watch) / timed.calls

    guard.wait(idle=False)
    for is_reference in (order[:2] if reference is not None else order[:1]) * WARMUP_BLOCKS:
        run(is_reference, nothing)
    guard.begin()
    times = []
    for _ in range(rounds):
        times.append([run(is_reference, guard.watch) for is_reference in order])
        guard.end_round()
    return [
        SpeedSample(
            us=sum(round_[-3:-1] if reference is not None else round_) / 2,
            reference_us=(round_[0] + round_[-1]) / 2 if reference is not None else None,
            disturbed=verdict,
        )
        for round_, verdict in zip(times, guard.verdicts(), strict=True)
    ]
