"""Choose a run's device and dtype; read a GPU's name, clocks and memory; time its work."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from longdecode.engine.errors import ConfigError, DeviceMemoryError, MonitorError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` into a device; ``auto`` is CUDA where there is one.

    Raises:
        ConfigError: an unknown name, or CUDA where there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is unknown; allowed: auto, cpu, cuda, cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r} asked for, but torch sees {torch.cuda.device_count()} CUDA devices")
    return device


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Turn ``auto`` or a float dtype's name into a dtype; ``auto`` is bfloat16 on CUDA, float32 elsewhere.

    Raises:
        ConfigError: an unknown name.
    """
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in _DTYPES:
        raise ConfigError(f"dtype {name!r} is unknown; allowed: auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def device_name(device: torch.device) -> str:
    """The GPU's or the processor's own name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


_THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Bits of NVML's clocks event reasons (nvml.h, nvmlClocksEventReason*)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Hold a GPU's state at one moment; ``throttle`` holds the driver's reasons for lower clocks, in words."""

    sm_clock_mhz: int
    memory_clock_mhz: int
    temperature_c: int
    throttle: frozenset[str]


class NvmlMonitor:
    """Clocks and processes of one CUDA device through NVML; each call takes well under a millisecond.

    Raises:
        MonitorError: NVML or its Python package is absent, or does not know the device.
    """

    def __init__(self, device: torch.device):
        try:
            import pynvml
        except ImportError as error:
            raise MonitorError("the package nvidia-ml-py is not installed") from error
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            before = self._processes()
            torch.zeros(1, device=device)  # a context of our own, which makes this process known to the driver
            after = self._processes()
            self.read()
        except pynvml.NVMLError as error:
            raise MonitorError(f"NVML: {error}") from error
        self._own = _own_ids(before, after)

    def read(self) -> Reading:
        """Clocks in MHz, temperature in degrees Celsius and the reasons for lower clocks, now."""
        nvml, handle = self._nvml, self._handle
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return Reading(
            sm_clock_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            temperature_c=nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            throttle=frozenset(reason for bit, reason in _THROTTLE_REASONS.items() if bits & bit),
        )

    def others(self) -> frozenset[int]:
        """Ids of other processes that compute on the device."""
        return self._processes() - self._own

    def busy_percent(self) -> int:
        """Share of the last sampling period (at most a second) in which a kernel ran."""
        return int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)

    def _processes(self) -> frozenset[int]:
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        return frozenset(int(process.pid) for process in found)


def sm_clock_mhz(device: torch.device) -> int | None:
    """The GPU's present SM clock in MHz; ``None`` on a CPU or where NVML is absent or does not say."""
    try:
        return NvmlMonitor(device).read().sm_clock_mhz if device.type == "cuda" else None
    except MonitorError:
        return None


def _own_ids(before: frozenset[int], after: frozenset[int]) -> frozenset[int]:
    """The ids under which the driver lists this process, given its list before and after it used the device.

    In a container those may be the host's, not ours: then we are the one that came, or the only one there.
    """
    own = os.getpid()
    if own in after:
        return frozenset({own})
    return (after - before) or (after if len(after) == 1 else frozenset({own}))


def refuse_if_too_large(need_bytes: int, device: torch.device) -> None:
    """Raise before a CUDA allocation of keys and values that cannot succeed, so that the cell becomes a status.

    Raises:
        DeviceMemoryError: ``need_bytes`` are more than what is free.
    """
    if device.type != "cuda":
        return
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + reserved
    if need_bytes > free:
        raise DeviceMemoryError(f"a KV cache needs {need_bytes:,} bytes; {free:,} are free on {device}")


class Timer:
    """Time a ``with`` block; on CUDA by events on the current stream, waiting for the device once, at the end.

    ``ms`` holds the result after the block and is NaN before.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.ms = float("nan")

    def __enter__(self) -> Timer:
        if self.device.type == "cuda":
            self._start = torch.cuda.Event(enable_timing=True)
            self._start.record(torch.cuda.current_stream(self.device))
        else:
            self._start_s = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        if self.device.type == "cuda":
            stop = torch.cuda.Event(enable_timing=True)
            stop.record(torch.cuda.current_stream(self.device))
            stop.synchronize()
            self.ms = self._start.elapsed_time(stop)
        else:
            self.ms = (time.perf_counter() - self._start_s) * 1e3
