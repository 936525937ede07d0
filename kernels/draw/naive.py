"""Draw and record of tokens in plain torch: penalty, temperature, min-p and noise, then the largest scores.

The noise depends on the request, the position and the index alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
MIX_1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
MIX_2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


@dataclass(frozen=True, slots=True)
class DrawRule:
    """Numbers of a draw; ``temperature`` 0 leaves logits undivided and unfiltered, ``penalty`` 1 unmoved."""

    temperature: float = 0.0
    min_p: float = 0.0
    penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Keys of each row's Gumbel noise: ``seeds`` and ``positions`` ``[N]`` int64."""

    seeds: Tensor
    positions: Tensor


@dataclass(frozen=True)
class Progress:
    """State of each sequence's continuation.

    Args:
        chosen: ``[B, N + 1]`` int64, the continuations; the last column is spare.
        counts: ``[B]`` int64, tokens of each.
        steps: ``[B]`` int64, steps in which a row was active.
        newest: ``[B]`` int64, each row's newest token.
        active: ``[B]`` bool, rows that go on.
        totals: ``[B]`` int64, tokens at which a row is done.
        forced_counts: ``[B]`` int64, leading tokens that do not stop a row.
        stops: ``[B, M]`` int64, tokens that stop a row; ``None`` where nothing does.
    """

    chosen: Tensor
    counts: Tensor
    steps: Tensor
    newest: Tensor
    active: Tensor
    totals: Tensor
    forced_counts: Tensor
    stops: Tensor | None


def argmax(x: Tensor) -> Tensor:
    """The index of each row's largest value, the lowest of several that share it.

    ``torch.argmax`` leaves open which of equal values it names; a token must not depend on that. Moves ``B * N``
    elements.

    Args:
        x: ``[B, N]``, any float dtype, without NaN.

    Returns:
        ``[B]`` int64.
    """
    index = torch.arange(x.shape[-1], device=x.device)
    return torch.where(x == x.amax(dim=-1, keepdim=True), index, x.shape[-1]).amin(dim=-1)


def draw(
    logits: Tensor, count: int, rule: DrawRule, noise: Noise | None = None, history: Tensor | None = None
) -> Tensor:
    """Return the tokens of the ``count`` largest scores of each row, best first, of equal ones the lowest.

    A score is the logit, moved down by the penalty, over the temperature, plus the noise; minus infinity where min-p
    leaves the token out. Where fewer than ``count`` scores are finite, the rest are any tokens.

    Args:
        logits: ``[N, V]``, any float dtype.
        count: tokens a row.
        rule: the numbers.
        noise: keys of the noise; ``None`` adds none.
        history: ``[N, W]`` int64, the tokens that the penalty moves, ``-1`` for none; ``None`` penalises nothing.

    Returns:
        ``[N, count]`` int64; of a row of NaN any tokens of the vocabulary.
    """
    scores = logits
    if history is not None and rule.penalty > 1:
        scores = penalised(scores, history, rule.penalty)
    if rule.temperature > 0:
        scores = min_p_filtered(scores / rule.temperature, rule.min_p)
    if noise is not None:
        scores = scores.double() + gumbel_noise(noise.seeds, noise.positions, logits.shape[1])
    found: list[Tensor] = []
    for place in range(count):
        scores = scores.scatter(1, found[-1], -torch.inf) if place else scores
        found.append(argmax(scores).clamp(max=logits.shape[1] - 1)[:, None])
    return torch.cat(found, dim=1)


def record_tokens(progress: Progress, tokens: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Append the first ``counts`` chosen tokens of each active row, up to a stop token or the row's total.

    Args:
        progress: changed in place.
        tokens: ``[B, T]`` int64.
        counts: ``[B]`` int64; all ``T`` where left out.

    Returns:
        Tokens recorded, ``[B]`` int64, and which they are, ``[B, T]`` bool.
    """
    place = torch.arange(tokens.shape[1], device=tokens.device)
    index = progress.counts[:, None] + place
    taken = progress.active[:, None] & (index < progress.totals[:, None])
    if counts is not None:
        taken = taken & (place < counts[:, None])
    ends = torch.zeros_like(taken)
    if progress.stops is not None:
        ends = (tokens[..., None] == progress.stops[:, None]).any(dim=-1) & (index >= progress.forced_counts[:, None])
        taken = taken & (ends.cumsum(dim=1) - ends.long() == 0)
    progress.chosen.scatter_(1, torch.where(taken, index, progress.chosen.shape[1] - 1), tokens)
    recorded = taken.sum(dim=1)
    last = tokens.gather(1, (recorded - 1).clamp(min=0)[:, None])[:, 0]
    progress.newest.copy_(torch.where(recorded > 0, last, progress.newest))
    progress.steps.add_(progress.active)
    progress.counts.add_(recorded)
    done = (progress.counts >= progress.totals) | (ends & taken).any(dim=1)
    progress.active.logical_and_(~done)
    return recorded, taken


def penalised(logits: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Logits ``[N, V]`` with those of the tokens in ``history`` ``[N, W]`` moved down; ``-1`` names no token."""
    padded = torch.cat((logits, logits.new_zeros(len(logits), 1)), dim=1)
    index = torch.where(history < 0, logits.shape[1], history)
    seen = padded.gather(1, index)
    return padded.scatter(1, index, torch.where(seen > 0, seen / penalty, seen * penalty))[:, :-1]


def min_p_filtered(logits: Tensor, min_p: float) -> Tensor:
    """Logits ``[N, V]`` with minus infinity where a token is under ``min_p`` times as probable as the likeliest."""
    if min_p == 0:
        return logits
    return logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + math.log(min_p), -torch.inf)


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
