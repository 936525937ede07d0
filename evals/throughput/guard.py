"""Nobody else on the device, clocks as they should be: waits for that, and marks the rounds in which it failed.

A round is disturbed when, in any reading taken while it ran, the SM clock was more than 5 % below the best one of the
same pair, the memory clock was below its best, the driver named a reason for lower clocks other than an idle device,
application clocks or the power cap (thermal limits, power brake, sync boost), or another process was on the device.
The power cap is a normal state of a loaded board, so it counts only through the clock it costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from longdecode.engine.device import Reading
from longdecode.engine.errors import LongDecodeError

CLOCK_TOLERANCE = 0.05
HARMLESS = frozenset({"idle", "application clocks", "power cap", "display clocks"})
IDLE_PERCENT = 5
WAIT_SECONDS = 300.0
POLL_SECONDS = 0.5


class DeviceBusyError(LongDecodeError):
    """Another process kept the device busy for longer than a timing job waits."""


class Monitor(Protocol):
    """Read a device's state; see ``engine.device.NvmlMonitor``."""

    def read(self) -> Reading:
        """Read clocks, temperature and reasons for lower clocks."""
        ...

    def others(self) -> frozenset[int]:
        """Return ids of other processes that compute on the device."""
        ...

    def busy_percent(self) -> int:
        """Return the share of the recent past in which the device worked."""
        ...


@dataclass(frozen=True, slots=True)
class Summary:
    """Hold what was seen while one pair was timed; all ``None`` where nothing watches."""

    sm_clock_mhz: tuple[int, int] | None = None
    temperature_c: int | None = None
    throttle: str | None = None


class Guard:
    """Watches one device while blocks are timed.

    Args:
        monitor: the device's monitor; ``None`` (a CPU, or a GPU that cannot be asked) watches nothing.
        unwatched: why there is no monitor, kept in every record.
        wait_seconds: how long to wait for an idle device.
    """

    def __init__(
        self,
        monitor: Monitor | None,
        unwatched: str | None = None,
        *,
        wait_seconds: float = WAIT_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ):
        self.monitor = monitor
        self.unwatched = unwatched
        self.wait_seconds = wait_seconds
        self._sleep = sleep
        self._now = now
        self.begin()

    def wait_until_idle(self) -> None:
        """Wait until no other process is on the device and its utilisation is low; for the start of a job.

        Raises:
            DeviceBusyError: it did not happen in time.
        """
        if self.monitor is not None:
            monitor = self.monitor
            self._wait(lambda: not monitor.others() and monitor.busy_percent() <= IDLE_PERCENT)

    def wait_until_alone(self) -> None:
        """Wait until no other process is on the device; between cells, when the recent work was our own.

        Raises:
            DeviceBusyError: it did not happen in time.
        """
        if self.monitor is not None:
            monitor = self.monitor
            self._wait(lambda: not monitor.others())

    def begin(self) -> None:
        """Forget earlier readings: a new pair begins."""
        self._rounds: list[list[Reading]] = []
        self._current: list[Reading] = []
        self._others: list[frozenset[int]] = []

    def watch(self) -> None:
        """Take a reading; called right after work was enqueued, so that it sees the device at work."""
        if self.monitor is not None:
            self._current.append(self.monitor.read())

    def end_round(self) -> None:
        """Close a round; processes are listed here, outside any timed region."""
        self._rounds.append(self._current)
        self._current = []
        self._others.append(self.monitor.others() if self.monitor is not None else frozenset())

    def verdicts(self) -> list[str | None]:
        """Return the fault of each round since ``begin``; ``None`` for the good ones."""
        readings = [reading for found in self._rounds for reading in found]
        best_sm = max((reading.sm_clock_mhz for reading in readings), default=0)
        best_memory = max((reading.memory_clock_mhz for reading in readings), default=0)
        return [
            _verdict(found, others, best_sm, best_memory)
            for found, others in zip(self._rounds, self._others, strict=True)
        ]

    def summary(self) -> Summary:
        """Return clocks, the highest temperature and the reasons seen since ``begin``."""
        readings = [reading for found in self._rounds for reading in found]
        if not readings:
            return Summary(throttle=f"not read: {self.unwatched}" if self.unwatched else None)
        clocks = [reading.sm_clock_mhz for reading in readings]
        reasons = sorted({reason for reading in readings for reason in reading.throttle})
        return Summary(
            sm_clock_mhz=(min(clocks), max(clocks)),
            temperature_c=max(reading.temperature_c for reading in readings),
            throttle=", ".join(reasons) or None,
        )

    def _wait(self, rested: Callable[[], bool]) -> None:
        deadline = self._now() + self.wait_seconds
        while not rested():
            if self._now() >= deadline:
                assert self.monitor is not None
                others = sorted(self.monitor.others())
                raise DeviceBusyError(
                    f"the device was not idle within {self.wait_seconds:.0f} s: other processes {others or 'none'}, "
                    f"utilisation {self.monitor.busy_percent()} %; timing needs it alone"
                )
            self._sleep(POLL_SECONDS)


def _verdict(readings: Sequence[Reading], others: frozenset[int], best_sm: int, best_memory: int) -> str | None:
    faults = []
    if readings:
        lowest = min(reading.sm_clock_mhz for reading in readings)
        if lowest < (1 - CLOCK_TOLERANCE) * best_sm:
            faults.append(f"SM clock {lowest} of {best_sm} MHz")
        lowest = min(reading.memory_clock_mhz for reading in readings)
        if lowest < best_memory:
            faults.append(f"memory clock {lowest} of {best_memory} MHz")
        faults += sorted({reason for reading in readings for reason in reading.throttle} - HARMLESS)
    if others:
        faults.append(f"{len(others)} other process(es) on the device")
    return "; ".join(faults) or None
