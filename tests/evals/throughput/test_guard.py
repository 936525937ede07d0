"""The guard with a scripted device: waiting, giving up, and what counts as disturbed."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from longdecode.engine import device as device_module
from longdecode.engine.device import NvmlMonitor
from longdecode.engine.errors import MonitorError
from longdecode.evals.throughput import timing
from longdecode.evals.throughput.timing import DeviceBusyError, Guard


def one_round(guard: Guard, readings: int = 2) -> None:
    for _ in range(readings):
        guard.watch()
    guard.end_round()


def test_it_waits_until_the_device_is_idle(fake_monitor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(timing, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: 0.0))
    Guard(fake_monitor(processes=[frozenset({7}), frozenset({7}), frozenset()], load=[80, 80, 80, 3])).wait(idle=True)
    assert len(slept) == 3  # two for the process, one more for the load


def test_it_gives_up_with_a_reason(fake_monitor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 60))
    monkeypatch.setattr(timing, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: float(next(clock))))
    guard = Guard(fake_monitor(processes=[frozenset({4711})]))
    with pytest.raises(DeviceBusyError, match=r"300 s: other processes \[4711\]"):
        guard.wait(idle=False)


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ({"clocks": [1980, 1980, 1900, 1900]}, None),  # 4 % below: the clocks' own jitter
        ({"clocks": [1980, 1980, 1980, 1850]}, "SM clock 1850 of 1980 MHz"),
        ({"memory_clocks": [3201, 3201, 3201, 2600]}, "memory clock 2600 of 3201 MHz"),
        ({"reasons": [frozenset()] * 3 + [frozenset({"power cap", "idle"})]}, None),
        ({"reasons": [frozenset()] * 3 + [frozenset({"hardware thermal limit"})]}, "hardware thermal limit"),
        ({"processes": [frozenset(), frozenset({9})]}, "1 other process(es) on the device"),
    ],
)
def test_what_disturbs_a_round(fake_monitor: Any, script: dict[str, Any], fault: str | None) -> None:
    guard = Guard(fake_monitor(**script))
    one_round(guard)
    one_round(guard)
    assert guard.verdicts() == [None, fault]


def test_a_new_pair_forgets_the_last(fake_monitor: Any) -> None:
    guard = Guard(fake_monitor(clocks=[1980, 1980, 1400]))
    one_round(guard)
    guard.begin()
    one_round(guard)
    assert guard.verdicts() == [None] and guard.summary()["sm_clock_mhz"] == (1400, 1400)


def test_nothing_is_watched_without_a_monitor() -> None:
    guard = Guard(None, "no NVML")
    guard.wait(idle=True)
    one_round(guard)
    assert guard.verdicts() == [None] and guard.summary() == {"throttle": "not read: no NVML"}


def fake_nvml(*listings: list[int]) -> SimpleNamespace:
    """The few calls of pynvml that the monitor makes, by ``handle``; ids of devices asked for are in ``asked``."""
    left, asked = list(listings), list[str]()

    def processes(handle: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in (left.pop(0) if len(left) > 1 else left[0])]

    return SimpleNamespace(
        NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0, NVMLError=type("NVMLError", (Exception,), {}),
        asked=asked, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=asked.append,
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1755, 2: 3201}[kind],
        nvmlDeviceGetTemperature=lambda handle, sensor: 51,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x44,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=12, memory=3),
        nvmlDeviceGetComputeRunningProcesses=processes,
    )  # fmt: skip


def monitor_of(nvml: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> NvmlMonitor:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="abc"))
    monkeypatch.setattr(device_module.torch, "zeros", lambda *args, **kwargs: None)
    return NvmlMonitor(torch.device("cuda", 0))


def test_the_monitor_reads_clocks_reasons_and_load(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml([os.getpid()])
    monitor = monitor_of(nvml, monkeypatch)
    reading = monitor.read()
    assert nvml.asked == ["GPU-abc"]
    assert (reading.sm_clock_mhz, reading.memory_clock_mhz, reading.temperature_c) == (1755, 3201, 51)
    assert reading.throttle == {"power cap", "hardware thermal limit"} and monitor.busy_percent() == 12


@pytest.mark.parametrize(
    ("listings", "others"),
    [
        ([[], [os.getpid()]], set()),
        ([[5], [5, os.getpid()]], {5}),
        ([[], [900]], set()),  # a container: the driver knows us by another id
        ([[5], [5, 900]], {5}),
        ([[900]], set()),  # our context was there before
        ([[]], set()),  # a driver that lists nobody
    ],
)
def test_the_monitor_knows_itself(monkeypatch: pytest.MonkeyPatch, listings: list[list[int]], others: set[int]) -> None:
    assert monitor_of(fake_nvml(*listings), monkeypatch).others() == others


def test_a_monitor_without_its_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with pytest.raises(MonitorError, match="nvidia-ml-py"):
        NvmlMonitor(torch.device("cuda", 0))
