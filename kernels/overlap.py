"""Programmatic dependent launch: a kernel may start while those ahead of it still run, and then waits for their end.

Every kernel launched so waits (``gdc_wait``) before it reads what another kernel wrote and before it writes anything,
so that completion is transitive: when a kernel's wait returns, all before it have ended. None may skip the wait. What
no kernel of a step writes (weights) may be read before it.

When a kernel lets the next one start is a matter of speed alone, settled on an H200 with Llama-3-8B at 128K, batch 1.
Projections, norms and rotation do so at once: while their last programs drain, the next weights are on their way.
Page scores, selection, eviction and merges do too, sparse attention where its reading ends. Dense attention takes part
only where few KV heads make more than 32 parts of a list: elsewhere programs of its that start early pair up on some
multiprocessors and leave others idle.
Against ordinary launches a step of Full takes 2.3 % less, one of Quest 2.9 %; with every kernel letting the next start
at once it was 0.7 % more for Full and 0.7 % less for Quest (the table ``launch_overlap`` of ``results/h200``, in the
history up to revision 1b0697b).
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

HOPPER = (9, 0)
"""The compute capability from which on the hardware does it."""


@cache
def can_overlap(device: torch.device) -> bool:
    """Return true where launches on a device may overlap.

    On ``meta`` they do: there a kernel is only compiled, for Hopper. Triton's interpreter, which CPU tensors imply,
    runs one kernel after the other.
    """
    if device.type != "cuda":
        return device.type == "meta"
    return torch.cuda.get_device_capability(device) >= HOPPER


def overlap_settings(wanted: bool, device: torch.device) -> dict[str, bool]:
    """Return launch arguments of a kernel with the constant ``PDL``, for a launch that wants to overlap or not."""
    return {"PDL": True, "launch_pdl": True} if wanted and can_overlap(device) else {"PDL": False}


@triton.jit
def wait_for_earlier(PDL: tl.constexpr):
    """Wait for the kernels ahead: the first line of a kernel that has nothing to do before."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """Let the next kernel start, once every program of this one has come here or ended."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
