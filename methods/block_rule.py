"""State in plain loops which blocks are read by pooled keys and importance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.rule import Positions, Rule, tokens_of


class BlockRule(Rule):
    """Read the first and the latest blocks, then the best by the query, then by importance; ties go to the newer.

    Shares of a budget are those of 1 + 16 + 16 + 31 of 64 blocks.
    """

    by_importance = False

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        size = 4
        while size < 64 and 64 * 2 * size <= self.budget:
            size *= 2
        self.size: int = params.block_size or size
        self.window: int = params.pool_tokens or self.size // 2
        self.stride: int = params.pool_stride or self.size // 4
        self.count = self.budget // self.size
        shift = 1 if params.split == "code" else 0
        self.sink = max(1, round(self.count / 64))
        self.recent = round(self.count / 4) + shift
        self.queried = round(self.count / 4) - shift
        if not self.by_importance:
            self.queried = self.count - self.sink - self.recent

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the tokens of the chosen blocks, for each KV head."""
        n = keys.shape[1]
        return [tokens_of(self.blocks(head, queries, keys), self.size, n) for head in range(self.config.num_kv_heads)]

    def blocks(self, kv_head: int, queries: Tensor, keys: Tensor) -> list[int]:
        """Return the blocks of one KV head."""
        n = keys.shape[1]
        number = math.ceil(n / self.size)
        chosen = {block for block in range(number) if block < self.sink or block >= number - self.recent}
        if number > self.count:
            chosen |= newest_best(self.block_scores(kv_head, queries, keys), self.queried, chosen)
            if self.by_importance:
                chosen |= newest_best(self.block_importances(kv_head), self.count - len(chosen), chosen)
        return sorted(range(number) if number <= self.count else chosen)

    def block_scores(self, kv_head: int, queries: Tensor, keys: Tensor) -> list[float]:
        """Return for each block the largest probability, summed over the group, of a window that touches it."""
        pooled = self.windows(keys[kv_head])
        summed = [0.0] * len(pooled)
        for head in self.group(kv_head):
            logits = (pooled @ queries[head] / math.sqrt(self.config.head_dim)).tolist()
            divisor = self.normaliser(logits)
            summed = [total + math.exp(logit) / divisor for total, logit in zip(summed, logits, strict=True)]
        return self.by_block(summed, keys.shape[1], 0.0)

    def normaliser(self, logits: Sequence[float]) -> float:
        """Return the sum of exponentials that the weights are divided by."""
        step = self.window // self.stride
        coarse = [
            sum(logits[start + step * part] for part in range(4)) / 4 for start in range(0, len(logits) - 3 * step, 4)
        ]
        return sum(map(math.exp, coarse if coarse and self.params.normaliser == "coarse" else logits))

    def windows(self, tokens: Tensor) -> Tensor:
        """Return the mean of every whole window of ``tokens`` ``[n, ...]``."""
        whole = len(tokens) >= self.window
        return tokens.unfold(0, self.window, self.stride).mean(dim=-1) if whole else tokens[:0]

    def by_block(self, windows: Sequence[float], n: int, nothing: float) -> list[float]:
        """Return for each block the largest of the windows that share a token with it."""
        scores = []
        for first in range(0, n, self.size):
            last = first + self.size - 1
            touching = [
                at
                for at in range(max(0, (first - self.window) // self.stride), last // self.stride + 1)
                if at < len(windows) and at * self.stride + self.window - 1 >= first
            ]
            scores.append(max((windows[at] for at in touching), default=nothing))
        return scores

    def block_importances(self, kv_head: int) -> list[float]:
        """Return the importance of each block."""
        raise NotImplementedError

    def some_blocks(self, kv_length: int) -> list[int]:
        """Return blocks of which a step reads as many tokens as of those that it chooses."""
        number = math.ceil(kv_length / self.size)
        return [*range(min(number, self.count) - 1), number - 1]

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of one pooled key a whole window."""
        windows = len(range(0, kv_length - self.window + 1, self.stride))
        heads = self.config.num_layers * self.config.num_kv_heads
        return windows * heads * self.config.head_dim * bytes_per_element


def newest_best(scores: Sequence[float], k: int, without: set[int]) -> set[int]:
    """Return the ``k`` largest that are not in ``without``; of equal scores the last."""
    rivals: list[int] = [place for place in range(len(scores)) if place not in without]
    order: Callable[[int], tuple[float, int]] = lambda place: (scores[place], place)  # noqa: E731
    return set(sorted(rivals, key=order, reverse=True)[: max(0, k)])


def importances(source: str, config: ModelConfig, layer: int, values: Tensor) -> Tensor:
    """Return ``A softplus(Delta v)`` of every token, ``[Hkv, n]``, with drawn heads or zeros.

    Args:
        source: ``zero`` or ``random:<seed>``.
        config: the model.
        layer: from 0.
        values: ``[Hkv, n, D]``.
    """
    heads, tokens, dim = values.shape
    if source == "zero":
        return torch.zeros(heads, tokens, dtype=torch.float64)
    generator = torch.Generator().manual_seed(int(source.split(":")[1]))
    out = torch.zeros(heads, tokens, dtype=torch.float64)
    # The drawn weights are an input, equal to the bit: a square root and a division round otherwise in float32.
    delta = torch.randn(config.num_layers, heads, heads * dim, generator=generator) * (heads * dim) ** -0.5
    scale = torch.randn(config.num_layers, heads, generator=generator)
    joined = torch.cat([values[head] for head in range(heads)], dim=1)
    for head in range(heads):
        raised = torch.log1p(torch.exp(joined @ delta[layer, head].double()))
        out[head] = float(scale[layer, head]) * raised
    return out
