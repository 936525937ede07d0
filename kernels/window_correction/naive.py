"""Corrections of past rows in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.merge_attention import merge_attention


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
