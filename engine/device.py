"""Which device and dtype a run uses, and what the device calls itself."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import torch

from longdecode.engine.errors import ConfigError

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


def sm_clock_mhz(device: torch.device) -> int | None:
    """The GPU's present SM clock in MHz; ``None`` on a CPU or where nvidia-smi is absent or does not say."""
    if device.type != "cuda" or shutil.which("nvidia-smi") is None:
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    command = ["nvidia-smi", f"--id={uuid}", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return int(answer.strip())
    except (subprocess.SubprocessError, OSError, ValueError):
        return None
