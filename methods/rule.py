"""State in plain loops what a method reads, for the conformance suite to compare with what is read."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.budgeted import exact_share

Positions = Sequence[int]
"""Positions of tokens in the text, without duplicates, in any order."""


class Rule(ABC):
    """Follow one row of a batch from its prompt to its last step and name the tokens that each layer reads.

    A rule shares no code with its method. It is exported as ``RULE`` by ``<method>/rule.py``. All tensors are float64
    on the CPU; keys and queries are rotated.

    Args:
        params: the method's ``Params``.
        budget_tokens: the budget, ``None`` for a method that takes none.
        config: shape of the model.
    """

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        self.params = params
        self.budget = budget_tokens or 0
        self.config = config

    def budget_at(self, kv_length: int) -> int:
        """Return the budget at so many cached tokens: that share of them where there is one, the declared at least."""
        share = getattr(self.params, "share", None)
        return self.budget if share is None else max(self.budget, math.floor(exact_share(share) * kv_length))

    def see_prompt(self, layer: int, queries: Tensor, keys: Tensor) -> None:  # noqa: B027 (optional hook)
        """See one layer of the dense prefill: queries ``[Hq, n, D]`` and keys ``[Hkv, n, D]``."""

    @abstractmethod
    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the positions that one layer of one step reads.

        Layers are asked for in order, steps in order.

        Args:
            layer: from 0.
            queries: ``[Hq, D]``.
            keys: ``[Hkv, n, D]``, the keys of all tokens so far, the current one last, also of those dropped.

        Returns:
            One entry per KV head, or one per query head where query heads fetch lists of their own.
        """

    def bias(self, layer: int, values: Tensor) -> Tensor | None:
        """Return what is added to the logits of a step, ``[Hkv, n]``, or ``None``; asked before ``reads``.

        Args:
            layer: from 0.
            values: ``[Hkv, n, D]``, the values of all tokens so far, the current one last.
        """
        return None

    def stored(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values ``[Hkv, n, D]`` as the cache holds them; by default as they are."""
        return keys, values

    def see_weights(self, layer: int, weights: Tensor) -> None:  # noqa: B027 (optional hook)
        """See the attention weights ``[Hq, n]`` of the step just read, zero where nothing was read."""

    def turned_back(self, layer: int, kv_length: int) -> Tensor | None:
        """Return by how many positions ``[n]`` the query is turned back for each key, ``None`` for no change."""
        return None

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes that one step reads to choose, summed over layers; not those of keys and values read."""
        return 0

    def everything(self, keys: Tensor) -> list[Positions]:
        """Return all positions, for each KV head."""
        return [range(keys.shape[1])] * self.config.num_kv_heads

    def group(self, kv_head: int) -> range:
        """Return the query heads that share a KV head."""
        return range(kv_head * self.config.group_size, (kv_head + 1) * self.config.group_size)

    def logits(self, head: int, queries: Tensor, keys: Tensor) -> list[float]:
        """Return one query head's scaled logits over all keys of its KV head."""
        own = keys[head // self.config.group_size]
        return (own @ queries[head] / math.sqrt(self.config.head_dim)).tolist()

    def mean_logits(self, kv_head: int, queries: Tensor, keys: Tensor) -> list[float]:
        """Return the group's mean logits over all keys of a KV head."""
        return mean_of([self.logits(head, queries, keys) for head in self.group(kv_head)])


class ReadsEverything(Rule):
    """Read everything: of a speculative method, whose drafts change no output, this is what verifies."""

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return all positions."""
        return self.everything(keys)


class EvictingRule(Rule):
    """Name the tokens that each KV head keeps, from the attention they received; a dropped token never returns.

    A step reads what was kept and the current token; the first ``params.dense_layers``, if any, keep everything.
    """

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        self.dense_layers: int = getattr(params, "dense_layers", 0)
        self.kept: dict[int, list[Positions]] = {}
        """By layer, for each KV head."""

    @abstractmethod
    def keep_prompt(self, layer: int, weights: Tensor) -> list[Positions]:
        """Return what each KV head keeps of the prompt, given the causal attention weights ``[Hq, n, n]``."""

    @abstractmethod
    def keep(self, layer: int, stored: list[Positions], weights: Tensor) -> list[Positions]:
        """Return what each KV head keeps after a step.

        Args:
            layer: from 0.
            stored: what each KV head stored while the step read, the current token last.
            weights: ``[Hq, n]``, the step's attention weights by position, zero where nothing is stored.
        """

    def see_prompt(self, layer: int, queries: Tensor, keys: Tensor) -> None:
        """Keep a part of the prompt."""
        if layer < self.dense_layers:
            return
        shared = keys.repeat_interleave(self.config.group_size, dim=0)
        logits = queries @ shared.transpose(1, 2) / math.sqrt(self.config.head_dim)
        future = torch.ones(logits.shape[1:], dtype=torch.bool).triu(1)
        self.kept[layer] = self.keep_prompt(layer, logits.masked_fill(future, float("-inf")).softmax(dim=-1))

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return what is kept and the current token."""
        if layer < self.dense_layers:
            return self.everything(keys)
        return [[*kept, keys.shape[1] - 1] for kept in self.kept[layer]]

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return four bytes of a score and four of a position for each token kept."""
        layers = self.config.num_layers - min(self.config.num_layers, self.dense_layers)
        stored = layers * self.config.num_kv_heads * min(kv_length, self.budget_at(kv_length))
        return stored * 8

    def see_weights(self, layer: int, weights: Tensor) -> None:
        """Keep a part of what was stored."""
        if layer < self.dense_layers:
            return
        stored: list[Positions] = [[*kept, weights.shape[1] - 1] for kept in self.kept[layer]]
        self.kept[layer] = self.keep(layer, stored, weights)


def best(scores: Sequence[float], k: int, among: Iterable[int] | None = None) -> list[int]:
    """Return the ``k`` positions of the largest scores, in ascending order; of equal scores the lower position."""
    places = range(len(scores)) if among is None else among
    return sorted(sorted(places, key=lambda place: (-scores[place], place))[: max(0, k)])


def best_beside_window(scores: Sequence[float], width: int, sinks: int, recent: int, current: bool) -> list[int]:
    """Return ``width`` entries: the first, the latest and, with ``current``, the last one; then the best of the others.

    Where the window would fill more than half of the list, sinks and latest entries shrink in proportion to that half.

    Args:
        scores: of every entry.
        width: entries taken.
        sinks: first entries wanted.
        recent: latest entries wanted, the current one aside.
        current: the last entry is taken in any case.
    """
    least = int(current)
    first, last, half = sinks, recent + least, max(width // 2, least)
    if first + last > half:
        first = min(math.floor(half * first / (first + last) + 0.5), half - least)
        last = half - first
    held = [place for place in range(len(scores)) if place < first or place >= len(scores) - last]
    return sorted(
        [*held, *best(scores, width - len(held), [place for place in range(len(scores)) if place not in held])]
    )


def mean_of(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of several lists, place by place."""
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def tokens_of(blocks: Iterable[int], size: int, kv_length: int) -> list[int]:
    """Return the positions in blocks of ``size`` tokens, the last one cut short by the length."""
    return [token for block in blocks for token in range(block * size, min((block + 1) * size, kv_length))]
