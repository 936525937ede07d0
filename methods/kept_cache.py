"""A cache from which every KV head of every layer evicts tokens of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from longdecode.engine.kv_cache import CacheShape, KVCache, StepSlots, empty_pair, store_heads
from longdecode.engine.token_block import BlockHeads, write_tokens
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.layout import accumulator
from longdecode.kernels.page_minmax import PageBounds
from longdecode.methods.budgeted import Growth
from longdecode.methods.ring_cache import refuse_blocks


class KeptCache(KVCache):
    """Up to ``capacities[l]`` tokens per KV head of layer ``l``; each head of each row has a length of its own.

    ``keep`` sets the lengths of a layer. A row that no ``keep`` has cut holds its first ``prompt_tokens[l]`` tokens,
    fewer where ``growth`` says so of a ``growing`` layer. Once a layer is full, a new token replaces a victim.
    Growing layers are full at what the growth is at the row's length, or, where the cache ``grows`` no more after the
    prompt, at their capacity.

    By layer: ``k`` and ``v`` ``[B, Hkv, C, D]``, ``slot_positions`` ``[B, Hkv, C]`` int32, the positions of the stored
    tokens and, behind them, of those that will come to stand there, and ``scores`` ``[B, Hkv, C]`` float32, for the
    method. A method that evicts records the position of a token that replaced another (``record_newest``). Over all
    layers: ``lengths`` and ``victims`` ``[L, B, Hkv]`` int64; the method sets a layer's victims after it has read. Keys
    keep the rotation they came with.
    """

    protected: Tensor
    """``[B]`` int64, the first position that no head evicts after the step at hand; the method sets it."""

    def __init__(
        self, shape: CacheShape, capacities: Sequence[int], prompt_tokens: Sequence[int], growth: Growth | None = None,
        growing: Sequence[bool] = (), *, grows: bool = True,
    ):  # fmt: skip
        super().__init__(shape)
        self.growth, self.grows = growth, grows
        config = shape.config
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        self.slot_positions: list[Tensor] = []
        self.scores: list[Tensor] = []
        for capacity in capacities:
            heads = (shape.batch, config.num_kv_heads, capacity)
            k, v = empty_pair((*heads, config.head_dim), shape)
            self.k.append(k)
            self.v.append(v)
            self.slot_positions.append(torch.zeros(heads, device=shape.device, dtype=torch.int32))
            self.scores.append(torch.zeros(heads, device=shape.device, dtype=accumulator(shape.dtype)))
        self.capacities, self.prompt_tokens = (
            torch.tensor(tokens, device=shape.device)[:, None, None] for tokens in (capacities, prompt_tokens)
        )
        self.keeps_decoded = all(
            capacity >= min(shape.capacity, tokens + shape.decoded)
            for capacity, tokens in zip(capacities, prompt_tokens, strict=True)
        )
        self.growing = torch.tensor(growing or [False] * len(capacities), device=shape.device)[:, None, None]
        self.room = self.capacities
        size = (config.num_layers, shape.batch, config.num_kv_heads)
        self.lengths = torch.zeros(size, device=shape.device, dtype=torch.int64)
        self.victims = torch.zeros_like(self.lengths)

    def tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.tensors``."""
        yield from (*self.k, *self.v)

    def counters(self) -> Iterator[tuple[Tensor, int]]:
        """See ``KVCache.counters``."""
        yield (self.positions, 0)
        yield from ((counter, 1) for counter in (self.lengths, self.victims))
        yield from ((counter, 0) for counter in (*self.slot_positions, *self.scores))

    def begin_block(self, width: int, starts: Tensor | None, active: Tensor) -> None:
        """See ``KVCache.begin_block``."""
        refuse_blocks(self, width, starts)
        self.room = self._room()
        self.slot_mapping = torch.where(self.lengths < self.room, self.lengths, self.victims)
        self.kv_lengths = (self.lengths + 1).minimum(self.room)

    def append(self, layer: int, heads: BlockHeads, bounds: PageBounds | None = None, page_size: int = 0) -> Tensor:
        """See ``KVCache.append``."""
        slots = self.slot_mapping[layer][..., None]
        return store_heads(heads, self.k[layer], self.v[layer], slots, bounds, page_size)

    def record_newest(self, layer: int) -> None:
        """Record the position of the token that the step has stored, where it may have replaced another."""
        slots = self.slot_mapping[layer][..., None]
        self.slot_positions[layer].scatter_(2, slots, self.positions.int()[:, None, None].expand_as(slots))

    def attend(self, layer: int, q: Tensor, mask: Tensor | None, kv_tokens_read: Tensor) -> Tensor:
        """See ``KVCache.attend``."""
        return self.attend_with_lse(layer, q, kv_tokens_read)[0]

    def attend_with_lse(
        self, layer: int, q: Tensor, kv_tokens_read: Tensor, logits: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Attend as ``attend`` does; also return the log-sum-exp of the scores, ``[B, Hq, 1]``.

        Args:
            logits: ``[B, Hq, C]`` float32, which receives the scores that the read comes by.
        """
        return decode_attention(
            q, self.k[layer], self.v[layer], self.kv_lengths[layer], kv_tokens_read=kv_tokens_read, logits=logits
        )

    def fill_layer(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """See ``KVCache.fill_layer``; keeps the first tokens, for layers that keep all."""
        places = torch.arange(self.k[layer].shape[2], device=self.device)
        self.keep(layer, keys, values, places.expand(self.slot_positions[layer].shape), lengths)

    def keep(self, layer: int, keys: Tensor, values: Tensor, positions: Tensor, counts: Tensor) -> None:
        """Store chosen tokens of a densely prefilled layer, in which rows and heads may keep different numbers.

        The one place that sets the lengths of a cut layer; ``stand_at`` must have come before. A layer that has less
        room than is kept and decoded takes more.

        Args:
            keys: ``[B, Hkv, S, D]``; the slot of a token is its position.
            values: ``[B, Hkv, S, D]``.
            positions: ``[B, Hkv, N]`` int64, the tokens to store in ascending order, the valid ones of a head first.
            counts: ``[B]`` or ``[B, Hkv]`` int64, how many of them are valid; at most ``N`` are stored.
        """
        count = positions.shape[2]
        room = min(count + self.shape.decoded * self.keeps_decoded, self.shape.capacity)
        if room > self.k[layer].shape[2]:
            self._widen(layer, room)
        source = positions.clamp(max=keys.shape[2] - 1)
        index = source[..., None].expand(-1, -1, -1, keys.shape[3])
        for stored, dense in ((self.k[layer], keys), (self.v[layer], values)):
            stored[:, :, :count] = dense.gather(2, index)
        counts = (counts[:, None] if counts.dim() == 1 else counts).clamp(max=count).expand(positions.shape[:2])
        self.lengths[layer] = counts
        # A head fills up with the tokens that follow the prompt: their positions are known beforehand.
        place = torch.arange(self.k[layer].shape[2], device=self.device)
        told = (self.positions[:, None] - counts)[..., None] + place
        told[..., :count] = torch.where(place[:count] < counts[..., None], positions, told[..., :count])
        self.slot_positions[layer].copy_(told)

    def _widen(self, layer: int, capacity: int) -> None:
        """Give a layer that holds nothing yet room for ``capacity`` tokens a head."""
        config = self.config
        heads = (self.shape.batch, config.num_kv_heads, capacity)
        self.k[layer], self.v[layer] = empty_pair((*heads, config.head_dim), self.shape)
        self.slot_positions[layer] = self.slot_positions[layer].new_zeros(heads)
        self.scores[layer] = self.scores[layer].new_zeros(heads)
        self.capacities[layer] = capacity

    def stand_at(self, tokens: Tensor) -> None:
        """See ``KVCache.stand_at``; layers that ``keep`` cuts come after."""
        self.positions.copy_(tokens)
        kept = tokens[None, :, None].minimum(self.prompt_tokens)
        if self.growth is not None:
            kept = torch.where(self.growing, kept.minimum(self.growth.of(tokens)[:, None]), kept)
        self.lengths.copy_(kept.expand_as(self.lengths))

    def advance(self, counts: Tensor) -> None:
        """See ``KVCache.advance``."""
        super().advance(counts)
        self.lengths.copy_((self.lengths + counts[None, :, None]).minimum(self.room))

    def step_slots(self) -> Iterator[StepSlots]:
        """See ``KVCache.step_slots``."""
        heads = self.config.num_kv_heads
        rows = torch.arange(self.batch, device=self.device).repeat_interleave(heads)
        slots = torch.where(self.lengths < self._room(), self.lengths, self.victims)
        for layer, pair in enumerate(zip(self.k, self.v, strict=True)):
            for tensor in pair:
                yield StepSlots(tensor.flatten(0, 1), slots[layer].flatten(), rows)

    def takes_over(self, width: int) -> bool:
        """See ``KVCache.takes_over``: where no decoded token is ever dropped, which would need the method's scores."""
        return self.keeps_decoded

    def take_over(self, k: Tensor, v: Tensor, starts: Tensor, kept: Tensor) -> None:
        """See ``KVCache.take_over``."""
        place = torch.arange(k.shape[3], device=self.device)
        positions = starts[:, None] + place
        before = self.lengths - (self.positions - starts)[None, :, None]
        for layer, pair in enumerate(zip(self.k, self.v, strict=True)):
            slots = (before[layer][..., None] + place).clamp(max=pair[0].shape[2] - 1)
            taken = (place < kept[:, None])[:, None].expand_as(slots)
            for stored, new in zip(pair, (k[layer], v[layer]), strict=True):
                write_tokens(stored, slots, new, taken)
            told = torch.where(taken, positions.int()[:, None], self.slot_positions[layer].gather(2, slots))
            self.slot_positions[layer].scatter_(2, slots, told)
        self.lengths.copy_(before + kept[None, :, None])
        self.positions.copy_(starts + kept)

    def _room(self) -> Tensor:
        """Return how many tokens each head holds once the next one is stored, ``[L, B or 1, 1]`` int64."""
        if self.growth is None or not self.grows:
            return self.capacities
        grown = self.growth.of(self.positions + 1)[:, None].minimum(self.capacities)
        return torch.where(self.growing, grown, self.capacities)

    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """See ``KVCache.stored_kv``; in order of slots."""
        stored = int(self.lengths[layer, row, head])
        return self.k[layer][row, head, :stored], self.v[layer][row, head, :stored]


def latest_and_best(
    scores: Tensor, lengths: Tensor, recent: int | Tensor, total: int, limits: Tensor | None = None
) -> Tensor:
    """Choose each head's latest tokens and, of the others, those with the highest scores.

    Args:
        scores: ``[B, Hkv, S]`` by position; what stands past a row's length does not matter.
        lengths: ``[B]`` int64.
        recent: latest tokens that are always kept, for all rows or ``[B]``.
        total: tokens to choose, at most ``S``.
        limits: ``[B]`` or ``[B, Hkv]`` int64, tokens to choose, at most ``total``; ``total`` where left out.

    Returns:
        ``[B, Hkv, total]`` int64 positions in ascending order; rows shorter than that hold theirs first.
    """
    places = torch.arange(scores.shape[2], device=scores.device)
    length = lengths[:, None, None]
    latest = recent[:, None, None] if isinstance(recent, Tensor) else recent
    ranked = torch.where(places >= length - latest, torch.inf, scores)
    ranked = torch.where(places < length, ranked, -torch.inf)
    # Stable: of equal scores the earlier token is kept, however wide the cache is.
    best = ranked.sort(dim=2, descending=True, stable=True).indices[..., :total]
    if limits is not None:
        # What a row has no room for goes behind what it keeps.
        limits = limits[:, None, None] if limits.dim() == 1 else limits[..., None]
        best = torch.where(torch.arange(total, device=best.device) < limits, best, scores.shape[2])
    return best.sort(dim=2).values
