"""Queued chunks of a prompt whose keys are of low rank: keys rebuilt, values copied, in plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.kernels.block_residency.naive import BlockQueue
from longdecode.kernels.host_fetch.naive import seen_from
from longdecode.kernels.layout import accumulator, on_host
from longdecode.kernels.rope.naive import rotate

_PIECE = 512
"""Queued chunks that are worked on at a time: each takes a copy of its list's basis."""


@dataclass(frozen=True, slots=True)
class LowRankPrompt:
    """Hold one layer's prompt.

    ``factors`` ``[B, S, r]`` times ``basis`` ``[B, Hkv, r, D]`` are its keys before their rotation. ``cos`` and ``sin``
    ``[S, D / 2]`` belong to the positions, float32 (float64 for float64). ``values`` ``[B, Hkv, S, D]`` lie on the
    device or in pinned host memory. ``chunk``: tokens in a chunk, of which there are ``S // chunk``, one at least.
    """

    factors: Tensor
    basis: Tensor
    cos: Tensor
    sin: Tensor
    values: Tensor
    chunk: int

    @property
    def chunks(self) -> int:
        """Whole chunks of a row; one where it is shorter than a chunk, which nothing queues."""
        return max(1, self.factors.shape[1] // self.chunk)


def fetch_chunks(prompt: LowRankPrompt, k: Tensor, v: Tensor, queue: BlockQueue) -> None:
    """Put the queued chunks into slots: ``k_i = R_i (U_i B)`` rebuilt and rotated by ``R_i``, ``v_i`` copied.

    For ``n < count`` the tokens of slot ``targets[n]`` become those of chunk ``sources[n]``, where sources are
    ``list * C + chunk``, targets ``list * S + slot`` and ``list = b * Hkv + h``. A key is rounded to its dtype before
    it is rotated, as one that was never taken apart. Moves over the bus, for each chunk, ``chunk * D`` values; on the
    device as many and ``chunk * (r + D)`` numbers of factors and angles in, twice ``chunk * D`` out.

    Args:
        prompt: what to fetch from.
        k: ``[B, Hkv, S * chunk, D]`` on the device, any strides of rows and heads; changed in place.
        v: likewise.
        queue: which chunks; no slot is named twice.

    Raises:
        ValueError: shapes or dtypes do not fit each other.

    Source: Sun et al. 2024, ShadowKV (arXiv 2410.21465), sections 3 and 4.
    """
    check_prompt(prompt, k, v)
    values = seen_from(prompt.values, k.device)
    for sources, targets, listed in _pieces(queue):
        _fetch(prompt, values, k, v, sources, targets, listed)


def _pieces(queue: BlockQueue) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield sources and targets in pieces, and which of them are queued; where it is free to know, only those."""
    size = queue.sources.shape[0] - 1
    size = min(size, int(queue.count)) if on_host(queue.count) else size
    listed = torch.arange(size, device=queue.sources.device) < queue.count
    # What is not queued repeats the first entry; where there is none, that entry's target gets what it holds.
    some = listed[:1]
    sources, targets = (
        torch.where(some, torch.where(listed, part[:size], part[:1]), 0) for part in (queue.sources, queue.targets)
    )
    for first in range(0, size, _PIECE):
        piece = slice(first, first + _PIECE)
        yield sources[piece], targets[piece], some.expand(size)[piece]


def _fetch(
    prompt: LowRankPrompt, values: Tensor, k: Tensor, v: Tensor, sources: Tensor, targets: Tensor, listed: Tensor
) -> None:
    size, heads = prompt.chunk, k.shape[1]
    inside = torch.arange(size, device=k.device)
    lists, slots = sources // prompt.chunks, k.shape[2] // size
    row, head = lists // heads, lists % heads
    # Of an entry that is not queued nothing is kept, but it is read: a prompt may be shorter than a chunk.
    tokens = ((sources % prompt.chunks)[:, None] * size + inside).clamp(max=prompt.factors.shape[1] - 1)
    places = (targets - lists * slots)[:, None] * size + inside
    wide = accumulator(k.dtype)
    plain = (prompt.factors[row[:, None], tokens].to(wide) @ prompt.basis[row, head].to(wide)).to(k.dtype)
    cos, sin = (torch.cat((half, half), dim=-1)[tokens] for half in (prompt.cos, prompt.sin))
    keys = rotate(plain[:, None], cos, sin)[:, 0]
    at = (row[:, None], head[:, None], places)
    new = values[row[:, None], head[:, None], tokens]
    for into, found in ((k, keys), (v, new)):
        into[at] = torch.where(listed[:, None, None], found, into[at])


def check_prompt(prompt: LowRankPrompt, k: Tensor, v: Tensor) -> None:
    """Refuse a prompt and slots that do not fit each other.

    Raises:
        ValueError: as said.
    """
    batch, heads, room, dim = k.shape
    tokens, rank = prompt.factors.shape[1:]
    wanted = (
        (prompt.factors, (batch, tokens, rank)), (prompt.basis, (batch, heads, rank, dim)),
        (prompt.values, (batch, heads, tokens, dim)), (v, tuple(k.shape)),
    )  # fmt: skip
    if any(tuple(x.shape) != shape or x.dtype != k.dtype for x, shape in wanted) or room % prompt.chunk or dim % 2:
        found = [(tuple(x.shape), x.dtype) for x, _ in wanted]
        raise ValueError(f"slots {tuple(k.shape)} {k.dtype} of chunks of {prompt.chunk} do not fit a prompt of {found}")
    if any(half.shape != (tokens, dim // 2) for half in (prompt.cos, prompt.sin)):
        raise ValueError(f"angles {tuple(prompt.cos.shape)}; [{tokens}, {dim // 2}] are needed")
