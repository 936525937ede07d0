"""A window of rows in plain torch: what it stores, reads and keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.merge_attention import merge_attention
from longdecode.kernels.page_minmax.naive import PageBounds, rebuild_page_minmax
from longdecode.kernels.rope.naive import rope_append
from longdecode.kernels.sparse_decode_attention.naive import sparse_decode_attention


def append_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    bounds: PageBounds,
    page_size: int,
    lengths: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Rotate and store a row's last ``T`` tokens, then compute the bounds of the pages they stand in anew.

    ``rope_append``, then ``rebuild_page_minmax`` over the slots ``length - T .. length - 1``. Moves
    ``2 * B * T * (Hq + 2 * Hkv) * D`` elements, and ``B * Hkv * (T + 2 * page_size) * D`` for bounds at most.

    Args:
        q: ``[B, Hq, T, D]``; this and what is not named here as in ``rope_append``.
        slot_mapping: ``[B, T]`` int64: a token's slot ``length - T + t``, or below 0, and it is not stored.
        bounds: pages of ``k_cache``, changed in place.
        page_size: tokens in a page of ``bounds``.
        lengths: ``[B]`` int64, tokens of each row, the newest included.

    Returns:
        The rotated queries, ``[B, Hq, T, D]``.
    """
    q = rope_append(q, k, v, cos, sin, k_cache, v_cache, slot_mapping, q_norm=q_norm, k_norm=k_norm, eps=eps)
    width = k.shape[2]
    rebuild_page_minmax(bounds, k_cache, lengths, lengths - width, width, page_size)
    return q


def attend_window(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    counts: Tensor,
    loaded: Tensor,
    positions: Tensor,
    limits: Tensor,
    kept: Tensor,
    kept_lse: Tensor,
    *,
    block_size: int,
    kv_tokens_read: Tensor,
) -> Tensor:
    """Read the newest row's pages once for all rows, each those it has not seen; merge what they kept; move on.

    ``unseen_pages``, then ``sparse_decode_attention`` under its mask, then ``merge_window``. Moves ``2 * D`` elements
    of cache for each listed token, one integer a listed page in and out, and what ``merge_window`` does.

    Args:
        q: ``[B, Hq, T, D]``, any float dtype.
        k: ``[B, Hkv, S, D]``.
        v: ``[B, Hkv, S, D]``.
        indices: ``[B, Hkv, N]`` int64, pages of the newest row, none twice.
        counts: ``[B, Hkv]`` int64, valid leading entries, 1 or more.
        loaded: ``[B, Hkv, P]`` int32, see ``unseen_pages``; changed in place.
        positions: ``[B, T]`` int64, ascending by one, the newest last.
        limits: ``[B, T]`` int64: ``position + 1``, the tokens before which a row may read, or 0 for a row that reads
            nothing; the newest reads.
        kept: ``[B, Hq, T - 1, D]`` and its normalisers, see ``merge_window``; changed in place.
        kept_lse: ``[B, Hq, T - 1]``, likewise.
        block_size: tokens in a page.
        kv_tokens_read: ``[B]`` int64, to which the listed tokens, summed over lists, are added.

    Returns:
        ``[B, Hq, T, D]``.

    Source: RetroAttention (arXiv 2508.09001), equation 2 and appendix C.
    """
    mask = unseen_pages(loaded, indices, counts, positions)
    out, lse = sparse_decode_attention(
        q, k, v, indices, counts, block_size=block_size, kv_lengths=limits, row_mask=mask,
        kv_tokens_read=kv_tokens_read,
    )  # fmt: skip
    return merge_window(out, lse, kept, kept_lse)


def unseen_pages(loaded: Tensor, indices: Tensor, counts: Tensor, positions: Tensor) -> Tensor:
    """Return which listed pages each row of a window has not seen, then mark all of them as loaded now.

    Row ``t`` at position ``p_t`` has seen page ``j`` where some step from ``p_t`` on loaded it: ``A_j >= p_t``, with
    ``A_j`` the last step that loaded ``j``. So it reads list entry ``n`` where ``A_{list_n} < p_t``, which is the set
    difference ``S_now - (S_{p_t} | ... | S_{now-1})``. The newest row reads every entry. Moves one integer a listed
    page in and out, and ``T`` bytes out.

    Args:
        loaded: ``[B, H, P]`` int32, the last step that loaded each page, -1 for none; changed in place.
        indices: ``[B, H, N]`` int64, the lists of the newest row.
        counts: ``[B, H]`` int64, valid leading entries.
        positions: ``[B, T]`` int64, ascending by one, the newest last. A row that has no token may hold anything.

    Returns:
        ``[B, H, T, N]`` bool; entries at or past the count are false.

    Source: RetroAttention (arXiv 2508.09001), equation 2; the rule by one integer a page is inferred.
    """
    listed = torch.arange(indices.shape[2], device=indices.device) < counts[..., None]
    places = torch.where(listed, indices, 0)
    last = loaded.gather(2, places)[:, :, None]
    newest = torch.arange(positions.shape[1], device=positions.device) == positions.shape[1] - 1
    unseen = (last < positions[:, None, :, None]) | newest[:, None]
    # Entries past the count name page 0: they raise nothing there.
    now = torch.where(listed, positions[:, None, -1:], -1).to(loaded.dtype)
    loaded.scatter_reduce_(2, places, now, "amax")
    return unseen & listed[:, :, None]


def merge_window(out: Tensor, lse: Tensor, kept: Tensor, kept_lse: Tensor) -> Tensor:
    """Merge what past rows kept with what they read now, and move the window on by one row.

    Row ``t < T - 1`` becomes attention over the union of both sets; the newest row is taken as it is. Then ``kept``
    holds rows ``1 .. T - 1``. Sums run in float32 (float64 for float64). Moves ``(2 T - 1) * Hq * D`` elements in and
    as many out.

    Args:
        out: ``[B, Hq, T, D]``, attention over what each row reads now.
        lse: ``[B, Hq, T]`` float32 (float64 for float64), minus infinity where that is nothing.
        kept: ``[B, Hq, T - 1, D]`` in ``out``'s dtype, changed in place.
        kept_lse: ``[B, Hq, T - 1]`` in ``lse``'s dtype, minus infinity where nothing is kept; changed in place.

    Returns:
        ``[B, Hq, T, D]``.

    Source: RetroAttention (arXiv 2508.09001), appendix C; Dao 2023, FlashAttention-2 (arXiv 2307.08691), section 3.1.1.
    """
    past, past_lse = merge_attention(kept, kept_lse, out[:, :, :-1], lse[:, :, :-1])
    merged = torch.cat((past, out[:, :, -1:]), dim=2)
    kept.copy_(merged[:, :, 1:])
    kept_lse.copy_(torch.cat((past_lse, lse[:, :, -1:]), dim=2)[:, :, 1:])
    return merged
