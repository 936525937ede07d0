"""Blocks that NOSA reads, and what it adds to their logits."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.block_rule import BlockRule, importances


class NosaRule(BlockRule):
    """Read the forced blocks and the best by the query, then the most important of those that are left."""

    by_importance = True

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        self.tokens = torch.zeros(0)

    def bias(self, layer: int, values: Tensor) -> Tensor:
        """Return the importances, divided by the square root of the head size at the released scale."""
        self.tokens = importances(self.params.heads, self.config, layer, values)
        return self.tokens if self.params.bias_scale == "training" else self.tokens / math.sqrt(self.config.head_dim)

    def block_importances(self, kv_head: int) -> list[float]:
        """Return for each block the largest mean over a whole window that touches it."""
        means = self.windows(self.tokens[kv_head]).bfloat16().tolist()
        return self.by_block(means, len(self.tokens[kv_head]), -math.inf)

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of pooled keys, of a float32 a block and one a token read."""
        read = sum(min(self.size, kv_length - block * self.size) for block in self.some_blocks(kv_length))
        numbers = math.ceil(kv_length / self.size) + read
        more = 4 * numbers * self.config.num_kv_heads * self.config.num_layers
        return super().metadata_bytes(kv_length, bytes_per_element) + more


RULE = NosaRule
