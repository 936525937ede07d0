"""Choice of the path that ops take: Triton kernels on CUDA tensors, plain torch elsewhere or on request."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

VARIABLE = "LONGDECODE_KERNELS"
CHOICES = ("auto", "naive")

P = ParamSpec("P")
R = TypeVar("R")

_module = functools.cache(importlib.import_module)


class KernelChoiceError(ValueError):
    """The environment asks for a kernel path that does not exist."""


def kernel_path(device: torch.device, dtype: torch.dtype = torch.float32) -> str:
    """Return the path in force for tensors of a device and dtype: ``triton`` or ``naive``.

    Triton serves CUDA. float64 is for checks and always runs in plain torch, and ``LONGDECODE_KERNELS=naive`` makes
    everything do so.

    Raises:
        KernelChoiceError: the variable is neither ``auto`` nor ``naive``.
    """
    served = device.type == "cuda" and dtype != torch.float64
    try:  # every op asks: ``os.environ.get`` takes longer
        choice = os.environ[VARIABLE]
    except KeyError:
        return "triton" if served else "naive"
    if choice not in CHOICES:
        raise KernelChoiceError(f"{VARIABLE}={choice!r} in the environment is none of {', '.join(CHOICES)}")
    return "triton" if served and choice == "auto" else "naive"


@contextmanager
def naive_kernels() -> Iterator[None]:
    """Run the block in plain torch on every device, whatever the environment asks for outside it."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "naive"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def use_triton(x: Tensor) -> bool:
    """Return true where an op given ``x`` runs its Triton kernel; see ``kernel_path``."""
    return kernel_path(x.device, x.dtype) == "triton"


def op(truth: Callable[P, R], *, gpu: str = "gpu", by: str = "") -> Callable[P, R]:
    """Return the op that ``truth`` defines: ``<name>_gpu`` where Triton serves, ``truth`` elsewhere.

    Args:
        truth: the definition in plain torch; the op has its signature and docstring.
        gpu: module beside ``truth`` that holds ``<name>_gpu``, with the same parameters. It is imported at the first
            call that needs it: Triton is installed where it can run, and elsewhere the op's package must still import.
        by: the parameter whose device and dtype choose, or a field of it (``residents.like``). The first parameter of
            type ``Tensor`` where left out.
    """
    parameters = inspect.signature(truth).parameters
    chooser, _, field = by.partition(".")
    chooser = chooser or next(name for name, p in parameters.items() if p.annotation in (Tensor, "Tensor"))
    place = [*parameters].index(chooser)
    module, twin = f"{truth.__module__.rpartition('.')[0]}.{gpu}", f"{truth.__name__}_gpu"

    @functools.wraps(truth)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given: Any = args[place]
        except IndexError:
            given = kwargs[chooser]
        if use_triton(getattr(given, field) if field else given):
            return getattr(_module(module), twin)(*args, **kwargs)
        return run.__wrapped__(*args, **kwargs)

    return run
