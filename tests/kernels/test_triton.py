"""Dispatch of the ops, and compilation of every Triton kernel for its GPU."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from longdecode.evals.provenance import collect
from longdecode.kernels import dispatch


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    assert dispatch.kernel_path(cuda, torch.bfloat16) == "triton"
    assert dispatch.kernel_path(cuda, torch.float64) == "naive" and dispatch.kernel_path(cpu, torch.bfloat16) == "naive"
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
    # Looking for cycles in what compilation leaves takes a tenth of its time.
    run_all = "import gc, runpy, sys\ngc.disable()\nfor s in sys.argv[1:]: runpy.run_path(s, run_name='__main__')"
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parents[2] / "src"), str(Path(__file__).parent)))
    command = [sys.executable, "-c", run_all, *scripts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "registers" in done.stdout, done.stderr[-3000:]


OPS = {
    name: made
    for package in sorted(Path(dispatch.__file__).parent.glob("*/__init__.py"))
    for name, made in vars(importlib.import_module(f"longdecode.kernels.{package.parent.name}")).items()
    if hasattr(made, "__wrapped__")
}
"""All that ``dispatch.op`` made, by public name."""


@pytest.mark.parametrize("name", OPS or ["none was found"])
def test_an_op_gives_its_arguments_to_its_twin(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An op goes by the name of its definition, whose parameters its twin has too, and a launch at most."""
    op = OPS[name]
    wired = inspect.getclosurevars(op).nonlocals
    module = importlib.import_module(wired["module"])
    twin = inspect.signature(getattr(module, wired["twin"])).parameters.values()
    monkeypatch.setattr(module, wired["twin"], lambda *args, **kwargs: (args, kwargs))
    monkeypatch.setattr(dispatch, "use_triton", lambda x: True)
    parameters = list(inspect.signature(op).parameters.values())
    args = tuple(MagicMock() for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    kwargs = {p.name: MagicMock() for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert op(*args, **kwargs) == (args, kwargs)
    assert [p for p in twin if p.name != "launch"] == parameters and op.__name__ == name
