"""Nobody else on the device, clocks as they should be: waits for that, and marks the rounds in which it failed.

A round is disturbed when, in any reading taken while it ran, the SM clock was more than 5 % below the best one of the
same pair, the memory clock was below its best, the driver named a reason for lower clocks other than an idle device,
application clocks or the power cap (thermal limits, power brake, sync boost), or another process was on the device.
The power cap is a normal state of a loaded board, so it counts only through the clock it costs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from longdecode.engine.device import NvmlMonitor, Reading
from longdecode.engine.errors import LongDecodeError, MonitorError

CLOCK_TOLERANCE = 0.05
HARMLESS = frozenset({"idle", "application clocks", "power cap", "display clocks"})
IDLE_PERCENT = 5
WAIT_SECONDS = 300.0
POLL_SECONDS = 0.5


class DeviceBusyError(LongDecodeError):
    """Another process kept the device busy for longer than a timing job waits."""


class Guard:
    """Watches one device while cases are timed.

    Args:
        monitor: the device's monitor; ``None`` (a CPU, or a GPU that cannot be asked) watches nothing.
        unwatched: why there is no monitor, kept in every record.
    """

    def __init__(
        self,
        monitor: NvmlMonitor | None,
        unwatched: str | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ):
        self.monitor = monitor
        self.unwatched = unwatched
        self._sleep = sleep
        self._now = now
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
        deadline = self._now() + WAIT_SECONDS
        while (monitor := self.monitor) is not None:
            others, busy = monitor.others(), monitor.busy_percent() if idle else 0
            if not others and busy <= IDLE_PERCENT:
                return
            if self._now() >= deadline:
                raise DeviceBusyError(
                    f"the device was not idle within {WAIT_SECONDS:.0f} s: other processes {sorted(others) or 'none'}, "
                    f"utilisation {busy} %; timing needs it alone"
                )
            self._sleep(POLL_SECONDS)

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
