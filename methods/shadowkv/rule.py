"""Tokens that ShadowKV reads, its keys being of full rank."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.rule import Positions, Rule, best, tokens_of


class ShadowRule(Rule):
    """Read the end of the prompt and all after it, the chunks least like their mean, and the best by their mean.

    With ``long_generation`` the end is that of the text so far; outliers are still of the prompt.
    """

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        self.size = params.chunk
        chunks = (self.budget - self.size + 1) // self.size
        self.local, self.outliers = max(1, round(chunks / 16)), max(1, round(3 * chunks / 16))
        self.chosen = chunks - self.local - self.outliers
        self.prompt = 0

    def see_prompt(self, layer: int, queries: Tensor, keys: Tensor) -> None:
        """Note the prompt's length."""
        self.prompt = keys.shape[1]

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return one list a KV head."""
        of_prompt = max(0, self.prompt // self.size - self.local)
        seen = keys.shape[1] if self.params.long_generation else self.prompt
        before = max(0, seen // self.size - self.local)
        lists: list[Positions] = []
        for head in range(self.config.num_kv_heads):
            parts = [keys[head, at * self.size : (at + 1) * self.size] for at in range(before)]
            means = [part.mean(dim=0) for part in parts]
            alike = [
                float((part @ mean / (part.norm(dim=1) * mean.norm())).min())
                for part, mean in zip(parts, means, strict=True)
            ]
            outlying = best([-value for value in alike[:of_prompt]], self.outliers)
            others = [at for at in range(before) if at not in outlying]
            given: list[list[float]] = [[0.0] for _ in range(before)]
            for query in self.group(head) if others else ():
                logits = torch.stack([means[at] @ queries[query] for at in others]) / math.sqrt(self.config.head_dim)
                for at, weight in zip(others, logits.softmax(dim=0).tolist(), strict=True):
                    given[at].append(weight)
            # A mean ranks as the sum does.
            scores = [max(weights) if self.params.group_score == "max" else sum(weights) for weights in given]
            chunks = sorted([*outlying, *best(scores, self.chosen, others)])
            lists.append([*tokens_of(chunks, self.size, seen), *range(before * self.size, keys.shape[1])])
        return lists

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of landmarks, of the factors of chosen tokens for every KV head, and of the basis."""
        heads, dim = self.config.num_kv_heads, self.config.head_dim
        before = max(0, kv_length // self.size - self.local)
        scored = before - min(before, self.outliers)
        rank = max(1, round(self.params.rank_share * heads * dim))
        numbers = scored * heads * dim + heads * rank * (min(scored, self.chosen) * self.size + dim)
        return self.config.num_layers * numbers * bytes_per_element


RULE = ShadowRule
