"""The cache of ShadowKV: low-rank keys, landmarks and outliers on the device, values where they are put."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from longdecode.engine.host_memory import HostBuffer
from longdecode.engine.kv_cache import CacheShape, KVCache, StepSlots, empty_pair, store_heads
from longdecode.engine.rope import inverse_frequencies
from longdecode.engine.token_block import BlockHeads
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.host_fetch.naive import seen_from
from longdecode.kernels.layout import accumulator
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.rope import rotate
from longdecode.methods.ring_cache import refuse_blocks


@dataclass(frozen=True, slots=True)
class ShadowPlan:
    """Chunks of ``chunk`` tokens: read by score, kept as outliers, latest of the prompt; ``rank`` of the keys."""

    chunk: int
    sparse: int
    outliers: int
    local: int
    rank: int


@dataclass(slots=True)
class ShadowLayer:
    """One layer's prompt.

    ``factors`` ``[B, S, r]`` times ``basis`` ``[B, Hkv, r, D]`` are the keys before their rotation. ``chunks``
    ``[B, Hkv, C]`` int64 are the chunks that are no outliers, in order, ``landmarks`` ``[B, Hkv, C, D]`` the means of
    their rotated keys. ``outlier_k`` and ``outlier_v`` are ``[B, Hkv, outliers * chunk, D]``, ``recent_k`` and
    ``recent_v`` ``[B, Hkv, R, D]``: the end of the prompt and all that was generated.
    """

    factors: Tensor
    basis: Tensor
    chunks: Tensor
    landmarks: Tensor
    outlier_k: Tensor
    outlier_v: Tensor
    recent_k: Tensor
    recent_v: Tensor


class ShadowCache(KVCache):
    """Prompt keys of low rank, prompt values in host memory or on the device, and exact tokens around them.

    Args:
        shape: sequences to hold.
        plan: sizes.
        offload: put the prompt's values in pinned host memory.
    """

    def __init__(self, shape: CacheShape, plan: ShadowPlan, offload: bool):
        super().__init__(shape)
        self.plan, config = plan, shape.config
        layers, heads, dim = config.num_layers, config.num_kv_heads, config.head_dim
        self.most_chunks = shape.capacity // plan.chunk
        self.values_shape = torch.Size((layers, shape.batch, heads, shape.capacity, dim))
        self.host: HostBuffer | None = None
        self.resident: Tensor | None = None
        if offload:
            self.host = HostBuffer(self.values_shape.numel() * shape.dtype.itemsize, shape.device)
        else:
            self.resident = torch.empty(self.values_shape, device=shape.device, dtype=shape.dtype)
        self.layers = [self._empty_layer() for _ in range(layers)]
        self.frequencies = inverse_frequencies(config)[0].to(shape.device)
        self.prompts = torch.zeros_like(self.positions)
        self.kept_outliers = torch.zeros_like(self.positions)

    def _empty_layer(self) -> ShadowLayer:
        shape, plan, config = self.shape, self.plan, self.shape.config
        heads, dim = (shape.batch, config.num_kv_heads), config.head_dim
        recent = min(shape.capacity, (plan.local + 1) * plan.chunk + shape.decoded)
        make = partial(torch.empty, device=shape.device, dtype=shape.dtype)
        return ShadowLayer(
            make((shape.batch, shape.capacity, plan.rank)),
            make((*heads, plan.rank, dim)),
            torch.arange(self.most_chunks, device=shape.device).repeat(*heads, 1),
            make((*heads, self.most_chunks, dim)),
            *empty_pair((*heads, plan.outliers * plan.chunk, dim), shape),
            *empty_pair((*heads, recent, dim), shape),
        )

    @property
    def values(self) -> Tensor:
        """Values of the prompt ``[L, B, Hkv, S, D]``; a view made anew, since a copy has memory of its own."""
        if self.resident is not None:
            return self.resident
        assert self.host is not None
        return self.host.view(self.shape.dtype, self.values_shape)

    @property
    def scored(self) -> Tensor:
        """Chunks that a query may choose among, ``[B]`` int64: those before the local ones, less the outliers."""
        return (self.prompts // self.plan.chunk - self.plan.local).clamp(min=0) - self.kept_outliers

    @property
    def recent_start(self) -> Tensor:
        """Position of the first recent token, ``[B]`` int64."""
        return (self.prompts // self.plan.chunk - self.plan.local).clamp(min=0) * self.plan.chunk

    def tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.tensors``."""
        for own in self.layers:
            yield from (own.factors, own.basis, own.landmarks, own.outlier_k, own.outlier_v, own.recent_k, own.recent_v)
        if self.host is None:
            yield self.values

    def host_tensors(self) -> Iterator[Tensor]:
        """See ``KVCache.host_tensors``."""
        if self.host is not None:
            yield self.values

    def counters(self) -> Iterator[tuple[Tensor, int]]:
        """See ``KVCache.counters``."""
        yield (self.positions, 0)

    def begin_block(self, width: int, starts: Tensor | None, active: Tensor) -> None:
        """See ``KVCache.begin_block``."""
        refuse_blocks(self, width, starts)
        room = self.layers[0].recent_k.shape[2]
        self.slot_mapping = (self.positions - self.recent_start).clamp(max=room - 1)
        self.recent_lengths = self.slot_mapping + 1

    def append(self, layer: int, heads: BlockHeads, bounds: PageBounds | None = None, page_size: int = 0) -> Tensor:
        """See ``KVCache.append``."""
        own = self.layers[layer]
        return store_heads(heads, own.recent_k, own.recent_v, self.slot_mapping, bounds, page_size)

    def attend(self, layer: int, q: Tensor, mask: Tensor | None, kv_tokens_read: Tensor) -> Tensor:
        """See ``KVCache.attend``: the exact tokens alone; what else a step reads the method chooses."""
        return self.attend_recent(layer, q, kv_tokens_read)[0]

    def attend_recent(self, layer: int, q: Tensor, kv_tokens_read: Tensor) -> tuple[Tensor, Tensor]:
        """Attend to the end of the prompt and the generated tokens; output and log-sum-exp."""
        own = self.layers[layer]
        return decode_attention(q, own.recent_k, own.recent_v, self.recent_lengths, kv_tokens_read=kv_tokens_read)

    def attend_outliers(self, layer: int, q: Tensor, kv_tokens_read: Tensor) -> tuple[Tensor, Tensor]:
        """Attend to the outliers; output and log-sum-exp."""
        own, lengths = self.layers[layer], self.kept_outliers * self.plan.chunk
        return decode_attention(q, own.outlier_k, own.outlier_v, lengths, kv_tokens_read=kv_tokens_read)

    def rebuild(self, layer: int, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotated keys and values of chosen chunks, ``[B, Hkv, K * chunk, D]`` each.

        Args:
            places: ``[B, Hkv, K]`` int64, entries of ``chunks``.
        """
        own, size = self.layers[layer], self.plan.chunk
        inside = torch.arange(size, device=places.device)
        tokens = (own.chunks.gather(2, places)[..., None] * size + inside).flatten(2)
        batch, heads, count = tokens.shape
        rank = own.factors.shape[2]
        rows = own.factors.gather(1, tokens.flatten(1)[..., None].expand(-1, -1, rank)).view(batch, heads, count, rank)
        keys = (rows.to(accumulator(rows.dtype)) @ own.basis.to(accumulator(rows.dtype))).to(rows.dtype)
        keys = self._turn(keys.flatten(0, 1)[:, None], tokens.flatten(0, 1), 1.0).view(keys.shape)
        values = seen_from(self.values[layer], places.device)
        return keys, values.gather(2, tokens[..., None].expand(-1, -1, -1, values.shape[3]))

    def fill_layer(self, layer: int, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        """See ``KVCache.fill_layer``: factorise the keys, keep landmarks, outliers and the end, put the values away."""
        plan, own, (batch, heads, tokens, dim) = self.plan, self.layers[layer], keys.shape
        self.prompts.copy_(lengths)
        count = (lengths // plan.chunk - plan.local).clamp(min=0)
        self.kept_outliers.copy_(count.clamp(max=plan.outliers))
        self.values[layer, :, :, :tokens].copy_(values)
        self._factorise(own, keys, lengths)
        place = torch.arange(own.recent_k.shape[2], device=keys.device)
        recent = (self.recent_start[:, None] + place).clamp(max=tokens - 1)
        index = recent[:, None, :, None].expand(batch, heads, -1, dim)
        own.recent_k.copy_(keys.gather(2, index))
        own.recent_v.copy_(values.gather(2, index))

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
        own.outlier_k[:, :, : some * plan.chunk] = keys.gather(2, kept)
        own.outlier_v[:, :, : some * plan.chunk] = values.gather(2, kept)
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
        wide = accumulator(x.dtype)
        half = positions[..., None].to(wide) * self.frequencies.to(wide)
        angles = torch.cat((half, half), dim=-1)
        return rotate(x, angles.cos(), sign * angles.sin())

    def stand_at(self, tokens: Tensor) -> None:
        """See ``KVCache.stand_at``."""
        self.positions.copy_(tokens)
        self.prompts.copy_(tokens)
        self.kept_outliers.copy_((tokens // self.plan.chunk - self.plan.local).clamp(min=0, max=self.plan.outliers))

    def step_slots(self) -> Iterator[StepSlots]:
        """See ``KVCache.step_slots``; a rejected token is forgotten by its position alone."""
        yield from ()

    def stored_kv(self, layer: int, row: int, head: int) -> tuple[Tensor, Tensor]:
        """See ``KVCache.stored_kv``: the exact tokens, recent ones, then outliers."""
        own = self.layers[layer]
        recent = int(self.positions[row] - self.recent_start[row])
        outliers = int(self.kept_outliers[row]) * self.plan.chunk
        parts = (own.recent_k, own.outlier_k), (own.recent_v, own.outlier_v)
        keys, values = (torch.cat((a[row, head, :recent], b[row, head, :outliers])) for a, b in parts)
        return keys, values
