"""Tokens and blocks that LycheeDecode reads."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.head_roles import resolve_roles
from longdecode.methods.rule import Positions, best, tokens_of
from longdecode.methods.stored_rule import StoredRule


class LycheeRule(StoredRule):
    """Read everything in retrieval heads, which choose; read what the same head chose last in sparse heads.

    A choice is made of entries: single tokens, or blocks with the score of their best token.
    """

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        layers, heads = config.num_layers, config.num_kv_heads
        count = params.retrieval_heads
        if count is None and not params.roles.endswith(".json"):
            count = min(layers * heads, max(heads + 1, round(layers * heads / 8)))
        self.retrieves = resolve_roles(params.roles, count, params.roles_seed, config)
        self.size = params.block_size if params.mode == "block" else 1
        self.longest = self.budget // self.size
        self.chosen: dict[int, Positions] = {}

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return one list per KV head, by its role; a retrieval head's choice holds from the next layer on."""
        n = keys.shape[1]
        lists = [range(n) if role else self.chosen[head] for head, role in enumerate(self.retrieves[layer])]
        for head, role in enumerate(self.retrieves[layer]):
            if role:
                self.chosen[head] = tokens_of(self.choose(self.mean_logits(head, queries, keys)), self.size, n)
        return lists

    def choose(self, logits: list[float]) -> list[int]:
        """Return the entries that the strategy takes."""
        scores = [max(logits[start : start + self.size]) for start in range(0, len(logits), self.size)]
        entries, p = len(scores), self.params
        if entries <= self.longest:
            return list(range(entries))
        width = self.longest
        if p.strategy == "ratio":
            width = min(width, max(1, math.floor((1 - p.ratio) * entries + 1e-9)))
        sinks, recent = self.always(width)
        kept = [i for i in range(entries) if i < sinks or i >= entries - recent]
        rivals = [i for i in range(entries) if i not in kept]
        if p.strategy in ("top_k", "ratio"):
            return sorted([*kept, *best(scores, width - len(kept), rivals)])
        return self.likely(scores, kept, rivals)

    def likely(self, scores: list[float], kept: list[int], rivals: list[int]) -> list[int]:
        """Return the kept tokens, then the likeliest: until ``top_p`` is held, or those above ``threshold``."""
        powers = [math.exp(score - max(scores)) for score in scores]
        share = [power / sum(powers) for power in powers]
        chosen = list(kept)
        for entry in sorted(rivals, key=lambda i: (-share[i], i)):
            if self.params.strategy == "top_p":
                takes = sum(share[i] for i in chosen) <= self.params.top_p
            else:
                takes = share[entry] > self.params.threshold
            if len(chosen) < self.longest and (takes or not chosen):
                chosen.append(entry)
        return sorted(chosen)

    def always(self, width: int) -> tuple[int, int]:
        """Return the sink and recent entries of a list: as asked for, or half of the list in the same proportion.

        In block mode the block of the current token comes on top of the recent ones and stays in every list.
        """
        least = int(self.params.mode == "block")
        sinks = -(-self.params.sink_tokens // self.size)
        recent = -(-self.params.recent_tokens // self.size) + least
        half = max(width // 2, least)
        if sinks + recent <= half:
            return sinks, recent
        sinks = min(math.floor(half * sinks / (sinks + recent) + 0.5), half - least)
        return sinks, half - sinks

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of scales and of the float32 scores of each head that chooses for a sparse head below it."""
        entries = -(-kv_length // self.size)
        choosing = sum(
            above and not below
            for upper, lower in zip(self.retrieves, self.retrieves[1:], strict=False)
            for above, below in zip(upper, lower, strict=True)
        )
        return choosing * entries * 4 + self.scale_bytes()


RULE = LycheeRule
