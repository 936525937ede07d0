"""Compiles the Triton launches of unchanged host code for a GPU that is not there.

Imported in a process without ``TRITON_INTERPRET``, it stands in for the CUDA driver: tensors on ``meta`` give each
launch its true shapes, strides and dtypes, the launch is compiled to a cubin and never run.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver
from triton.runtime.jit import JITFunction

SHARED_LIMIT_BYTES = 232_448
"""Shared memory one block may have on compute capability 9.0: 227 KiB (CUDA C++ programming guide, table 27)."""


@dataclass(frozen=True)
class Binary:
    """Return what a compiled launch takes of a multiprocessor, and its assembly."""

    kernel: str
    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    ptx: str


class _AbsentGPU(DriverBase):
    """A driver that knows which chip to compile for, and nothing to run on it."""

    utils = None

    def __init__(self, capability: int):
        self._target = GPUTarget("cuda", capability, 32)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing can be timed on a GPU that is not there")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty


@contextmanager
def compile_only(capability: int = 90) -> Iterator[list[Binary]]:
    """Compile instead of launching; the list fills with one ``Binary`` a launch."""
    binaries: list[Binary] = []
    run, active = JITFunction.run, driver.__dict__.get("_active")

    def compile_launch(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        compiled = compiled.result() if hasattr(compiled, "result") else compiled
        binaries.append(_measure(self.__name__, compiled))
        return compiled

    JITFunction.run = compile_launch
    driver.set_active(_AbsentGPU(capability))
    try:
        yield binaries
    finally:
        JITFunction.run = run
        driver._active = active


def _measure(name: str, compiled: Any) -> Binary:
    """Read registers, stack and spills from the cubin with the tool that Triton ships."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        report = subprocess.run([tool, "-res-usage", cubin.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", report)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of {name}'s resources: {report!r}")
    registers, stack, local = map(int, found.groups())
    return Binary(name, registers, stack, local, compiled.metadata.shared, compiled.asm["ptx"])
