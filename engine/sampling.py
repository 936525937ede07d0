"""Choice of the next token, on the device, with noise that depends on the request and the position alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.engine.errors import ConfigError
from longdecode.kernels.draw import DrawRule, Noise, argmax, draw, gumbel_noise, penalised


@dataclass(frozen=True, slots=True)
class Sampling:
    """Rule that draws the next token: penalty, then greedy at temperature 0, else temperature, top-p, min-p and eta.

    ``top_p`` keeps the smallest set of most probable tokens whose probabilities sum to at least ``top_p``; ``min_p``
    keeps the tokens at least ``min_p`` times as probable as the most probable one; ``eta`` keeps those with a
    probability of at least ``min(eta, sqrt(eta) * exp(-entropy))``. All look at the distribution after the
    temperature, and a token must pass all. Min-p and eta leave the ``min_tokens`` most probable tokens in, whatever
    their probability: 20 in TokenSwift's released code. ``penalty`` divides positive logits of the last
    ``penalty_window`` tokens, prompt included, and multiplies negative ones; 1 leaves them.

    Source: Keskar et al. 2019, CTRL (arXiv 1909.05858), section 4.1, with the sign rule of its released code; Hewitt
    et al. 2022 (arXiv 2210.15191), eta sampling.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    eta: float = 0.0
    penalty: float = 1.0
    penalty_window: int = 1024
    min_tokens: int = 1

    def __post_init__(self) -> None:
        for name, least in (("temperature", 0), ("penalty", 1)):
            if not least <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected a finite number of {least} or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}, expected a number over 0 and at most 1")
        for name in ("min_p", "eta"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected a number from 0 to 1")
        for name in ("penalty_window", "min_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected 1 token or more")

    @property
    def history_tokens(self) -> int:
        """Tokens before a draw that it depends on."""
        return self.penalty_window if self.penalty > 1 else 0

    def best(self, logits: Tensor, count: int, seeds: Tensor, positions: Tensor, history: Tensor | None) -> Tensor:
        """Return the token drawn of each row and those that come next in the same draw, ``[N, count]`` int64.

        Args:
            logits: ``[N, V]`` float32.
            count: tokens a row.
            seeds: ``[N]`` int64, one of each request.
            positions: ``[N]`` int64, the absolute position the token will take.
            history: ``[N, W]`` int64, the tokens before it, ``-1`` where there is none; ``None`` penalises nothing.
        """
        if self.temperature == 0 and history is None and count == 1:
            return argmax(logits)[:, None]
        if self.is_simple:
            noise = Noise(seeds, positions) if self.temperature > 0 else None
            return draw(logits, count, DrawRule(self.temperature, self.min_p, self.penalty), noise, history)
        scores = self.processed(logits, history).double() + gumbel_noise(seeds, positions, logits.shape[-1])
        return scores.argmax(dim=-1)[:, None] if count == 1 else scores.topk(count, dim=1).indices

    @property
    def is_simple(self) -> bool:
        """Return true where ``kernels.draw`` knows the rule: a penalty, a temperature and min-p alone."""
        return self.temperature == 0 or (
            self.top_p == 1 and self.eta == 0 and (self.min_p == 0 or self.min_tokens == 1)
        )

    def processed(self, logits: Tensor, history: Tensor | None = None) -> Tensor:
        """Return logits ``[N, V]`` whose softmax is the law of the draw; without a history nothing is penalised."""
        if self.penalty > 1 and history is not None:
            logits = penalised(logits, history, self.penalty)
        if self.temperature == 0:
            index = torch.arange(logits.shape[1], device=logits.device)
            return logits.masked_fill(index != argmax(logits)[:, None], -torch.inf)
        return filtered_logits(logits / self.temperature, self.top_p, self.min_p, self.eta, self.min_tokens)


def filtered_logits(logits: Tensor, top_p: float, min_p: float, eta: float = 0.0, min_tokens: int = 1) -> Tensor:
    """Logits ``[N, V]`` with minus infinity where a rule leaves a token out; the most probable always stays."""
    kept = logits
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(dim=-1)
        mass_before = probabilities.cumsum(dim=-1) - probabilities
        outside = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, mass_before >= top_p)
        kept = kept.masked_fill(outside, -torch.inf)
    if min_p > 0:
        floor = logits.amax(dim=-1, keepdim=True) + math.log(min_p)
        kept = kept.masked_fill(logits < floor.minimum(_last_of(logits, min_tokens)), -torch.inf)
    if eta > 0:
        logprobs = logits.log_softmax(dim=-1)
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1, keepdim=True)
        floor = (0.5 * math.log(eta) - entropy).clamp(max=math.log(eta)).minimum(_last_of(logprobs, min_tokens))
        kept = kept.masked_fill(logprobs < floor, -torch.inf)
    return kept


def _last_of(values: Tensor, count: int) -> Tensor:
    """The smallest of each row's ``count`` largest values, ``[N, 1]``."""
    return values.amax(dim=-1, keepdim=True) if count == 1 else values.topk(min(count, values.shape[-1])).values[:, -1:]
