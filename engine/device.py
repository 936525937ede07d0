"""Choose a run's device and dtype; read a GPU's name, clocks and memory; time its work; lease it.

A lease is for one job at a time, or as many as are allowed: file locks per device, for all users of a host, released
however the job dies.
"""

from __future__ import annotations

import os
import platform
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch

from longdecode.engine.disk import FileLock, LockHeldError
from longdecode.engine.errors import ConfigError, DeviceMemoryError, LockError, MonitorError

LOCK_FOLDER_VARIABLE = "LONGDECODE_LOCK_DIR"
LOCK_FOLDER = Path(os.sep, "tmp", "longdecode-gpu")
"""On every host, for every user: a lock in a user's own folder would bind that user alone."""
JOBS_VARIABLE = "LONGDECODE_GPU_JOBS"
"""Names the number of jobs that may hold one GPU at once; those that time hold it alone whatever it says."""
_SETTLING_SECONDS = 2.0
_FOLDER_MODE = 0o1777  # as /tmp: anyone may add a lock, nobody removes another's
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


def lock_folder() -> Path:
    """Return the folder of the locks: ``LONGDECODE_LOCK_DIR``, else ``LOCK_FOLDER`` (TMPDIR differs between users)."""
    return Path(os.environ.get(LOCK_FOLDER_VARIABLE) or LOCK_FOLDER)


def jobs_per_gpu() -> int:
    """Return how many jobs may share a GPU: ``LONGDECODE_GPU_JOBS``, else one.

    Raises:
        ConfigError: the variable holds no whole number from 1.
    """
    given = os.environ.get(JOBS_VARIABLE) or "1"
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise ConfigError(f"{JOBS_VARIABLE} is {given!r}; a whole number from 1 is needed")
    return int(given)


def gpu_uuids() -> list[str]:
    """The visible GPUs' own ids, in torch's order; the same whatever ``CUDA_VISIBLE_DEVICES`` calls them."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


@contextmanager
def lease_gpu(
    device: torch.device, *, alone: bool = False, uuids: Sequence[str] | None = None, poll_seconds: float = 0.2
) -> Iterator[torch.device]:
    """Hold a GPU, or a place on it, while the block runs, and make it the current device; on a CPU do nothing.

    A GPU has ``jobs_per_gpu`` places. ``cuda`` without an index takes the first visible GPU that is free, then further
    places of those that are not; with an index that one. Waits, and says once on standard error for whom, while other
    processes hold them all. A lease ends with its process, even a killed one.

    Args:
        alone: hold every place of the GPU, as whatever takes times must.
        uuids: ids of the GPUs to choose from, by index; by default those that torch sees.

    Yields:
        The device to use, with its index.

    Raises:
        LockError: the folder of locks is not open to all users, or has no locks.
        ConfigError: as for ``jobs_per_gpu``.
    """
    if device.type != "cuda":
        yield device
        return
    names = gpu_uuids() if uuids is None else list(uuids)
    indices = range(len(names)) if device.index is None else [device.index]
    folder = lock_folder()
    _open_to_all(folder)
    places = range(jobs_per_gpu())
    wanted = [places] if alone else [range(place, place + 1) for place in places]
    said = False
    while True:
        holders = []
        for taken in wanted:
            for index in indices:
                with ExitStack() as held:
                    try:
                        for place in taken:
                            file = f"gpu-{names[index]}{f'.{place}' if place else ''}.lock"
                            held.enter_context(FileLock(folder / file, shared=True))
                    except LockHeldError as error:
                        holders.append(f"cuda:{index} by {error.holder}")
                        continue
                    device = torch.device("cuda", index)
                    held.enter_context(_current(device))
                    yield device
                    return
        if not said:
            print(f"waiting for a free GPU: {'; '.join(holders)} (locks in {folder})", file=sys.stderr, flush=True)
            said = True
        time.sleep(poll_seconds)


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one: Triton launches on it, and graphs are replayed on its stream."""
    return torch.cuda.device(device) if torch.cuda.is_available() else nullcontext()


def _open_to_all(folder: Path) -> None:
    """Make the folder of locks, or see that the one there serves all users and is nobody's link."""
    try:
        folder.mkdir(parents=True)
        folder.chmod(_FOLDER_MODE)  # whatever the umask is
    except FileExistsError:
        pass
    except OSError as error:
        raise LockError(
            f"the folder of GPU locks {folder} cannot be made: {error.strerror}; {LOCK_FOLDER_VARIABLE} names another"
        ) from error
    deadline = time.monotonic() + _SETTLING_SECONDS
    while True:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise LockError(f"{folder} is no folder, and the locks of this host's GPUs belong there; remove it")
        shared = found.st_mode & 0o777 == 0o777
        if shared or found.st_uid == os.getuid() or time.monotonic() > deadline:
            break
        time.sleep(0.02)  # its owner may have just made it
    if not shared and found.st_uid == os.getuid():
        folder.chmod(_FOLDER_MODE)
    elif not shared:
        raise LockError(
            f"{folder} is not open to all users of this host (mode {stat.filemode(found.st_mode)}), so leases there "
            f"would bind one of them alone; its owner mends it with `chmod 1777 {folder}`"
        )
