"""Compiles the Triton launches of unchanged host code for a GPU that is not there.

Imported in a process without ``TRITON_INTERPRET``, it stands in for the CUDA driver: tensors on ``meta`` give each
launch its true shapes, strides and dtypes, the launch is compiled to a cubin and never run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
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


# batch, query heads, KV heads, head dimension, capacity
SHAPES = {"Llama-3-8B": (1, 32, 8, 128, 131_072), "miniature": (4, 8, 4, 32, 4096)}
RUNS = (("Llama-3-8B", torch.bfloat16), ("miniature", torch.float32))
"""Name what is timed, and what the gate checks.

In bfloat16 the miniature takes the 8B's binaries with fewer registers and less shared memory, unless a script says
otherwise; float16 compiles as bfloat16 does.
"""


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def integers(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=torch.int64)


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


def spills(binary: Binary) -> list[str]:
    """Name what a binary takes that it must not."""
    if binary.stack_bytes or binary.local_bytes or binary.shared_bytes > SHARED_LIMIT_BYTES:
        return [f"{binary.stack_bytes} B stack, {binary.local_bytes} B local, {binary.shared_bytes} B shared"]
    return []


def check(
    cases: Iterable[tuple[str, Callable[[], object]]], faults: Callable[[str, Binary], list[str]] | None = None
) -> None:
    """Compile named launches, print what each binary takes, and exit with the list of what is wrong."""
    found = []
    for name, launch in cases:
        with compile_only() as binaries:
            launch()
        for binary in binaries:
            print(f"{name}, {binary.kernel}: {binary.registers} registers, {binary.shared_bytes} B shared")
            wrong = spills(binary) if faults is None else faults(name, binary)
            found += [f"{name}, {binary.kernel}: {fault}" for fault in wrong]
    if found:
        sys.exit("\n".join(found))
