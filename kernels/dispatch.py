"""Choice of the path that ops take: Triton kernels on CUDA tensors, plain torch elsewhere or on request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

VARIABLE = "LONGDECODE_KERNELS"
CHOICES = ("auto", "naive")
TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class KernelChoiceError(ValueError):
    """The environment asks for a kernel path that does not exist."""


def kernel_path(device: torch.device, dtype: torch.dtype = torch.float32) -> str:
    """Return the path in force for tensors of a device and dtype: ``triton`` or ``naive``.

    Triton serves float32, float16 and bfloat16 on CUDA. float64 is for checks and always runs in plain torch, and
    ``LONGDECODE_KERNELS=naive`` makes everything do so.

    Raises:
        KernelChoiceError: the variable is neither ``auto`` nor ``naive``.
    """
    choice = os.environ.get(VARIABLE, "auto")
    if choice not in CHOICES:
        raise KernelChoiceError(f"{VARIABLE}={choice!r} in the environment is none of {', '.join(CHOICES)}")
    return "triton" if choice == "auto" and device.type == "cuda" and dtype in TRITON_DTYPES else "naive"


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
