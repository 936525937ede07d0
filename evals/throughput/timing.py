"""Time work in rounds of A B B A, on CUDA by events around graph replays, elsewhere by the host's clock.

A ``Guard`` waits until the device is at rest and marks the rounds in which something disturbed it: in any reading taken
while the round ran, the SM clock was more than 5 % below the best one of the same pair, the memory clock was below its
best, the driver named a reason for lower clocks other than an idle device, application clocks or the power cap (thermal
limits, power brake, sync boost), or another process was on the device. The power cap is a normal state of a loaded
board, so it counts only through the clock it costs.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from longdecode.engine.device import NvmlMonitor, Reading
from longdecode.engine.errors import LongDecodeError, MonitorError
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.steppers import capture, warming_up
from longdecode.evals.records import SpeedSample
from longdecode.evals.throughput.spec import GRAPH_WARMUP_STEPS, WARMUP_BLOCKS

MAX_REPEATS = 2000
SPIN_CYCLES = 1_000_000
"""About half a millisecond at the clock of an H200."""
CLOCK_TOLERANCE = 0.05
HARMLESS = frozenset({"idle", "application clocks", "power cap", "display clocks"})
IDLE_PERCENT = 5
WAIT_SECONDS = 300.0
POLL_SECONDS = 0.5


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
    with warming_up(device):
        for _ in range(GRAPH_WARMUP_STEPS):
            reset()
            work()
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


class DeviceBusyError(LongDecodeError):
    """Another process kept the device busy for longer than a timing job waits."""


class Guard:
    """Watches one device while cases are timed.

    Args:
        monitor: the device's monitor; ``None`` (a CPU, or a GPU that cannot be asked) watches nothing.
        unwatched: why there is no monitor, kept in every record.
    """

    def __init__(self, monitor: NvmlMonitor | None, unwatched: str | None = None):
        self.monitor, self.unwatched = monitor, unwatched
        self.begin()

    @classmethod
    def of(cls, device: torch.device) -> Guard:
        """Return the guard of a device; on CUDA without NVML it watches nothing, and every record says so."""
        if device.type != "cuda":
            return cls(None)
        try:
            return cls(NvmlMonitor(device))
        except MonitorError as error:
            print(f"{device}: clocks and other processes are not watched: {error}", file=sys.stderr)
            return cls(None, str(error))

    def wait(self, *, idle: bool) -> None:
        """Wait until no other process is on the device.

        Args:
            idle: wait for a low utilisation too: for the start of a job, before there is recent work of our own.

        Raises:
            DeviceBusyError: it did not happen in time.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        while (monitor := self.monitor) is not None:
            others, busy = monitor.others(), monitor.busy_percent() if idle else 0
            if not others and busy <= IDLE_PERCENT:
                return
            if time.monotonic() >= deadline:
                raise DeviceBusyError(
                    f"the device was not idle within {WAIT_SECONDS:.0f} s: other processes {sorted(others) or 'none'}, "
                    f"utilisation {busy} %; timing needs it alone"
                )
            time.sleep(POLL_SECONDS)

    def begin(self) -> None:
        """Forget earlier readings: a new pair begins."""
        self._rounds: list[tuple[list[Reading], int]] = []
        self._current: list[Reading] = []

    def watch(self) -> None:
        """Take a reading; called right after work was enqueued, so that it sees the device at work."""
        if self.monitor is not None:
            self._current.append(self.monitor.read())

    def end_round(self) -> None:
        """Close a round; processes are listed here, outside any timed region."""
        self._rounds.append((self._current, len(self.monitor.others()) if self.monitor is not None else 0))
        self._current = []

    def verdicts(self) -> list[str | None]:
        """Return the fault of each round since ``begin``; ``None`` for the good ones."""
        every = [reading for readings, _ in self._rounds for reading in readings]
        best_sm = max((reading.sm_clock_mhz for reading in every), default=0)
        best_memory = max((reading.memory_clock_mhz for reading in every), default=0)
        found = []
        for readings, others in self._rounds:
            sm = min((reading.sm_clock_mhz for reading in readings), default=best_sm)
            memory = min((reading.memory_clock_mhz for reading in readings), default=best_memory)
            faults = [f"SM clock {sm} of {best_sm} MHz"] if sm < (1 - CLOCK_TOLERANCE) * best_sm else []
            faults += [f"memory clock {memory} of {best_memory} MHz"] if memory < best_memory else []
            faults += sorted({reason for reading in readings for reason in reading.throttle} - HARMLESS)
            faults += [f"{others} other process(es) on the device"] if others else []
            found.append("; ".join(faults) or None)
        return found

    def summary(self) -> dict[str, Any]:
        """Return clocks, the highest temperature and the reasons seen since ``begin``, as records have them."""
        readings = [reading for found, _ in self._rounds for reading in found]
        if not readings:
            return {"throttle": f"not read: {self.unwatched}" if self.unwatched else None}
        clocks = [reading.sm_clock_mhz for reading in readings]
        return {
            "sm_clock_mhz": (min(clocks), max(clocks)),
            "temperature_c": max(reading.temperature_c for reading in readings),
            "throttle": ", ".join(sorted({why for reading in readings for why in reading.throttle})) or None,
        }


def time_pair(case: Case, reference: Case | None, *, rounds: int, clock: Clock, guard: Guard) -> list[SpeedSample]:
    """Time a case against its reference in rounds of A B B A (reference, case, case, reference).

    Drift that is linear over a round touches both alike. Without a reference a round is the case twice.

    Returns:
        One sample a round, each time the mean of its two runs per call; disturbed ones are marked, not dropped.

    Raises:
        DeviceBusyError: the device did not come to rest in time.
    """
    order = [case, case] if reference is None else [reference, case, case, reference]

    def run(timed: Case, watch: Callable[[], None]) -> float:
        timed.reset()
        return clock(timed.run, watch) / timed.calls

    guard.wait(idle=False)
    for timed in order[: len(order) // 2] * WARMUP_BLOCKS:
        run(timed, nothing)
    guard.begin()
    times = []
    for _ in range(rounds):
        times.append([run(timed, guard.watch) for timed in order])
        guard.end_round()
    samples = []
    for round_, fault in zip(times, guard.verdicts(), strict=True):
        own, beside = (round_, None) if reference is None else (round_[1:3], (round_[0] + round_[3]) / 2)
        samples.append(SpeedSample(us=sum(own) / 2, reference_us=beside, disturbed=fault))
    return samples
