"""Tokens that the oracle reads."""

from __future__ import annotations

import math

from torch import Tensor

from longdecode.methods.rule import Positions, Rule, best_beside_window, mean_of


class OracleRule(Rule):
    """Read the tokens with the largest mean probability over the query group, and the current token."""

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return one list per KV head; everything in the first layers."""
        if layer < self.params.dense_layers:
            return self.everything(keys)
        lists: list[Positions] = []
        for head in range(self.config.num_kv_heads):
            shares = []
            for query_head in self.group(head):
                powers = [math.exp(logit) for logit in self.logits(query_head, queries, keys)]
                shares.append([power / sum(powers) for power in powers])
            sinks, recent = self.params.sink_tokens, self.params.recent_tokens
            lists.append(best_beside_window(mean_of(shares), self.budget, sinks, recent, current=True))
        return lists

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of every key in the layers that choose."""
        sparse = self.config.num_layers - min(self.config.num_layers, self.params.dense_layers)
        return sparse * self.config.num_kv_heads * kv_length * self.config.head_dim * bytes_per_element


RULE = OracleRule
