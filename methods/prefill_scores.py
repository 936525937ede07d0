"""Prefill observers: what evicting methods need to know of a prompt's attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longdecode.engine.kv_cache import CacheShape
from longdecode.engine.prefill import PrefillObserver, Seen
from longdecode.kernels.attention_weights import attention_weights
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.dispatch import use_triton
from longdecode.kernels.layout import accumulator

MAX_SCORES = 1 << 26
"""Attention weights held at once where they are, which bounds the memory of an observer."""
SLICE = 1024
"""Queries at once where no weights are held."""


class LatestQueries(PrefillObserver):
    """Keeps each row's last ``window`` rotated queries ``[B, Hq, window, D]``; short prompts leave zeros in front."""

    def __init__(self, window: int):
        self.window = window
        self.key = f"latest_queries_{window}"

    def begin(self, shape: CacheShape, lengths: Sequence[int]) -> None:
        """See ``PrefillObserver.begin``."""
        config = shape.config
        size = (config.num_layers, shape.batch, config.num_heads, self.window, config.head_dim)
        self.lengths = lengths
        self.queries = torch.zeros(size, device=shape.device, dtype=shape.dtype)

    def see(self, seen: Seen) -> None:
        """See ``PrefillObserver.see``."""
        layer, rows, start, q = seen.layer, seen.rows, seen.start, seen.q
        for row in range(rows.start, rows.stop):
            offset = self.lengths[row] - self.window
            first, stop = max(start, offset, 0), min(start + q.shape[2], self.lengths[row])
            if first < stop:
                latest = q[row - rows.start, :, first - start : stop - start]
                self.queries[layer, row, :, first - offset : stop - offset] = latest

    def layer(self, layer: int) -> Tensor:
        """See ``PrefillObserver.layer``."""
        return self.queries[layer]


class AttentionReceived(PrefillObserver):
    """Sums the attention probability that every key got from all queries of its group, ``[B, Hkv, S]``."""

    key = "attention_received"

    def begin(self, shape: CacheShape, lengths: Sequence[int]) -> None:
        """See ``PrefillObserver.begin``."""
        config = shape.config
        size = (config.num_layers, shape.batch, config.num_kv_heads, max(lengths))
        self.lengths = lengths
        self.sums = torch.zeros(size, device=shape.device, dtype=accumulator(shape.dtype))

    def see(self, seen: Seen) -> None:
        """See ``PrefillObserver.see``; in slices of equally many queries, since each other number is another kernel.

        The last slice reaches back over queries that have been counted, whose weights are set to nothing. Without
        Triton a slice holds no more than ``MAX_SCORES`` weights.
        """
        layer, rows, start, q, keys = seen.layer, seen.rows, seen.start, seen.q, seen.keys
        most = SLICE if use_triton(q) else max(1, MAX_SCORES // (q.shape[1] * keys.shape[2]))
        for row in range(rows.start, rows.stop):
            at = slice(row - rows.start, row - rows.start + 1)
            real = min(q.shape[2], self.lengths[row] - start)
            if real < 1:
                continue
            width = min(most, 1 << (real.bit_length() - 1))
            for first in range(0, real, width):
                last = min(first + width, real)
                stop = torch.full((1,), start + last, device=q.device)
                queries, known = q[at, :, last - width : last], keys[at, :, : start + last]
                lse = decode_attention(queries, known, known, stop)[1]
                lse[:, :, : first + width - last] = float("inf")
                weights = attention_weights(queries, known, stop, group="sum", lse=lse)
                self.sums[layer, row : row + 1, :, : start + last] += weights

    def layer(self, layer: int) -> Tensor:
        """See ``PrefillObserver.layer``."""
        return self.sums[layer]
