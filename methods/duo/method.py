"""DuoAttention: retrieval heads keep and read everything, streaming heads only sinks and the latest tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import DecodeState, TokenHeads, Traffic
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.rope_append import rope_append
from longdecode.methods.budgeted import BudgetedMethod
from longdecode.methods.duo.split_cache import SplitCache
from longdecode.methods.head_roles import resolve_roles


@dataclass(frozen=True, slots=True)
class DuoParams:
    """Knobs of DuoAttention; ``retrieval_heads`` left out is half of all KV heads."""

    roles: str = "spread"
    retrieval_heads: Annotated[int, Field(ge=0)] | None = None
    roles_seed: int = 0
    sink_tokens: Annotated[int, Field(ge=0)] = 64


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring KV heads of one role: ``first .. stop`` in the model, from ``at`` on in their store."""

    retrieval: bool
    first: int
    stop: int
    at: int


@dataclass(slots=True)
class Rings:
    """Where the rings stand in this step: next slots and visible tokens, ``[B]``."""

    slots: Tensor
    visible: Tensor


class Duo(BudgetedMethod):
    """Roles per layer and KV head; a streaming head's cache holds ``budget`` tokens: sinks, then a ring of the latest.

    The sinks are ``sink_tokens``, or a quarter of the budget where that is less, so that small budgets are spent on the
    latest tokens. A GQA group shares its KV head's role. No layer is dense by rule.

    Source: Xiao et al. 2024, DuoAttention (arXiv 2410.10819), sections 2.2 and 2.3, and its released code; deviations
    in card.yaml.
    """

    name: ClassVar[str] = "duo"
    Params: ClassVar[type] = DuoParams
    params: DuoParams

    def __init__(self, params: DuoParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        count = params.retrieval_heads
        if count is None:
            count = config.num_layers * config.num_kv_heads // 2
        self.roles = resolve_roles(params.roles, count, params.roles_seed, config, layer0=False)
        self.runs = [_runs(row) for row in self.roles]
        self.sinks = min(params.sink_tokens, budget_tokens // 4)

    def dense_heads(self) -> tuple[frozenset[int], ...]:
        """The retrieval heads."""
        return tuple(frozenset(head for head, role in enumerate(row) if role) for row in self.roles)

    def dense_layers(self) -> frozenset[int]:
        """Layers whose heads all retrieve."""
        return frozenset(layer for layer, row in enumerate(self.roles) if all(row))

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """The context in retrieval heads, the ring in streaming heads; there is nothing to choose."""
        heads = self.config.num_layers * self.config.num_kv_heads
        whole = sum(map(sum, self.roles))
        tokens = whole * context_tokens + (heads - whole) * min(context_tokens, self.budget_tokens)
        return Traffic(tokens * self.token_bytes(bytes_per_element) // self.config.num_kv_heads)

    def after_prefill(self, prompt: KVCache) -> KVCache:
        """Whole rows of the retrieval heads and rings of the others; rows that fit a ring are kept as they are."""
        if prompt.capacity <= self.budget_tokens:
            return prompt
        return SplitCache.cut(prompt, self.roles, self.budget_tokens, self.sinks)

    def make_method_state(self, cache: KVCache) -> Rings | None:
        """Where the rings stand, where there are any."""
        return _rings(cache) if isinstance(cache, SplitCache) else None

    def before_step(self, state: DecodeState) -> None:
        """Where the rings stand."""
        state.method_state = self.make_method_state(state.cache)

    def append(self, layer: int, token: TokenHeads, state: DecodeState) -> Tensor:
        """Rotate the token's heads and store them in whole rows and rings; the queries come retrieval heads first."""
        cache = state.cache
        if not isinstance(cache, SplitCache):
            return super().append(layer, token, state)
        q, k, v = self._retrieval_first(layer, token)
        first = len(cache.whole.heads[layer])
        store = partial(
            rope_append, cos=token.cos, sin=token.sin, q_norm=token.q_norm, k_norm=token.k_norm, eps=token.eps
        )
        keys, values = cache.whole.of(layer)
        # All queries are rotated by the first of the two launches, whether or not it has keys to store.
        q = store(q, k[:, :first], v[:, :first], k_cache=keys, v_cache=values, slot_mapping=state.slot_mapping)
        if first < self.config.num_kv_heads:
            keys, values = cache.ring.of(layer)
            slots = state.method_state.slots
            store(q[:, :0], k[:, first:], v[:, first:], k_cache=keys, v_cache=values, slot_mapping=slots)
        return q

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Everything in the whole rows, everything in the rings; outputs in the model's order of heads."""
        cache, kv_tokens_read = state.cache, state.kv_tokens_read[layer]
        if not isinstance(cache, SplitCache):
            return super().attend(layer, q, state)
        first = len(cache.whole.heads[layer]) * self.config.group_size
        parts: dict[bool, Tensor] = {}
        if first:
            parts[True] = decode_attention(
                q[:, :first], *cache.whole.of(layer), state.kv_lengths, kv_tokens_read=kv_tokens_read
            )[0]
        if first < q.shape[1]:
            parts[False] = decode_attention(
                q[:, first:], *cache.ring.of(layer), state.method_state.visible, kv_tokens_read=kv_tokens_read
            )[0]
        if len(parts) == 1:
            return next(iter(parts.values()))
        group = self.config.group_size
        stored = [(parts[run.retrieval], slice(run.at, run.at + run.stop - run.first)) for run in self.runs[layer]]
        return torch.cat([_heads(part, heads, group) for part, heads in stored], dim=1)

    def _retrieval_first(self, layer: int, token: TokenHeads) -> tuple[Tensor, Tensor, Tensor]:
        """The token's heads in the order of the stores; moved in one copy where that is not the model's order."""
        runs = sorted(self.runs[layer], key=lambda run: not run.retrieval)
        if runs == self.runs[layer]:
            return token.q, token.k, token.v
        group = self.config.group_size
        pieces = [
            _heads(heads, slice(run.first, run.stop), size)
            for heads, size in ((token.q, group), (token.k, 1), (token.v, 1))
            for run in runs
        ]
        q, k, v = torch.cat(pieces, dim=1).split((token.q.shape[1], token.k.shape[1], token.v.shape[1]), dim=1)
        return q, k, v


def _runs(row: tuple[bool, ...]) -> list[Run]:
    """A layer's heads as runs of one role, in the model's order."""
    runs, first, at = [], 0, {True: 0, False: 0}
    for role, heads in groupby(row):
        count = len(list(heads))
        runs.append(Run(role, first, first + count, at[role]))
        first, at[role] = first + count, at[role] + count
    return runs


def _heads(x: Tensor, kv_heads: slice, group: int) -> Tensor:
    """The heads of ``x`` ``[B, H, 1, D]`` that belong to a span of KV heads, ``group`` of them each."""
    return x[:, kv_heads.start * group : kv_heads.stop * group]


def _rings(cache: SplitCache) -> Rings:
    """Slots and visible tokens of the coming step."""
    return Rings(cache.ring_slots(), cache.ring_visible())


METHOD = Duo
