"""Blocks that SeerAttention-R reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.rule import Positions, Rule, best, tokens_of
from longdecode.methods.seerattention_r.gates import find_gates


class SeerAttentionRRule(Rule):
    """Read the current block and those of the whole ones whose gated keys fit the gated query best."""

    def __init__(self, params: Any, budget_tokens: int | None, config: ModelConfig):
        super().__init__(params, budget_tokens, config)
        self.gates = find_gates(params.gates, params.block_size, config).layers
        self.prompt_tokens = 0
        self.made: dict[tuple[int, int, int], Tensor] = {}

    def see_prompt(self, layer: int, queries: Tensor, keys: Tensor) -> None:
        """Note the prompt's length."""
        self.prompt_tokens = keys.shape[1]

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the tokens of the chosen blocks, for each KV head; everything in the first layers."""
        if layer < self.params.dense_layers:
            return self.everything(keys)
        size, n = self.params.block_size, keys.shape[1]
        current = (n - 1) // size
        lists: list[Positions] = []
        for head in range(self.config.num_kv_heads):
            query = self.gated_query(layer, head, queries, n - 1)
            for block in range(current):
                if (layer, head, block) not in self.made:
                    self.made[layer, head, block] = self.gated_key(layer, head, keys, block)
            scores = [float(query @ self.made[layer, head, block]) for block in range(current)]
            lists.append(tokens_of([*best(scores, self.budget // size - 1), current], size, n))
        return lists

    def gated_query(self, layer: int, head: int, queries: Tensor, position: int) -> Tensor:
        """Return what the gate makes of a group's queries, ``[D]``."""
        gate = self.gates[layer]
        joined = sum(
            self.turned(queries[one], -position) @ gate.query[head, place].double()
            for place, one in enumerate(self.group(head))
        )
        return self.turned(normed(torch.as_tensor(joined), gate.query_norm), position)

    def gated_key(self, layer: int, head: int, keys: Tensor, block: int) -> Tensor:
        """Return what the gate makes of a whole block's keys, ``[D]``."""
        gate, size = self.gates[layer], self.params.block_size
        first = block * size
        plain = torch.stack([self.turned(keys[head, at], -at) for at in range(first, first + size)])
        pooled = torch.cat((plain.max(dim=0).values, plain.min(dim=0).values, plain.mean(dim=0)))
        decoded = first + size > self.prompt_tokens
        position = first + size - 1 if decoded and self.params.block_position == "released" else first
        return self.turned(normed(pooled @ gate.key[head].double(), gate.key_norm), position)

    def turned(self, x: Tensor, position: int) -> Tensor:
        """Return a vector ``[D]`` rotated by a position: its halves are real and imaginary parts."""
        half = len(x) // 2
        angles = position * float(self.config.rope["rope_theta"]) ** (-torch.arange(half).double() / half)
        turned = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag))

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of a key a block, and of the current block's keys, in the layers that choose."""
        size, layers = self.params.block_size, self.config.num_layers
        vectors = -(-kv_length // size) + size
        sparse = layers - min(layers, self.params.dense_layers)
        return sparse * vectors * self.config.num_kv_heads * self.config.head_dim * bytes_per_element


def normed(x: Tensor, weight: Tensor | None) -> Tensor:
    """Return a vector over its root mean square, times a weight; as it is without one."""
    return x if weight is None else x / (x.square().mean() + 1e-6).sqrt() * weight.double()


RULE = SeerAttentionRRule
