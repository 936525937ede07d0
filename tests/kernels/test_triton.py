"""Dispatch of the ops, and compilation of every Triton kernel for its GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longdecode.evals.provenance import collect
from longdecode.kernels import dispatch


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    assert dispatch.kernel_path(cuda, torch.bfloat16) == "triton"
    assert dispatch.kernel_path(cuda, torch.float64) == "naive"
    assert dispatch.kernel_path(cpu, torch.bfloat16) == "naive"
    monkeypatch.setenv(dispatch.VARIABLE, "naive")
    assert dispatch.kernel_path(cuda, torch.bfloat16) == "naive"
    monkeypatch.setenv(dispatch.VARIABLE, "fast")
    with pytest.raises(dispatch.KernelChoiceError, match="'fast'"):
        dispatch.kernel_path(cpu)


def test_provenance_names_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    found = collect(settings={}, code="", model="", data="", device=torch.device("cpu"), dtype=torch.float32)
    assert found.versions["kernels"] == "naive"


@pytest.mark.slow
def test_kernels_compile_for_hopper() -> None:
    """In a process of their own: functions decorated under the interpreter cannot be compiled."""
    scripts = sorted(map(str, Path(__file__).parent.glob("compile_*_for_hopper.py")))
    run_all = "import runpy, sys\nfor script in sys.argv[1:]: runpy.run_path(script, run_name='__main__')"
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parents[2] / "src"), str(Path(__file__).parent)))
    command = [sys.executable, "-c", run_all, *scripts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "registers" in done.stdout, done.stderr[-3000:]
