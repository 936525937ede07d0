"""Deterministic top-k selection in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import before


def check_request(
    scores: Tensor, k: int, valid: Tensor, keep_first: int, keep_last: int, row_k: Tensor | None = None
) -> None:
    """Refuse a budget too small for the entries always kept, and lengths or budgets of another batch.

    Raises:
        ValueError: ``k`` is below 1 or below ``keep_first + keep_last``, one of these is negative, or ``valid`` or
            ``row_k`` is not one number a row.
    """
    if k < 1:
        raise ValueError(f"k = {k}; at least 1 is needed")
    if keep_first < 0 or keep_last < 0 or keep_first + keep_last > k:
        raise ValueError(f"k = {k} does not hold {keep_first} leading and {keep_last} trailing entries kept always")
    if valid.shape != scores.shape[:1]:
        raise ValueError(f"valid entries of shape {tuple(valid.shape)} for scores {tuple(scores.shape)}: one a row")
    if row_k is not None and row_k.shape != scores.shape[:1]:
        raise ValueError(f"row_k of shape {tuple(row_k.shape)} for scores {tuple(scores.shape)}: one a row")


def check_places(scores: Tensor, k: int, indices: Tensor, heads: Tensor) -> None:
    """Refuse lists of indices that a selection does not fit into.

    Raises:
        ValueError: ``indices`` is not ``[B, H, K]`` with room for the selection, ``heads`` not one of its lists for
            each list of scores, or one of them not int64.
    """
    batch, lists, size = scores.shape
    room = indices.dim() == 3 and indices.shape[0] == batch and indices.shape[2] >= min(k, size)
    if not room or heads.shape != (lists,) or lists > indices.shape[1]:
        raise ValueError(
            f"indices {tuple(indices.shape)} and heads {tuple(heads.shape)} for scores {tuple(scores.shape)}: "
            f"[{batch}, {lists} or more, {min(k, size)} or more] and [{lists}] are needed"
        )
    if indices.dtype != torch.int64 or heads.dtype != torch.int64:
        raise ValueError(f"indices and heads of int64 are needed, got {indices.dtype} and {heads.dtype}")


def topk_select(
    scores: Tensor,
    k: int,
    valid: Tensor,
    *,
    keep_first: int = 0,
    keep_last: int = 0,
    row_k: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return indices of the ``k`` largest valid scores of each list, ascending; of equal scores the lower index wins.

    Entries kept always come first. Of the others, select what exceeds the last value that fits, then the first of
    those equal to it until ``k`` are taken. The result depends on nothing but the list itself: not on the batch around
    it, nor on the order a sort leaves ties in. Moves about eight passes of the scores.

    Args:
        scores: ``[B, H, N]``, any float dtype, no NaN among the valid ones; ``-0.0`` equals ``0.0``.
        k: how many to take, at least 1; ``K = min(k, N)`` is the width of the result.
        valid: ``[B]`` integers, the leading entries that count; the others may hold anything.
        keep_first: leading valid entries that are taken whatever their scores, inside ``k``.
        keep_last: trailing valid entries, likewise.
        row_k: ``[B]`` integers, how many to take in each row, at least ``keep_first + keep_last``; over ``k`` counts as
            ``k``. Left out, ``k`` in every row.

    Returns:
        ``indices`` ``[B, H, K]`` int64 and ``counts`` ``[B, H]`` int64, how many leading entries are valid; the entries
        after them are 0.

    Raises:
        ValueError: ``k`` is below 1 or below ``keep_first + keep_last``, or ``valid`` is not one number a row.
    """
    check_request(scores, k, valid, keep_first, keep_last, row_k)
    batch, heads, size = scores.shape
    width = min(k, size)
    wanted = width if row_k is None else row_k.clamp(max=width)[:, None, None]
    place = torch.arange(size, device=scores.device)
    mask = before(valid, size)[:, None]
    kept = mask & ((place < keep_first) | (place >= valid[:, None, None] - keep_last))
    rivals = mask & ~kept
    room = wanted - kept.sum(dim=-1, keepdim=True)
    ranked = torch.where(rivals, scores, float("-inf"))
    largest = ranked.topk(width, dim=-1).values
    last = largest.gather(-1, (room - 1).clamp(min=0).expand(batch, heads, 1))
    above = ranked > last
    tied = (ranked == last) & rivals
    spare = room - above.sum(dim=-1, keepdim=True, dtype=torch.int32)
    chosen = kept | above | (tied & (tied.cumsum(dim=-1, dtype=torch.int32) <= spare))

    order = chosen.cumsum(dim=-1, dtype=torch.int32)
    counts = order[..., -1].to(torch.int64)
    # Unchosen entries all land in one spare column, which is dropped.
    column = torch.where(chosen, order - 1, width).to(torch.int64)
    indices = torch.zeros(batch, heads, width + 1, dtype=torch.int64, device=scores.device)
    indices.scatter_(2, column, place.expand(batch, heads, size))
    return indices[..., :width].contiguous(), counts


def topk_select_into(
    scores: Tensor,
    k: int,
    valid: Tensor,
    indices: Tensor,
    heads: Tensor,
    *,
    keep_first: int = 0,
    keep_last: int = 0,
) -> None:
    """Write ``topk_select`` of each list to ``indices[b, heads[r], :min(k, N)]``; other lists stay as they are.

    The valid entries of a list are its first ``min(k, valid[b])``, which is not returned: it follows from the request.

    Args:
        scores: ``[B, R, N]`` as in ``topk_select``, like ``k``, ``valid``, ``keep_first`` and ``keep_last``.
        indices: ``[B, H, K]`` int64 with ``K`` of ``min(k, N)`` or more, written in place.
        heads: ``[R]`` int64, the list of ``indices`` that each list of scores goes to, no two the same.

    Raises:
        ValueError: as ``topk_select``, and where ``indices`` or ``heads`` do not fit.
    """
    check_places(scores, k, indices, heads)
    chosen, _ = topk_select(scores, k, valid, keep_first=keep_first, keep_last=keep_last)
    indices[..., : chosen.shape[2]].index_copy_(1, heads, chosen)
