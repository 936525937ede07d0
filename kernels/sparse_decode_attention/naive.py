"""Sparse decode attention in plain torch: gathers the selected tokens and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.kernels.layout import accumulator, on_host


def sparse_decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    counts: Tensor,
    *,
    block_size: int,
    lengths: Tensor,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention over the tokens of the listed blocks, ``S_h = {i : i // block_size in list_h, i < length}``.

    ``out_h = sum_{i in S_h} softmax_{S_h}(scale * q_h k_i) v_i``. A list belongs to one KV head and serves its whole
    query group (``Hs = Hkv``), or to one query head (``Hs = Hq``). A block must not be listed twice. Moves
    ``2 * B * Hs * N * block_size * D`` elements of cache and ``B * Hs * N`` indices.

    Args:
        q: ``[B, Hq, 1, D]``, any float dtype; sums run in float32 (float64 for float64).
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``.
        v: ``[B, Hkv, S, D]``.
        indices: ``[B, Hs, N]`` int64 block numbers.
        counts: ``[B, Hs]`` int64, how many leading entries of each list are valid; the others may hold anything.
        block_size: tokens in a block; the last block of a row may be cut short by its length.
        lengths: ``[B]`` int64; a length over ``S`` counts as ``S``.
        scale: factor on the scores; ``D ** -0.5`` when left out.

    Returns:
        ``out`` ``[B, Hq, 1, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, 1]`` in float32 (float64 for float64); a head
        with nothing to read gives zeros and minus infinity.

    Raises:
        ValueError: ``Hs`` is neither the number of KV heads nor of query heads, or there is more than one query row.

    Source: Tang et al. 2024, Quest (arXiv 2406.10774), section 3.3: attention over selected pages.
    """
    batch, heads, rows, dim = q.shape
    kv_heads, capacity, lists = k.shape[1], k.shape[2], indices.shape[1]
    if rows != 1:
        raise ValueError(f"sparse decode takes one query row, got {rows}")
    if lists not in (kv_heads, heads):
        raise ValueError(f"{lists} index lists fit neither {kv_heads} KV heads nor {heads} query heads")
    scale = dim**-0.5 if scale is None else scale
    dtype = accumulator(q.dtype)

    tokens, visible = _tokens(indices, counts, lengths.clamp(max=capacity), block_size)
    base = torch.arange(batch, device=q.device)[:, None] * kv_heads + (
        torch.arange(lists, device=q.device) // (lists // kv_heads)
    )
    flat = (base[..., None] * capacity + torch.where(visible, tokens, 0)).flatten()
    shape = (batch, lists, tokens.shape[-1], dim)
    keys = k.reshape(-1, dim).index_select(0, flat).view(shape).to(dtype)
    values = v.reshape(-1, dim).index_select(0, flat).view(shape).to(dtype)

    scores = (q.reshape(batch, lists, heads // lists, dim).to(dtype) * scale) @ keys.transpose(-1, -2)
    scores = torch.where(visible[:, :, None], scores, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    probabilities = torch.exp(scores - torch.where(lse == float("-inf"), 0.0, lse)[..., None])
    # What may not be read was gathered from slot 0, which is clean unless the row is empty.
    out = torch.where(lse[..., None] == float("-inf"), 0.0, probabilities @ values)
    return out.to(q.dtype).reshape(q.shape), lse.reshape(batch, heads, 1)


def _tokens(indices: Tensor, counts: Tensor, lengths: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Token numbers ``[B, Hs, N * block_size]`` of the listed blocks, and which of them may be read."""
    if on_host(indices):
        indices = indices[..., : int(counts.max())]  # a full-width list is rare; on a CPU the width is free to know
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    offsets = torch.arange(block_size, device=indices.device)
    tokens = (indices[..., None] * block_size + offsets).flatten(2)
    visible = listed.repeat_interleave(block_size, dim=-1) & (tokens < lengths[:, None, None])
    return tokens, visible
