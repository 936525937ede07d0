"""Counts of the n-grams of a text in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class NgramCounts:
    """A text and the counts of its n-grams, all ``[B, S]`` with a spare last column.

    Every n-gram's latest occurrence holds its count.

    Args:
        text: int64, of which ``lengths`` ``[B]`` int64 tokens are there.
        code: int64, the ``order - 1`` tokens after each place as one integer to the base ``vocab``.
        count: int64, of the n-gram that begins at each place.
        is_latest: bool, no later occurrence of it is counted.
        order: ``n``.
        lag: newest tokens that no counted n-gram reaches into.
        vocab: size of the vocabulary.
    """

    text: Tensor
    lengths: Tensor
    code: Tensor
    count: Tensor
    is_latest: Tensor
    order: int
    lag: int
    vocab: int

    @property
    def capacity(self) -> int:
        """Tokens a row has room for."""
        return self.text.shape[1] - 1


def codes(table: NgramCounts, starts: Tensor) -> Tensor:
    """Return the continuations after ``starts`` ``[B, N]`` as integers."""
    code = torch.zeros_like(starts)
    for step in range(1, table.order):
        code = code * table.vocab + table.text.gather(1, (starts + step).clamp(max=table.capacity))
    return code


def append_text(text: Tensor, lengths: Tensor, tokens: Tensor, counts: Tensor) -> None:
    """Append the first ``counts`` (``[B]``) of ``tokens`` ``[B, W]`` to ``text`` ``[B, S]`` of ``lengths`` ``[B]``."""
    capacity = text.shape[1] - 1
    place = torch.arange(tokens.shape[1], device=tokens.device)
    at = torch.where(place < counts[:, None], lengths[:, None] + place, capacity)
    text.scatter_(1, at.clamp(max=capacity), tokens)
    lengths += counts


def add_ngrams(table: NgramCounts, tokens: Tensor, kept: Tensor) -> None:
    """Append a step's tokens and count the n-grams that the lag sets free, all in one look at the text.

    Args:
        table: changed in place; what its spare column holds afterwards is open, but for ``is_latest``: false.
        tokens: ``[B, W]`` int64.
        kept: ``[B]`` int64, how many of them are appended.
    """
    place = torch.arange(tokens.shape[1], device=tokens.device)
    starts = table.lengths[:, None] - table.lag - table.order + 1 + place
    append_text(table.text, table.lengths, tokens, kept)
    counted = (starts >= 0) & (starts + table.order <= table.capacity) & (place < kept[:, None])
    at = torch.where(counted, starts, table.capacity)
    first, code = table.text.gather(1, at), codes(table, at)
    known = (table.text[:, None] == first[..., None]) & (table.code[:, None] == code[..., None])
    known &= table.is_latest[:, None] & counted[..., None]
    before = torch.where(known, table.count[:, None], 0).amax(dim=2)
    table.is_latest.logical_and_(~known.any(dim=1))
    # The step's own n-grams may be equal to one another.
    equal = (first[:, :, None] == first[:, None]) & (code[:, :, None] == code[:, None])
    equal &= counted[:, :, None] & counted[:, None]
    earlier = (equal & (place < place[:, None])).sum(dim=2)
    last = ~(equal & (place > place[:, None])).any(dim=2)
    table.is_latest.scatter_(1, at, last & counted)
    table.count.scatter_(1, at, before + earlier + 1)
    table.code.scatter_(1, at, code)
    table.is_latest[:, -1] = False


def frequent_continuations(table: NgramCounts, first: Tensor, k: int) -> Tensor:
    """Return the ``k`` most frequent continuations of ``first`` ``[B]``, of equal ones the latest first.

    Returns:
        ``[B, k, order - 1]`` int64; -1 where there are fewer.
    """
    size = table.text.shape[1]
    index = torch.arange(size, device=first.device)
    known = table.is_latest & (table.text == first[:, None])
    ranked = torch.where(known, table.count * size + index, -1)
    score, at = ranked.topk(min(k, size), dim=1)
    places = torch.arange(1, table.order, device=first.device)
    found = table.text.gather(1, (at[..., None] + places).clamp(max=table.capacity).flatten(1))
    found = torch.where(score[..., None] >= 0, found.view(*at.shape, -1), -1)
    return torch.nn.functional.pad(found, (0, 0, 0, k - found.shape[1]), value=-1)
