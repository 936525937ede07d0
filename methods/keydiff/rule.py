"""Tokens that KeyDiff keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.rule import EvictingRule, Positions, best


class KeyDiffRule(EvictingRule):
    """Keep the keys with the least cosine to the mean of the unit vectors along the keys that a head stores.

    The current token is always kept. Room for the next token is made after each step, so that no step reads over the
    budget.
    """

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        self.keys: dict[int, Tensor] = {}

    def see_prompt(self, layer: int, queries: Tensor, keys: Tensor) -> None:
        """Note the keys, which decide in the place of weights."""
        self.keys[layer] = keys
        super().see_prompt(layer, queries, keys)

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Note the keys of all tokens so far."""
        self.keys[layer] = keys
        return super().reads(layer, queries, keys)

    def keep_prompt(self, layer: int, weights: Tensor) -> list[Positions]:
        """Cut by the likeness of the prompt's keys."""
        return [self.cut(layer, head, range(weights.shape[1])) for head in range(self.config.num_kv_heads)]

    def keep(self, layer: int, stored: list[Positions], weights: Tensor) -> list[Positions]:
        """Cut by the likeness of the stored keys."""
        return [self.cut(layer, head, tokens) for head, tokens in enumerate(stored)]

    def cut(self, layer: int, head: int, stored: Positions) -> list[int]:
        """Return the current token and the least alike of the others, one place left free for the next one."""
        keys = self.keys[layer][head]
        budget = self.budget_at(keys.shape[0] + 1)
        if len(stored) < budget:
            return list(stored)
        unit = [keys[place] / keys[place].norm() for place in stored]
        anchor = torch.stack(unit).mean(dim=0)
        unlike = {place: -float(one @ anchor / anchor.norm()) for place, one in zip(stored, unit, strict=True)}
        scores = [unlike.get(place, 0.0) for place in range(keys.shape[0])]
        *others, current = stored
        return [*best(scores, budget - 2, others), current]

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of the stored keys, which are read once more."""
        return super().metadata_bytes(kv_length, bytes_per_element) // 8 * self.config.head_dim * bytes_per_element


RULE = KeyDiffRule
