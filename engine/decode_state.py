"""The state of one generation: its cache, what the method keeps, and the count of what was read."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longdecode.engine.kv_cache import DenseCache, KVCache, WholeCache
from longdecode.engine.token_block import WHOLE, BlockHeads, Piece, Stream, TokenBlock

if TYPE_CHECKING:
    from longdecode.engine.attention import AttentionMethod


class DecodeState:
    """All that one generation keeps; made by ``AttentionMethod.start`` and dropped with the call.

    ``kv_tokens_read`` ``[L, B]`` int64 is added to by the attention kernels: tokens loaded, summed over KV heads,
    whether a row is active or not. ``counted`` follows it for active rows. ``dense_tokens`` ``[B]`` int64 counts what a
    head that reads everything has read. ``residual`` ``[B, T, H]`` is the last block's stream before the final norm.
    """

    residual: Tensor

    def __init__(self, cache: KVCache, method_state: Any = None):
        layers = cache.config.num_layers
        self.cache = cache
        self.method_state = method_state
        self.active = torch.ones(cache.batch, dtype=torch.bool, device=cache.device)
        self.kv_tokens_read = torch.zeros(layers, cache.batch, dtype=torch.int64, device=cache.device)
        self.counted = torch.zeros_like(self.kv_tokens_read)
        self.dense_tokens = torch.zeros(cache.batch, dtype=torch.int64, device=cache.device)

    @property
    def dense(self) -> DenseCache:
        """The cache, for methods that keep every token.

        Raises:
            TypeError: the method decodes in a cache of another kind.
        """
        if not isinstance(self.cache, DenseCache):
            raise TypeError(f"a {type(self.cache).__name__} has no slot for every token")
        return self.cache

    @property
    def whole(self) -> WholeCache:
        """The cache, for methods that need every token, wherever it is kept.

        Raises:
            TypeError: the method decodes in a cache that drops tokens.
        """
        if not isinstance(self.cache, WholeCache):
            raise TypeError(f"a {type(self.cache).__name__} does not keep every token")
        return self.cache

    @property
    def kv_lengths(self) -> Tensor:
        """Tokens of a whole cache that the block's last row may read, itself included, ``[B]`` int64."""
        return self.whole.kv_lengths

    @property
    def kv_tokens_per_head(self) -> Tensor:
        """Tokens read per KV head, summed over the steps in which a row was active, ``[L, B]`` float64."""
        return self.counted.to(torch.float64) / self.cache.config.num_kv_heads

    def begin(self, block: TokenBlock, method: AttentionMethod) -> None:
        """Work out once what every layer of the coming block needs."""
        self.block = block
        self.cache.begin_block(block.width, block.starts, self.active)
        starts = self.cache.positions if block.starts is None else block.starts
        self.block_ends = starts + block.width
        method.before_step(self)

    def pieces(self, block: TokenBlock) -> tuple[Piece, ...]:
        """Return the block whole: a decode step is worked off at once."""
        return (WHOLE,)

    def attend(self, layer: int, heads: BlockHeads, method: AttentionMethod, piece: Piece) -> Tensor:
        """Store the block's heads and read; ``[B, Hq, T, D]``."""
        q = method.append(layer, heads, self)
        return method.attend_all(layer, q, self) if self.block.reads == "dense" else method.attend(layer, q, self)

    def end_layer(self, layer: int, method: AttentionMethod) -> None:
        """Do nothing: a step leaves its layers as they are."""

    def end(self, method: AttentionMethod) -> None:
        """Let the method react before lengths advance."""
        method.after_step(self)

    def outputs(self, streams: list[Stream], pieces: tuple[Piece, ...]) -> Stream:
        """Return every row of the block."""
        return streams[0]

    def accept(self, counts: Tensor | None = None) -> None:
        """Count what active rows read and keep the first ``counts`` (``[B]`` int64) tokens of the block.

        ``None`` keeps the block of every active row, without what it repeats.
        """
        torch.where(self.active, self.kv_tokens_read, self.counted, out=self.counted)
        self.dense_tokens += self.block_ends * self.active
        new = self.block.width - self.block.repeats
        kept = self.active * new if new > 1 else self.active.long()
        self.cache.advance(kept if counts is None else counts)


def held_bytes(kept: Any) -> int:
    """Return the bytes of all tensors in what a method keeps, each once."""
    seen: dict[int, int] = {}

    def visit(part: Any) -> None:
        if isinstance(part, Tensor):
            seen[id(part)] = part.nbytes
        elif is_dataclass(part):
            visit([getattr(part, item.name) for item in fields(part)])
        elif isinstance(part, dict | list | tuple):
            for value in part.values() if isinstance(part, dict) else part:
                visit(value)

    visit(kept)
    return sum(seen.values())
