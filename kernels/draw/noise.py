"""Noise that depends on the request, the position and the index alone."""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise ``[B, vocab]`` float64, a pure function of (seed, position, vocabulary index).

    A token drawn with it does not depend on the rest of the batch, on the device or on what was drawn before, so that
    batched, single and speculative runs can be compared token by token.

    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64's finalizer).
    """
    return -torch.log(-torch.log(uniform_noise(seeds, positions, vocab)))


def uniform_noise(seeds: Tensor, positions: Tensor, width: int) -> Tensor:
    """Uniform noise between 0 and 1, ``[B, width]`` float64, a pure function of (seed, position, index)."""
    row = _mix(_mix(seeds * GOLDEN + 1) + positions * GOLDEN)
    index = torch.arange(1, width + 1, device=seeds.device)
    bits = _shift_right(_mix(row[:, None] + index * GOLDEN), 11)
    return (bits.double() + 0.5) * 2.0**-53


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finalizer; int64 products wrap modulo 2^64 as the unsigned ones do."""
    z = (z ^ _shift_right(z, 30)) * MIX_1
    z = (z ^ _shift_right(z, 27)) * MIX_2
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift of int64: the arithmetic one with the copied sign bits cleared."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
