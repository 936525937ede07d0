"""Attention to a partial cache: the drafter of TokenSwift and TriForce."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.kv_cache import CacheShape, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import PrefillObserver
from longdecode.engine.speculation import Proposer, Verified
from longdecode.kernels.token_score import token_logits
from longdecode.methods.partial_cache import PartialCache, most_important
from longdecode.methods.prefill_scores import LatestQueries


class PartialAttention(AttentionMethod):
    """``budget`` tokens per KV head: the first ones, and those that one query finds most important.

    A token's importance is ``sum_g q_g . k_i`` over the query heads of the group, without scale or softmax; with
    ``chunk`` tokens in a chunk it is that of the mean of the chunk's keys. The query is the prompt's last at first,
    and the newest token's when the cache is built anew.

    Args:
        config: the model.
        budget: tokens per KV head.
        sinks: first tokens, always kept.
        chunk: tokens that are chosen together.
        drafts: tokens that are drafted in a step.

    Source: TokenSwift (arXiv 2502.18890), equation 2; TriForce (arXiv 2404.11912), section 4.1.
    """

    name = "partial"

    def __init__(self, config: ModelConfig, budget: int, sinks: int, chunk: int, drafts: int):
        super().__init__((), config)
        self.budget, self.sinks, self.chunk, self.drafts = budget, sinks, chunk, drafts

    @classmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: Any) -> PartialAttention:
        """Build it with 16 sinks and single tokens, as TokenSwift's drafter of one token."""
        return cls(config, budget_tokens or 1, 16, 1, 1)

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return the budget."""
        return Traffic(min(context_tokens, self.budget) * self.config.kv_bytes_per_token(bytes_per_element))

    def make_cache(self, shape: CacheShape) -> KVCache | None:
        """Return room for the budget and the drafts; sequences that fit the budget stay in the verifier's cache."""
        return PartialCache(shape, self.budget, self.sinks, self.drafts + 1) if shape.capacity > self.budget else None

    def observers(self) -> tuple[PrefillObserver, ...]:
        """Return the observer of the last query."""
        return (LatestQueries(1),)

    def keep_layer(
        self, cache: KVCache, layer: int, keys: Tensor, values: Tensor, lengths: Tensor,
        observed: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        """Keep what the prompt's last query finds most important."""
        positions = self.choose(observed[LatestQueries(1).key], keys, lengths)
        cast(PartialCache, cache).build(layer, keys, values, positions)

    def choose(self, q: Tensor, keys: Tensor, lengths: Tensor) -> Tensor:
        """Return the tokens to keep, ``[B, Hkv, N]`` int64, the most important first.

        Args:
            q: ``[B, Hq, 1, D]``, rotated.
            keys: ``[B, Hkv, S, D]``.
            lengths: ``[B]`` int64.
        """
        if self.chunk > 1:
            stored = torch.arange(keys.shape[2], device=keys.device) < lengths[:, None]
            keys = _chunk_means(keys, stored, self.chunk)
            chunks = (lengths + self.chunk - 1) // self.chunk
            scores = token_logits(q, keys, chunks, scale=1.0, group="sum")
            scores = scores.repeat_interleave(self.chunk, dim=2)[:, :, : stored.shape[1]]
        else:
            scores = token_logits(q, keys, lengths, scale=1.0, group="sum")
        return most_important(scores, lengths, self.budget, self.sinks)


class Renewal:
    """Build a partial cache anew, in a verification pass, before its sinks would be overwritten.

    The tokens since the last build are at most ``depth + 1`` a step, so that the device is asked for their number only
    when that bound is used up. A row of which more than half the room is used is built along with another one.

    Source: TokenSwift (arXiv 2502.18890), algorithm 1. The released code drafts once from the newest tokens alone and
    then builds with the last drafted row's query; here the newest token's query builds in time.
    """

    def __init__(self, method: PartialAttention, cache: PartialCache, verifier: DecodeState, depth: int):
        self.method, self.cache, self.verifier = method, cache, verifier
        self.most = depth + 1
        self.bound = 0
        self.rows = torch.zeros_like(verifier.active)

    def due(self) -> bool:
        """Return true where some row has no room for two more steps."""
        self.bound += self.most
        if self.bound + self.most <= self.cache.room:
            return False
        newest = int(torch.where(self.verifier.active, self.cache.newer, 0).max())
        due = newest + 2 * self.most > self.cache.room
        self.bound = self.cache.room // 2 + self.most if due else newest + self.most
        return due

    def begin(self) -> None:
        """Note the rows to build."""
        self.rows.copy_((2 * self.cache.newer > self.cache.room) & self.verifier.active)

    def see_layer(self, layer: int, q: Tensor, state: DecodeState) -> None:
        """Build one layer from the newest token's query and the tokens before it."""
        starts = state.block.starts
        assert starts is not None
        keys, values = state.dense.keys(layer), state.dense.values(layer)
        self.cache.build(layer, keys, values, self.method.choose(q[:, :, :1], keys, starts), self.rows)

    def end(self, starts: Tensor) -> None:
        """Set the counters of the rows that were built from the tokens before ``starts``."""
        self.cache.held.copy_(torch.where(self.rows, starts.clamp(max=self.cache.budget), self.cache.held))
        self.cache.newer.masked_fill_(self.rows, 0)


class RenewingProposer(Proposer):
    """A proposer that drafts over a partial cache and has it built anew in time."""

    renewal: Renewal | None = None

    def renew(self, method: PartialAttention, state: DecodeState, verifier: DecodeState) -> None:
        """Watch over the cache of ``state``; one that holds everything needs nothing."""
        if isinstance(state.cache, PartialCache):
            self.renewal = Renewal(method, state.cache, verifier, self.tree.depth)
            self.refreshes = True

    def refresh_due(self) -> bool:
        """See ``Proposer.refresh_due``."""
        return self.renewal is not None and self.renewal.due()

    def see_layer(self, layer: int, q: Tensor, state: DecodeState) -> None:
        """See ``Proposer.see_layer``."""
        if self.renewal is not None:
            self.renewal.see_layer(layer, q, state)

    def begin_renewal(self) -> None:
        """Note what to build, at the beginning of a step."""
        if self.renewal is not None and self.refreshing:
            self.renewal.begin()

    def end_renewal(self, verified: Verified) -> None:
        """Count what was built, before verified tokens are taken over."""
        if self.renewal is not None and self.refreshing:
            self.renewal.end(verified.starts)


def _chunk_means(keys: Tensor, stored: Tensor, chunk: int) -> Tensor:
    """Return the mean key of each chunk ``[B, Hkv, ceil(S / chunk), D]`` over the tokens that are stored ``[B, S]``."""
    missing = -keys.shape[2] % chunk
    inside = torch.nn.functional.pad(stored, (0, missing))
    kept = torch.where(stored[:, None, :, None], keys, 0).to(
        torch.float32 if keys.dtype != torch.float64 else keys.dtype
    )
    total = torch.nn.functional.pad(kept, (0, 0, 0, missing)).unflatten(2, (-1, chunk)).sum(dim=3)
    count = inside.unflatten(1, (-1, chunk)).sum(dim=2).clamp(min=1)
    return (total / count[:, None, :, None]).to(keys.dtype)
