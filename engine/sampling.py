"""Choosing the next token, on the device, with noise that depends on the request and the position alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.engine.errors import ConfigError
from longdecode.kernels.argmax import argmax

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn: greedy at temperature 0, else temperature, then top-p and min-p.

    ``top_p`` keeps the smallest set of most probable tokens whose probabilities sum to at least ``top_p``; ``min_p``
    keeps the tokens at least ``min_p`` times as probable as the most probable one. Both look at the distribution after
    the temperature, and a token must pass both.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature is {self.temperature}, expected a finite number of 0 or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}, expected a number over 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"min_p is {self.min_p}, expected a number from 0 to 1")

    def choose(self, logits: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
        """Draw one token a row.

        Args:
            logits: ``[B, V]`` float32.
            seeds: ``[B]`` int64, one of each request.
            positions: ``[B]`` int64, the absolute position the token will take.

        Returns:
            ``[B]`` int64.
        """
        if self.temperature == 0:
            return argmax(logits)
        kept = filtered_logits(logits / self.temperature, self.top_p, self.min_p)
        return (kept.double() + gumbel_noise(seeds, positions, logits.shape[-1])).argmax(dim=-1)


def filtered_logits(logits: Tensor, top_p: float, min_p: float) -> Tensor:
    """Logits ``[B, V]`` with minus infinity where top-p or min-p rules a token out; the most probable always stays."""
    kept = logits
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(dim=-1)
        mass_before = probabilities.cumsum(dim=-1) - probabilities
        outside = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, mass_before >= top_p)
        kept = kept.masked_fill(outside, -torch.inf)
    if min_p > 0:
        floor = logits.amax(dim=-1, keepdim=True) + math.log(min_p)
        kept = kept.masked_fill(logits < floor, -torch.inf)
    return kept


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise ``[B, vocab]`` float64, a pure function of (seed, position, vocabulary index).

    A token drawn with it does not depend on the rest of the batch, on the device or on what was drawn before, so that
    batched, single and speculative runs can be compared token by token.

    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64's finalizer).
    """
    row = _mix(_mix(seeds * _GOLDEN + 1) + positions * _GOLDEN)
    index = torch.arange(1, vocab + 1, device=seeds.device)
    bits = _shift_right(_mix(row[:, None] + index * _GOLDEN), 11)
    uniform = (bits.double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform))


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finalizer; int64 products wrap modulo 2^64 as the unsigned ones do."""
    z = (z ^ _shift_right(z, 30)) * _MIX_1
    z = (z ^ _shift_right(z, 27)) * _MIX_2
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift of int64: the arithmetic one with the copied sign bits cleared."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
