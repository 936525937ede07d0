"""Dense prefill: the state that a prompt's block runs in, and observers of its queries and keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache, empty_pair
from longdecode.engine.token_block import BlockHeads, Piece, Stream, TokenBlock
from longdecode.kernels.rms_norm import rms_norm
from longdecode.kernels.rope import apply_rope

if TYPE_CHECKING:
    from longdecode.engine.attention import AttentionMethod

Observed = Mapping[str, Sequence[Tensor]]
"""By observer key, one tensor per layer."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One piece of a layer, as observers see it.

    ``rows`` are the batch rows of the piece, ``start`` the position of its first query. ``q`` ``[R, Hq, T, D]`` is
    rotated; queries past a row's length are padding. ``keys`` and ``values`` ``[R, Hkv, start + T, D]`` are all up to
    the piece's last token. ``hidden`` ``[R, T, H]`` is the layer's normed input.
    """

    layer: int
    rows: slice
    start: int
    q: Tensor
    keys: Tensor
    values: Tensor
    hidden: Tensor | None = None


class PrefillObserver(ABC):
    """Sees the rotated queries, keys and values of a prefill and keeps one tensor per layer.

    Observers with equal ``key`` see the same thing; one serves all methods that ask for it.
    """

    key: str

    @abstractmethod
    def begin(self, shape: CacheShape, lengths: Sequence[int]) -> None:
        """Prepare for prompts of ``lengths`` tokens."""

    @abstractmethod
    def see(self, seen: Seen) -> None:
        """Look at one piece of a layer."""

    @abstractmethod
    def layer(self, layer: int) -> Tensor:
        """Return what was kept of a finished layer, ``[B, ...]``."""


class PrefillState:
    """Runs a prompt's block through densely, layer by layer, into a cache of any kind.

    A dense cache is written in place. For other caches one layer's keys and values are held in full at a time, and the
    method keeps what it wants of them, so that a cache which would not fit whole need not exist.

    Args:
        cache: empty; it receives the prompt.
        lengths: tokens of each row.
        piece_tokens: rows times columns of a piece: as many whole rows as fit, or a part of one.
        observers: see every piece.
    """

    residual: Tensor
    """Each row's last token before the final norm, ``[B, 1, H]``."""

    def __init__(
        self, cache: KVCache, lengths: Sequence[int], piece_tokens: int, observers: Sequence[PrefillObserver] = ()
    ):
        self.cache = cache
        self.lengths = lengths
        self.piece_tokens = piece_tokens
        self.observers = observers
        self._scratch: tuple[Tensor, Tensor] | None = None
        if not isinstance(cache, DenseCache):
            config = cache.config
            size = (cache.batch, config.num_kv_heads, max(lengths), config.head_dim)
            self._scratch = empty_pair(size, cache.shape)
        for observer in observers:
            observer.begin(cache.shape, lengths)

    @property
    def observed(self) -> Observed:
        """Return what each observer kept, by layer."""
        layers = range(self.cache.config.num_layers)
        return {observer.key: [observer.layer(layer) for layer in layers] for observer in self.observers}

    def begin(self, block: TokenBlock, method: AttentionMethod) -> None:
        """Put the row lengths on the device and set the cache's counters; what a method keeps may change them."""
        self.lengths_on_device = torch.tensor(self.lengths, device=self.cache.device)
        self.cache.stand_at(self.lengths_on_device)

    def pieces(self, block: TokenBlock) -> tuple[Piece, ...]:
        """Cut the block into groups of whole rows, and each group into columns that keep to ``piece_tokens``."""
        group = max(1, self.piece_tokens // max(self.lengths))
        pieces = []
        for first in range(0, len(self.lengths), group):
            rows = self.lengths[first : first + group]
            width, longest = max(1, self.piece_tokens // len(rows)), max(rows)
            pieces += [
                Piece(slice(first, first + len(rows)), slice(start, min(start + width, longest)))
                for start in range(0, longest, width)
            ]
        return tuple(pieces)

    def attend(self, layer: int, heads: BlockHeads, method: AttentionMethod, piece: Piece) -> Tensor:
        """Store one piece and attend to everything before it; ``[R, Hq, T, D]``."""
        q, k = heads.q, heads.k
        if heads.q_norm is not None and heads.k_norm is not None:
            q, k = rms_norm(q, heads.q_norm, heads.eps), rms_norm(k, heads.k_norm, heads.eps)
        q, k = apply_rope(q, k, heads.cos, heads.sin)
        if isinstance(self.cache, DenseCache):
            keys, values = self.cache.keys(layer), self.cache.values(layer)
        else:
            assert self._scratch is not None
            keys, values = self._scratch
        rows, start, stop = piece.rows, piece.columns.start, piece.columns.stop
        keys[rows, :, start:stop] = k
        values[rows, :, start:stop] = heads.v
        keys, values = keys[rows, :, :stop], values[rows, :, :stop]
        if self.observers:
            seen = Seen(layer, rows, start, q, keys, values, heads.hidden)
            for observer in self.observers:
                observer.see(seen)
        return method.attend_prompt(layer, q, keys, values, start)

    def end_layer(self, layer: int, method: AttentionMethod) -> None:
        """Let the method keep what it wants of a finished layer."""
        if self._scratch is not None:
            seen = {observer.key: observer.layer(layer) for observer in self.observers}
            method.keep_layer(self.cache, layer, *self._scratch, self.lengths_on_device, seen)

    def end(self, method: AttentionMethod) -> None:
        """Do nothing: each layer was kept when it ended."""

    def outputs(self, streams: list[Stream], pieces: tuple[Piece, ...]) -> Stream:
        """Return each row's last token."""
        last: dict[int, tuple[Tensor, Tensor]] = {}
        for (residual, delta), piece in zip(streams, pieces, strict=True):
            for row in range(piece.rows.start, piece.rows.stop):
                column = self.lengths[row] - 1
                if delta is not None and piece.columns.start <= column < piece.columns.stop:
                    at = row - piece.rows.start, column - piece.columns.start
                    last[row] = residual[at], delta[at]
        residuals, deltas = zip(*(last[row] for row in range(len(self.lengths))), strict=True)
        return torch.stack(residuals)[:, None], torch.stack(deltas)[:, None]
