"""Draw of tokens in plain torch: penalty, temperature, min-p and noise, then the largest scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.kernels.argmax import naive
from longdecode.kernels.draw.noise import gumbel_noise


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
        found.append(naive.argmax(scores).clamp(max=logits.shape[1] - 1)[:, None])
    return torch.cat(found, dim=1)


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
