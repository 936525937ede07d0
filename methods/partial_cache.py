"""A cache of the tokens that matter most to one query, whose least important slots new tokens take."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache, empty_pair, store_heads
from longdecode.engine.token_block import BlockHeads, write_tokens
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.token_move import PartialSlots, fill_tokens
from longdecode.kernels.topk_select.ranking import rank


class PartialCache(KVCache):
    """``budget`` tokens per KV head of every layer, and ``scratch`` slots for drafts, which go when they are verified.

    ``k`` and ``v`` are ``[L, B, Hkv, budget + scratch, D]``: the tokens chosen when the cache was built, the most
    important first, each KV head's own. Token ``i`` verified since then fills the next free slot and, where none is
    left, slot ``budget - 1 - i``, so that new tokens take the place of the least important ones. The first ``sinks``
    slots are never taken: the cache is built anew before that.

    ``length`` ``[B]`` are the tokens verified, ``held`` those chosen at the last build, ``newer`` those since.
    """

    def __init__(self, shape: CacheShape, budget: int, sinks: int, scratch: int):
        super().__init__(shape)
        config = shape.config
        self.budget, self.sinks = budget, sinks
        size = (config.num_layers, shape.batch, config.num_kv_heads, budget + scratch, config.head_dim)
        self.k, self.v = empty_pair(size, shape)
        self.length = torch.zeros_like(self.positions)
        self.held = torch.zeros_like(self.positions)
        self.newer = torch.zeros_like(self.positions)

    @property
    def room(self) -> int:
        """Verified tokens that the cache takes before it must be built anew."""
        return self.budget - self.sinks

    def tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.tensors``."""
        yield from (self.k, self.v)

    def counters(self) -> Iterator[tuple[Tensor, int]]:
        """See ``KVCache.counters``."""
        yield from ((counter, 0) for counter in (self.positions, self.length, self.held, self.newer))

    def begin_block(self, width: int, starts: Tensor | None, active: Tensor) -> None:
        """See ``KVCache.begin_block``; drafts lie behind the verified tokens."""
        if starts is not None:
            raise ValueError("a PartialCache stores drafts where they follow, not from given slots on")
        first = (self.held + self.newer).clamp(max=self.budget) + self.positions - self.length
        slots = (first[:, None] + torch.arange(width, device=self.device)).clamp(max=self.k.shape[3] - 1)
        self.slot_mapping = slots if width > 1 else slots[:, 0]
        self.kv_lengths = (first + width).clamp(max=self.k.shape[3])

    def append(self, layer: int, heads: BlockHeads, bounds: PageBounds | None = None, page_size: int = 0) -> Tensor:
        """See ``KVCache.append``."""
        return store_heads(heads, self.k[layer], self.v[layer], self.slot_mapping, bounds, page_size)

    def attend(self, layer: int, q: Tensor, mask: Tensor | None, kv_tokens_read: Tensor) -> Tensor:
        """See ``KVCache.attend``."""
        return decode_attention(
            q, self.k[layer], self.v[layer], self.kv_lengths, mask=mask, kv_tokens_read=kv_tokens_read
        )[0]

    def build(self, layer: int, keys: Tensor, values: Tensor, positions: Tensor, rows: Tensor | None = None) -> None:
        """Store the chosen tokens of a dense layer.

        Args:
            keys: ``[B, Hkv, S, D]``; the slot of a token is its position.
            values: ``[B, Hkv, S, D]``.
            positions: ``[B, Hkv, N]`` int64, at most ``budget`` tokens, the most important first.
            rows: ``[B]`` bool, rows that are built; all where left out.
        """
        index = positions[..., None].expand(-1, -1, -1, keys.shape[3])
        for stored, dense in ((self.k[layer], keys), (self.v[layer], values)):
            chosen, place = dense.gather(2, index), stored[:, :, : positions.shape[2]]
            place.copy_(chosen if rows is None else torch.where(rows[:, None, None, None], chosen, place))

    def fill_layer(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """See ``KVCache.fill_layer``; keeps the first tokens."""
        tokens = min(self.budget, keys.shape[2])
        first = torch.arange(tokens, device=self.device).expand(*keys.shape[:2], tokens)
        self.build(layer, keys, values, first)

    def stand_at(self, tokens: Tensor) -> None:
        """See ``KVCache.stand_at``."""
        for counter in (self.positions, self.length):
            counter.copy_(tokens)
        self.held.copy_(tokens.clamp(max=self.budget))
        self.newer.zero_()

    def takes_over(self, width: int) -> bool:
        """See ``KVCache.takes_over``."""
        return True

    def take_over(self, k: Tensor, v: Tensor, starts: Tensor, kept: Tensor) -> None:
        """See ``KVCache.take_over``."""
        taken = torch.arange(k.shape[3], device=self.device) < kept[:, None]
        slots, taken = (part[None, :, None].expand(k.shape[:4]) for part in (self._next.slots(k.shape[3]), taken))
        write_tokens(self.k, slots, k, taken)
        write_tokens(self.v, slots, v, taken)
        self._stand_after(starts, kept)

    def take_over_from(self, dense: DenseCache, starts: Tensor, kept: Tensor, width: int) -> None:
        """Take over as ``take_over``: the first ``kept`` of ``width`` tokens of a dense cache, from ``starts`` on."""
        fill_tokens(dense.k, dense.v, starts, kept, width, self._next)
        self._stand_after(starts, kept)

    @property
    def _next(self) -> PartialSlots:
        return PartialSlots(self.k, self.v, self.held, self.newer, self.budget)

    def _stand_after(self, starts: Tensor, kept: Tensor) -> None:
        self.newer += kept
        torch.add(starts, kept, out=self.length)
        self.positions.copy_(self.length)

    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """See ``KVCache.stored_kv``; verified tokens, in order of slots."""
        stored = min(int(self.held[row] + self.newer[row]), self.budget)
        return self.k[layer, row, head, :stored], self.v[layer, row, head, :stored]


def most_important(scores: Tensor, lengths: Tensor, budget: int, sinks: int) -> Tensor:
    """Choose the first ``sinks`` tokens and, of the others, those with the highest scores.

    Args:
        scores: ``[B, Hkv, S]`` by position; what stands past a row's length does not matter.
        lengths: ``[B]`` int64.
        budget: tokens to choose.
        sinks: first tokens that are always chosen.

    Returns:
        ``[B, Hkv, min(budget, S)]`` int64 positions: the sinks, then by descending score; the valid ones first.
    """
    return rank(scores, lengths, torch.full_like(lengths, sinks), torch.zeros_like(lengths), budget)
