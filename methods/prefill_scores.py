"""Prefill observers: what evicting methods need to know of a prompt's attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from longdecode.engine.kv_cache import CacheShape
from longdecode.engine.prefill import PrefillObserver
from longdecode.kernels.layout import accumulator

MAX_SCORES = 1 << 26
"""Attention weights held at once, which bounds the memory of an observer."""


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

    def see(self, layer: int, rows: slice, start: int, q: Tensor, keys: Tensor) -> None:
        """See ``PrefillObserver.see``."""
        for row in range(rows.start, rows.stop):
            offset = self.lengths[row] - self.window
            first, stop = max(start, offset, 0), min(start + q.shape[2], self.lengths[row])
            if first < stop:
                seen = q[row - rows.start, :, first - start : stop - start]
                self.queries[layer, row, :, first - offset : stop - offset] = seen

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
        self.lengths = torch.tensor(lengths, device=shape.device)
        self.sums = torch.zeros(size, device=shape.device, dtype=accumulator(shape.dtype))

    def see(self, layer: int, rows: slice, start: int, q: Tensor, keys: Tensor) -> None:
        """See ``PrefillObserver.see``; in slices of queries, so that no more than ``MAX_SCORES`` weights exist."""
        batch, heads, width, _ = q.shape
        step = max(1, MAX_SCORES // (batch * heads * keys.shape[2]))
        for first in range(0, width, step):
            stop = min(first + step, width)
            at = torch.arange(start + first, start + stop, device=q.device)
            weights = attention_weights(q[:, :, first:stop], keys, at[None])
            real = at < self.lengths[rows, None]
            self.sums[layer, rows, :, : keys.shape[2]] += (weights * real[:, None, None, :, None]).sum(dim=(2, 3))

    def layer(self, layer: int) -> Tensor:
        """See ``PrefillObserver.layer``."""
        return self.sums[layer]


def attention_weights(q: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """Return causal attention probabilities of a few queries.

    Args:
        q: ``[B, Hq, T, D]``, rotated.
        keys: ``[B, Hkv, S, D]``; the slot of a token is its position.
        positions: ``[B or 1, T]`` int64, of the queries; one below 0 gives zeros.

    Returns:
        ``[B, Hkv, G, T, S]`` float32 (float64 for float64).
    """
    batch, heads, width, dim = q.shape
    kv_heads, total = keys.shape[1:3]
    dtype = accumulator(q.dtype)
    folded = q.reshape(batch, kv_heads, -1, dim).to(dtype) * dim**-0.5
    logits = (folded @ keys.to(dtype).transpose(-1, -2)).view(batch, kv_heads, heads // kv_heads, width, total)
    seen = torch.arange(total, device=q.device) <= positions[..., None]
    weights = logits.masked_fill(~seen[:, None, None], -torch.inf).softmax(dim=-1)
    return torch.where(seen[:, None, None], weights, 0.0)
