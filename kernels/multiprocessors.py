"""What choosing a launch needs to know of the device and of numbers."""

from __future__ import annotations

from functools import cache

import torch

H200_MULTIPROCESSORS = 132


@cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device; an H200's where there is none to ask."""
    if device.type != "cuda":
        return H200_MULTIPROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def power_of_two(number: int) -> int:
    """The smallest power of two that is ``number`` or more."""
    return 1 << max(0, number - 1).bit_length()
