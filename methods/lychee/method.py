"""LycheeDecode: retrieval heads read everything and choose, sparse heads read what the same head above chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.correction import DEFAULT_PERIOD, Correction
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import ConfigError
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.kernels.layout import accumulator
from longdecode.kernels.sparse_decode_attention import EVERYTHING
from longdecode.kernels.topk_select import topk_select_into
from longdecode.kernels.topk_select.ranking import by_probability, rank
from longdecode.methods.budgeted import KvCacheDtype, StoringMethod
from longdecode.methods.head_roles import resolve_roles
from longdecode.methods.lychee.plan import default_retrieval_heads, layer_plans
from longdecode.methods.lychee.strategies import kept_always_by_row, share_of, shares_of
from longdecode.methods.windows import kept_always

_BY_PROBABILITY = ("top_p", "threshold")
_SCORE_BYTES = 4


@dataclass(frozen=True, slots=True)
class LycheeParams:
    """Knobs of LycheeDecode."""

    mode: Literal["block", "token"] = "block"
    block_size: Annotated[int, Field(ge=1, le=1024)] = 64
    sink_tokens: Annotated[int, Field(ge=0)] = 128
    recent_tokens: Annotated[int, Field(ge=0)] = 256
    strategy: Literal["top_k", "ratio", "top_p", "threshold"] = "top_k"
    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.7
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.001
    roles: str = "spread"
    retrieval_heads: Annotated[int, Field(ge=1)] | None = None
    roles_seed: int = 0
    correction: Literal["none", "rewrite", "dense_step"] = "none"
    correction_period: Annotated[int, Field(ge=1)] = DEFAULT_PERIOD
    kv_cache_dtype: KvCacheDtype = "auto"


@dataclass(slots=True)
class Lists:
    """Hold what a step's layers hand down; every step makes it anew from layer 0 on.

    ``indices`` ``[B, H, K]`` int64 is the choice last made for each KV head and ``scores`` ``[B, R, P]`` what it is
    made from. ``used`` ``[B]`` counts a row's entries (tokens or blocks), ``listed`` ``[B, H]`` the valid ones of each
    list, ``counts`` ``[L, B, H]`` what each layer's heads read of it. ``rows`` and ``heads`` are by choosing layer the
    row of scores of each KV head and the KV heads that choose; ``reads_all`` ``[L, 1, H]`` bool is the role map and
    ``everything`` the count of a list that reads all.
    """

    indices: Tensor
    scores: Tensor
    used: Tensor
    listed: Tensor
    counts: Tensor
    rows: dict[int, Tensor]
    heads: dict[int, Tensor]
    reads_all: Tensor
    everything: Tensor


class Lychee(StoringMethod):
    """Roles by KV head; a retrieval head's choice is what the same KV head reads in the sparse layers below it.

    ``S_h^{l+1} = top_k(mean_g(q_g) . K_h)`` where head ``h`` retrieves in layer ``l``, ``S_h^{l+1} = S_h^l`` where not.

    Source: LycheeDecode (arXiv 2602.04541), its released code at 95c3d2c; deviations in card.yaml.
    """

    name: ClassVar[str] = "lychee"
    Params: ClassVar[type] = LycheeParams
    params: LycheeParams
    between_steps = ("correction", "correction_period")
    used_with: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "block_size": {"mode": "block"},
        "roles_seed": {"roles": "random"},
        **{knob: {"strategy": knob} for knob in ("ratio", "top_p", "threshold")},
    }

    def __init__(self, params: LycheeParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        if params.strategy in _BY_PROBABILITY and params.mode == "block":
            raise ConfigError(f"lychee: strategy = {params.strategy!r} ranks tokens and needs mode = 'token'")
        if params.correction != "none" and params.kv_cache_dtype == "fp8":
            raise ConfigError("lychee: kv_cache_dtype = 'fp8' takes no correction, which needs an exact cache")
        if params.block_size & (params.block_size - 1):
            raise ConfigError(f"lychee: block_size = {params.block_size}; a power of two is needed")
        heads = params.retrieval_heads
        if heads is None and not params.roles.endswith(".json"):
            heads = default_retrieval_heads(config.num_layers, config.num_kv_heads)
        # Nothing that outlives a step is computed from keys, so that a rewrite is safe.
        self.correction = Correction.of(params.correction, params.correction_period)
        self.plans = layer_plans(resolve_roles(params.roles, heads, params.roles_seed, config))
        self.entry_tokens = params.block_size if params.mode == "block" else 1
        self.width = budget_tokens // self.entry_tokens
        """Entries that the longest list holds."""
        blocks = params.mode == "block"
        self.at_least = int(blocks)
        self.wanted = (self._entries(params.sink_tokens), self._entries(params.recent_tokens) + int(blocks))

    @classmethod
    def minimum_budget(cls, params: LycheeParams) -> tuple[int, str]:
        """One block, or one token."""
        return (params.block_size, f"one block of {params.block_size}") if params.mode == "block" else (1, "one token")

    def dense_layers(self) -> frozenset[int]:
        """Layers in which every head retrieves; layer 0 always."""
        heads = self.config.num_kv_heads
        return frozenset(layer for layer, plan in enumerate(self.plans) if len(plan.retrieval) == heads)

    def dense_heads(self) -> tuple[frozenset[int], ...]:
        """The retrieval heads."""
        return tuple(plan.retrieval for plan in self.plans)

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Retrieval heads read everything once, sparse heads their list; the selector reads the scores left by then.

        Under ``top_p`` and ``threshold`` the lists are as long as they may get.
        """
        listed, kv_bytes = self._list_tokens(context_tokens), 0
        for layer, plan in enumerate(self.plans):
            tokens = plan.heads * listed + len(plan.retrieval) * (context_tokens - listed)
            kv_bytes += tokens * 2 * self.config.head_dim * self.element_bytes(layer, bytes_per_element)
        scored = sum(len(plan.choosing) for plan in self.plans) * self._entries(context_tokens)
        metadata_bytes = scored * _SCORE_BYTES + self.scale_bytes
        return Traffic(kv_bytes, metadata_bytes, at_most=self.params.strategy in _BY_PROBABILITY)

    @property
    def block_tokens(self) -> int:
        """Return the tokens of a block of a list, or one."""
        return self.entry_tokens

    def make_method_state(self, cache: KVCache) -> Lists:
        """The lists of a step, and the role map on the device."""
        batch, heads, device = cache.batch, self.config.num_kv_heads, cache.device
        entries = self._entries(cache.shape.capacity)
        choosing = {layer: plan for layer, plan in enumerate(self.plans) if plan.choosing}
        rows = max((len(plan.choosing) for plan in choosing.values()), default=1)
        reads_all = [[head in plan.retrieval for head in range(heads)] for plan in self.plans]
        return Lists(
            indices=torch.zeros(batch, heads, min(self.width, entries), dtype=torch.int64, device=device),
            scores=torch.empty(batch, rows, entries, dtype=accumulator(cache.shape.dtype), device=device),
            used=cache.positions,
            listed=torch.zeros(batch, heads, dtype=torch.int64, device=device),
            counts=torch.zeros(len(self.plans), batch, heads, dtype=torch.int64, device=device),
            rows={layer: _ints(plan.score_rows(), device) for layer, plan in choosing.items()},
            heads={layer: _ints(plan.choosing, device) for layer, plan in choosing.items()},
            reads_all=torch.tensor(reads_all, device=device)[:, None],
            everything=torch.tensor(EVERYTHING, device=device),
        )

    def before_step(self, state: DecodeState) -> None:
        """Count the entries of each row and, where they follow from that, what every layer's heads read of them."""
        lists: Lists = state.method_state
        lists.used = (state.kv_lengths + (self.entry_tokens - 1)) // self.entry_tokens
        if self.params.strategy in _BY_PROBABILITY:
            return
        ratio = self.params.strategy == "ratio"
        listed = shares_of(lists.used, self.params.ratio, self.width) if ratio else lists.used.clamp(max=self.width)
        lists.listed = listed[:, None]
        torch.where(lists.reads_all, lists.everything, lists.listed, out=lists.counts)

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Retrieval heads read everything, sparse heads what the same head above them chose."""
        plan, lists = self.plans[layer], state.method_state
        if plan.dense:
            return None
        guessed = self.params.strategy in _BY_PROBABILITY
        if guessed:
            torch.where(lists.reads_all[layer], lists.everything, lists.listed, out=lists.counts[layer])
        return Selection(lists.indices, lists.counts[layer], self.entry_tokens, uneven=plan.mixed or guessed)

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Read in one launch; the scores that retrieval heads leave there become the lists of the layers below."""
        selection = self.select(layer, q, state)
        if selection is None:
            return self.attend_all(layer, q, state)
        lists: Lists = state.method_state
        choosing = len(self.plans[layer].choosing)
        scores = lists.scores[:, :choosing] if choosing else None
        out = self.attend_selected(
            layer, q, selection, state, scores=scores, score_rows=lists.rows.get(layer), score_block=self.entry_tokens
        )
        if scores is not None:
            # After the read: in this layer sparse heads still follow the lists of the layers above.
            self._choose(scores, lists.heads[layer], lists)
        return out

    def _choose(self, scores: Tensor, heads: Tensor, lists: Lists) -> None:
        """Replace the lists of ``heads`` by the entries that their scores ``[B, R, P]`` favour."""
        params, used = self.params, lists.used
        first, last = kept_always(self.width, *self.wanted, self.at_least)
        if params.strategy == "top_k":
            topk_select_into(scores, self.width, used, lists.indices, heads, keep_first=first, keep_last=last)
        elif params.strategy == "ratio":
            kept = kept_always_by_row(lists.listed[:, 0], *self.wanted, self.at_least)
            lists.indices.index_copy_(1, heads, rank(scores, used, *kept, lists.indices.shape[2]))
        else:
            mass = params.top_p if params.strategy == "top_p" else None
            places, counts = by_probability(
                scores, used, first, last, self.width, top_p=mass, threshold=params.threshold
            )  # fmt: skip
            lists.indices.index_copy_(1, heads, places)
            lists.listed.index_copy_(1, heads, counts)

    def _entries(self, tokens: int) -> int:
        """Blocks or tokens that hold so many tokens."""
        return -(-tokens // self.entry_tokens)

    def _list_tokens(self, context_tokens: int) -> int:
        """Tokens that a sparse head reads at most; exactly these under ``top_k`` and ``ratio``."""
        entries = self._entries(context_tokens)
        ratio = self.params.strategy == "ratio"
        listed = share_of(entries, self.params.ratio, self.width) if ratio else min(entries, self.width)
        # In block mode the block of the current token, part full, is always among them.
        return context_tokens - (entries - listed) * self.entry_tokens


def _ints(values: tuple[int, ...] | list[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


METHOD = Lychee
