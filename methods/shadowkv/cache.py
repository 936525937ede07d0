"""The cache of ShadowKV: low-rank keys, landmarks, outliers and slots on the device, values where they are put."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.host_memory import HostBuffer
from longdecode.engine.kv_cache import CacheShape, KVCache, Undo, empty_pair, store_heads
from longdecode.engine.rope import inverse_frequencies
from longdecode.engine.token_block import BlockHeads
from longdecode.kernels.block_residency import BlockQueue
from longdecode.kernels.chunk_residency import ChunkResidents, claim_chunks
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.host_fetch.naive import seen_from
from longdecode.kernels.layout import accumulator
from longdecode.kernels.low_rank_fetch import LowRankPrompt, fetch_chunks
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.rope import rotate
from longdecode.kernels.sparse_decode_attention import sparse_decode_attention
from longdecode.methods.ring_cache import refuse_blocks


@dataclass(frozen=True, slots=True)
class ShadowPlan:
    """Chunks of ``chunk`` tokens: read by score, kept as outliers, latest of the prompt; ``rank`` of the keys."""

    chunk: int
    sparse: int
    outliers: int
    local: int
    rank: int

    @property
    def exact_at(self) -> int:
        """Place of the first outlier: the slots of chosen chunks come before."""
        return self.sparse * self.chunk

    @property
    def recent_at(self) -> int:
        """Place of the first recent token."""
        return (self.sparse + self.outliers) * self.chunk


@dataclass(slots=True)
class ShadowLayer:
    """One layer's prompt, and what attention reads.

    ``factors`` ``[B, S, r]`` times ``basis`` ``[B, Hkv, r, D]`` are the keys before their rotation. ``chunks``
    ``[B, Hkv, C]`` int64 are the chunks that are no outliers, in order, ``landmarks`` ``[B, Hkv, C, D]`` the means of
    their rotated keys. ``k`` and ``v`` ``[B, Hkv, T, D]`` hold, one after the other, the slots of ``sparse`` chosen
    chunks, the outliers, and the recent tokens: the end of the prompt and all that was generated.
    """

    factors: Tensor
    basis: Tensor
    chunks: Tensor
    landmarks: Tensor
    k: Tensor
    v: Tensor


class ShadowCache(KVCache):
    """Prompt keys of low rank, prompt values in host memory or on the device, and exact tokens around them.

    A step fetches the chosen chunks that no slot holds: their keys are rebuilt and their values copied
    (``fetch_chunks``). Those that stay chosen stay where they are. Slots hold chunks of the prompt alone, which does
    not change, so that which of them are at hand changes no result and ``undo`` leaves them. It is the same wherever
    the values lie.

    Integers (which chunk is where) and the table of angles, one for all rows, are not counted as keys and values.

    Args:
        shape: sequences to hold.
        plan: sizes.
        offload: put the prompt's values in pinned host memory.
    """

    def __init__(self, shape: CacheShape, plan: ShadowPlan, offload: bool):
        super().__init__(shape)
        self.plan, config, device = plan, shape.config, shape.device
        layers, heads, dim = config.num_layers, config.num_kv_heads, config.head_dim
        self.most_chunks = max(1, shape.capacity // plan.chunk)  # a text shorter than a chunk scores none
        self.recent_room = min(shape.capacity, (plan.local + 1) * plan.chunk + shape.decoded)
        self.values_shape = torch.Size((layers, shape.batch, heads, shape.capacity, dim))
        self.host: HostBuffer | None = None
        self.resident: Tensor | None = None
        if offload:
            self.host = HostBuffer(self.values_shape.numel() * shape.dtype.itemsize, device)
        else:
            self.resident = torch.empty(self.values_shape, device=device, dtype=shape.dtype)
        self.layers = [self._empty_layer() for _ in range(layers)]
        wide = accumulator(shape.dtype)
        positions = torch.arange(shape.capacity, device=device, dtype=wide)
        angles = positions[:, None] * inverse_frequencies(config)[0].to(device, wide)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.prompts, self.kept_outliers, self.scored, self.recent_start = (
            torch.zeros_like(self.positions) for _ in range(4)
        )
        integers = partial(torch.full, device=device, dtype=torch.int32, fill_value=-1)
        self.held = integers((layers, shape.batch, heads, plan.sparse + 1))
        self.slot_of = integers((layers, shape.batch, heads, self.most_chunks + 1))
        self.fetched = torch.zeros(layers, shape.batch, device=device, dtype=torch.int64)
        self.queued = torch.zeros(2, shape.batch * heads * plan.sparse + 1, device=device, dtype=torch.int64)
        self.counts = torch.zeros(layers, 1, device=device, dtype=torch.int64)
        width = plan.sparse + plan.outliers - (-self.recent_room // plan.chunk)
        self.listed = torch.zeros(shape.batch, heads, width, device=device, dtype=torch.int64)

    def _empty_layer(self) -> ShadowLayer:
        shape, plan, config = self.shape, self.plan, self.shape.config
        heads, dim = (shape.batch, config.num_kv_heads), config.head_dim
        make = partial(torch.empty, device=shape.device, dtype=shape.dtype)
        layer = ShadowLayer(
            make((shape.batch, shape.capacity, plan.rank)),
            make((*heads, plan.rank, dim)),
            torch.arange(self.most_chunks, device=shape.device).repeat(*heads, 1),
            make((*heads, self.most_chunks, dim)),
            *empty_pair((*heads, plan.recent_at + self.recent_room, dim), shape),
        )
        for tensor in (layer.k, layer.v):
            # Where a list is short, plain torch gathers from slot 0 what it then weighs with zero.
            tensor[:, :, : plan.exact_at] = 0.0
        return layer

    @property
    def values(self) -> Tensor:
        """Values of the prompt ``[L, B, Hkv, S, D]``; a view made anew, since a copy has memory of its own."""
        if self.resident is not None:
            return self.resident
        assert self.host is not None
        return self.host.view(self.shape.dtype, self.values_shape)

    @property
    def fetched_bytes(self) -> int:
        """Bytes that came from host memory so far. Waits for the device."""
        chunk = self.plan.chunk * self.config.head_dim * self.shape.dtype.itemsize
        return 0 if self.host is None else int(self.fetched.sum()) * chunk

    def row_state(self) -> dict[str, Any]:
        """See ``KVCache.row_state``; the queue is a step's own."""
        others = ("host", "resident", "values_shape", "queued", "counts")
        kept = {name: part for name, part in super().row_state().items() if name not in others}
        return kept | {"values": self.values}

    def tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.tensors``."""
        for own in self.layers:
            yield from (own.factors, own.basis, own.landmarks, own.k, own.v)
        if self.host is None:
            yield self.values

    def host_tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.host_tensors``."""
        if self.host is not None:
            yield self.values

    def begin_block(self, width: int, starts: Tensor | None, active: Tensor) -> None:
        """See ``KVCache.begin_block``; lists what a row reads after its chosen chunks: outliers, then recent tokens."""
        refuse_blocks(self, width, starts)
        plan = self.plan
        recent = (self.positions - self.recent_start).clamp(max=self.recent_room - 1)
        self.slot_mapping = recent + plan.recent_at
        self.kv_lengths = self.slot_mapping + 1
        self.recent_lengths = recent + 1
        self.counts.zero_()
        after = torch.arange(self.listed.shape[2], device=self.device) - self.scored.clamp(max=plan.sparse)[:, None]
        outliers = self.kept_outliers[:, None]
        exact = torch.where(after < outliers, after, after - outliers + plan.outliers)
        self.listed.copy_((exact + plan.sparse)[:, None])
        self.exact_blocks = (self.kept_outliers + recent // plan.chunk + 1)[:, None]

    def append(self, layer: int, heads: BlockHeads, bounds: PageBounds | None = None, page_size: int = 0) -> Tensor:
        """See ``KVCache.append``."""
        own = self.layers[layer]
        return store_heads(heads, own.k, own.v, self.slot_mapping, bounds, page_size)

    def attend(self, layer: int, q: Tensor, mask: Tensor | None, kv_tokens_read: Tensor) -> Tensor:
        """See ``KVCache.attend``: the recent tokens alone; what else a step reads the method chooses."""
        k, v = (part[:, :, self.plan.recent_at :] for part in (self.layers[layer].k, self.layers[layer].v))
        return decode_attention(q, k, v, self.recent_lengths, kv_tokens_read=kv_tokens_read)[0]

    def attend_chosen(self, layer: int, q: Tensor, indices: Tensor, counts: Tensor, kv_tokens_read: Tensor) -> Tensor:
        """Fetch the chosen chunks that are not at hand; attend to all chosen ones and all exact tokens.

        Args:
            q: ``[B, Hq, 1, D]``.
            indices: ``[B, Hkv, K]`` int64, chunks of the prompt that are scored, none twice.
            counts: ``[B, Hkv]`` int64, valid leading entries: all that are scored, or ``sparse``.
            kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over KV heads, are added.

        Returns:
            ``[B, Hq, 1, D]``.
        """
        own = self.layers[layer]
        queue = BlockQueue(self.queued[0], self.queued[1], self.counts[layer])
        residents = ChunkResidents(self.held[layer], self.slot_of[layer], self.fetched[layer], own.k)
        claim_chunks(indices, counts, residents, queue, self.listed)
        slot_k, slot_v = (part[:, :, : self.plan.exact_at] for part in (own.k, own.v))
        fetch_chunks(self.low_rank(layer), slot_k, slot_v, queue)
        return sparse_decode_attention(
            q, own.k, own.v, self.listed, counts + self.exact_blocks, block_size=self.plan.chunk,
            kv_lengths=self.kv_lengths, kv_tokens_read=kv_tokens_read,
        )[0]  # fmt: skip

    def low_rank(self, layer: int) -> LowRankPrompt:
        """Return a layer's prompt as ``fetch_chunks`` takes it."""
        own = self.layers[layer]
        return LowRankPrompt(own.factors, own.basis, self.cos, self.sin, self.values[layer], self.plan.chunk)

    def forget(self) -> None:
        """Count no chosen chunk as being on the device."""
        self.held.fill_(-1)
        self.slot_of.fill_(-1)

    def fill_layer(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """See ``KVCache.fill_layer``: factorise the keys, keep landmarks, outliers and the end, put the values away."""
        plan, own, (batch, heads, tokens, dim) = self.plan, self.layers[layer], keys.shape
        self._set_prompts(lengths)
        count = self.recent_start // plan.chunk
        self.values[layer, :, :, :tokens].copy_(values)
        self._factorise(own, keys, lengths)
        self.held[layer], self.slot_of[layer] = -1, -1
        place = torch.arange(self.recent_room, device=keys.device)
        recent = (self.recent_start[:, None] + place).clamp(max=tokens - 1)
        index = recent[:, None, :, None].expand(batch, heads, -1, dim)
        for into, dense in ((own.k, keys), (own.v, values)):
            into[:, :, plan.recent_at :] = dense.gather(2, index)

        whole = tokens // plan.chunk
        if whole == 0:
            return
        chunked = keys[:, :, : whole * plan.chunk].unflatten(2, (whole, plan.chunk)).to(accumulator(keys.dtype))
        means = chunked.mean(dim=3)
        likeness = torch.nn.functional.cosine_similarity(chunked, means[:, :, :, None], dim=-1).amin(dim=-1)
        scored = torch.arange(whole, device=keys.device) < count[:, None]
        # Outliers first, the least alike of them; then chunks in order; those that no query scores last.
        ranks = torch.where(scored[:, None], likeness, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
        outlier = (ranks < plan.outliers) & scored[:, None]
        order = torch.where(outlier, 0, torch.where(scored[:, None], 1, 2)).argsort(dim=-1, stable=True)
        some = min(plan.outliers, whole)
        inside = torch.arange(plan.chunk, device=keys.device)
        kept = (order[..., :some, None] * plan.chunk + inside).flatten(2)[..., None].expand(-1, -1, -1, dim)
        for into, dense in ((own.k, keys), (own.v, values)):
            into[:, :, plan.exact_at : plan.exact_at + some * plan.chunk] = dense.gather(2, kept)
        place = torch.arange(whole, device=keys.device) + self.kept_outliers[:, None]
        own.chunks[:, :, :whole] = order.gather(2, place.clamp(max=whole - 1)[:, None].expand(order.shape))
        ordered = own.chunks[:, :, :whole, None].expand(-1, -1, -1, dim)
        own.landmarks[:, :, :whole] = means.gather(2, ordered).to(own.landmarks.dtype)

    def _factorise(self, own: ShadowLayer, keys: Tensor, lengths: Tensor) -> None:
        """Write the best factors of the keys before rotation, all KV heads joined, from the eigenvectors of ``K^T K``.

        They span what a singular value decomposition of the keys keeps, without one over the length of the prompt.
        """
        batch, heads, tokens, dim = keys.shape
        positions = torch.arange(tokens, device=keys.device).expand(batch, tokens)
        stored = (positions < lengths[:, None])[:, None, :, None]
        plain = self._turn(torch.where(stored, keys, 0.0), positions, -1.0)
        joined = plain.transpose(1, 2).flatten(2).to(accumulator(keys.dtype))
        _, vectors = torch.linalg.eigh(joined.transpose(1, 2) @ joined)
        basis = vectors[..., -own.factors.shape[2] :]
        own.factors[:, :tokens] = (joined @ basis).to(own.factors.dtype)
        own.basis.copy_(basis.transpose(1, 2).unflatten(2, (heads, dim)).transpose(1, 2).to(own.basis.dtype))

    def _turn(self, x: Tensor, positions: Tensor, sign: float) -> Tensor:
        """Rotate ``x`` ``[N, H, T, D]`` to positions ``[N, T]``, or back with a sign of -1."""
        cos, sin = (torch.cat((half, half), dim=-1)[positions] for half in (self.cos, self.sin))
        return rotate(x, cos, sign * sin)

    def stand_at(self, tokens: Tensor) -> None:
        """See ``KVCache.stand_at``; no chosen chunk counts as being on the device."""
        self.positions.copy_(tokens)
        self._set_prompts(tokens)
        self.forget()

    def _before_window(self, tokens: Tensor) -> Tensor:
        """Return by length ``[B]`` how many chunks come before the local ones."""
        return (tokens // self.plan.chunk - self.plan.local).clamp(min=0)

    def _set_prompts(self, tokens: Tensor) -> None:
        """Note the prompts' lengths ``[B]``, and what follows from them.

        ``scored``: chunks that a query may choose among, those before the local ones, less the outliers.
        ``recent_start``: position of the first recent token.
        """
        before = self._before_window(tokens)
        self.prompts.copy_(tokens)
        self.kept_outliers.copy_(before.clamp(max=self.plan.outliers))
        self.scored.copy_(before - self.kept_outliers)
        self.recent_start.copy_(before * self.plan.chunk)

    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """See ``KVCache.stored_kv``: the exact tokens, recent ones, then outliers."""
        own, plan = self.layers[layer], self.plan
        recent = int(self.positions[row] - self.recent_start[row])
        outliers = int(self.kept_outliers[row]) * plan.chunk
        keys, values = (
            torch.cat((part[plan.recent_at :][:recent], part[plan.exact_at :][:outliers]))
            for part in (own.k[row, head], own.v[row, head])
        )
        return keys, values


class LongShadowCache(ShadowCache):
    """The cache for long generations: chunks that leave the window of local ones are scored, generated ones too.

    At ``n`` tokens, the current one included, the window begins where it would after a prompt of ``n``. Each step
    projects its key, before rotation, on the prompt's ``basis``, puts its value with the prompt's, and writes the
    landmark of the oldest chunk of the window, to be scored once the window has passed it. Outliers are chosen from
    the prompt alone. Exact keys and values that the window has passed stay where they were written, and are not read.

    No row waits for another, and nothing is moved: a step that is taken back has written what the next one rewrites.
    """

    def __init__(self, shape: CacheShape, plan: ShadowPlan, offload: bool):
        super().__init__(shape, plan, offload)
        self.listed = self.listed.new_zeros(*self.listed.shape[:2], plan.sparse + plan.outliers + plan.local + 1)

    def begin_block(self, width: int, starts: Tensor | None, active: Tensor) -> None:
        """See ``KVCache.begin_block``; lists the window in place of all recent tokens."""
        plan = self.plan
        self.newest = self.positions.clamp(max=self.shape.capacity - 1)[:, None]
        before = self._before_window(self.newest[:, 0] + 1)
        self.scored.copy_(before - self.kept_outliers)
        super().begin_block(width, starts, active)
        passed = before - self.recent_start // plan.chunk
        self.listed += torch.where(self.listed < plan.sparse + plan.outliers, 0, passed[:, None, None])
        self.exact_blocks -= passed[:, None]
        place = plan.recent_at + passed[:, None] * plan.chunk + torch.arange(plan.chunk, device=self.device)
        # Slots of a chunk; where a row has no whole one yet, what they hold is written over before it is scored.
        self.oldest = place.clamp(max=plan.recent_at + self.recent_room - 1)

    def append(self, layer: int, heads: BlockHeads, bounds: PageBounds | None = None, page_size: int = 0) -> Tensor:
        """See ``KVCache.append``; keeps the token's factors and value, and the landmark of the window's first chunk."""
        q = super().append(layer, heads, bounds, page_size)
        own, wide = self.layers[layer], accumulator(self.shape.dtype)
        one = (self.batch, self.config.num_kv_heads, 1, self.config.head_dim)
        stored = self.slot_mapping[:, None, None, None].expand(one)
        plain = self._turn(own.k.gather(2, stored), self.newest, -1.0).to(wide)
        factors = (plain @ own.basis.to(wide).transpose(2, 3)).sum(dim=1).to(own.factors.dtype)
        own.factors.scatter_(1, self.newest[..., None].expand(factors.shape), factors)
        store = seen_from(self.values[layer], self.device)
        store.scatter_(2, self.newest[:, None, :, None].expand(one), own.v.gather(2, stored))
        keys = own.k.gather(2, self.oldest[:, None, :, None].expand(*one[:2], self.plan.chunk, one[3]))
        landmark = keys.to(wide).mean(dim=2, keepdim=True).to(own.landmarks.dtype)
        own.landmarks.scatter_(2, self.scored[:, None, None, None].expand(one), landmark)
        return q

    def fill_layer(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """See ``KVCache.fill_layer``; chunks after those that the prompt has scored follow in order."""
        super().fill_layer(layer, keys, values, lengths)
        place, own = torch.arange(self.most_chunks, device=self.device), self.layers[layer]
        following = (place + self.kept_outliers[:, None]).clamp(max=self.most_chunks - 1)
        own.chunks.copy_(torch.where((place < self.scored[:, None])[:, None], own.chunks, following[:, None]))

    def undo(self, saved: Undo, rows: Tensor) -> None:
        """See ``KVCache.undo``; chunks that are back in the window count no more as being on the device."""
        super().undo(saved, rows)
        before = self._before_window(self.positions)[:, None]
        back = torch.arange(self.most_chunks + 1, device=self.device) >= before
        self.slot_of.masked_fill_(back[:, None], -1)
        self.held.masked_fill_(self.held >= before[..., None], -1)
