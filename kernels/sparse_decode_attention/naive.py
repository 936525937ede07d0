"""Sparse decode attention in plain torch: gathers the selected tokens and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from longdecode.kernels.layout import accumulator, on_host

EVERYTHING = -1
"""The count of a list that reads every token of its row, whatever its indices hold."""


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
    bias: Tensor | None = None,
    tally: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention over the tokens of the listed blocks, ``S_h = {i : i // block_size in list_h, i < length}``.

    ``out_h = sum_{i in S_h} softmax_{S_h}(scale * q_h k_i + bias_{hi}) v_i``; a list whose count is ``EVERYTHING``
    reads ``S_h = {i : i < length}``. A list belongs to one KV head and serves its whole query group (``Hs = Hkv``), or
    to one query head (``Hs = Hq``). A block must not be listed twice. Moves ``2 * D`` elements of cache and, with a
    bias, one float for each token of each list, and ``B * Hs * N`` indices. Off the CPU, where counts cannot be looked
    at, the width of the gather is the larger of a full list and the whole cache.

    Args:
        q: ``[B, Hq, 1, D]``, any float dtype; sums run in float32 (float64 for float64).
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``.
        v: ``[B, Hkv, S, D]``.
        indices: ``[B, Hs, N]`` int64 block numbers.
        counts: ``[B, Hs]`` int64, how many leading entries of each list are valid; the others may hold anything.
            ``EVERYTHING`` (-1): the whole row is read.
        block_size: tokens in a block; the last block of a row may be cut short by its length.
        lengths: ``[B]`` int64; a length over ``S`` counts as ``S``.
        scale: factor on the scores; ``D ** -0.5`` when left out.
        bias: ``[B, Hs, S]``, added to the scaled scores of the list's tokens (natural logarithm).
        tally: ``[B]`` int64, to which the tokens read, summed over lists, are added.

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

    tokens, visible = _tokens(indices, counts, lengths.clamp(max=capacity), block_size, capacity)
    if tally is not None:
        tally += visible.sum(dim=(1, 2))
    tokens = torch.where(visible, tokens, 0)
    base = torch.arange(batch, device=q.device)[:, None] * kv_heads + (
        torch.arange(lists, device=q.device) // (lists // kv_heads)
    )
    flat = (base[..., None] * capacity + tokens).flatten()
    shape = (batch, lists, tokens.shape[-1], dim)
    keys = k.reshape(-1, dim).index_select(0, flat).view(shape).to(dtype)
    values = v.reshape(-1, dim).index_select(0, flat).view(shape).to(dtype)

    scores = (q.reshape(batch, lists, heads // lists, dim).to(dtype) * scale) @ keys.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias.gather(2, tokens)[:, :, None].to(dtype)
    scores = torch.where(visible[:, :, None], scores, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    probabilities = torch.exp(scores - torch.where(lse == float("-inf"), 0.0, lse)[..., None])
    # What may not be read was gathered from slot 0, which is clean unless the row is empty.
    out = torch.where(lse[..., None] == float("-inf"), 0.0, probabilities @ values)
    return out.to(q.dtype).reshape(q.shape), lse.reshape(batch, heads, 1)


def _tokens(indices: Tensor, counts: Tensor, lengths: Tensor, block_size: int, capacity: int) -> tuple[Tensor, Tensor]:
    """Token numbers ``[B, Hs, W]`` of the lists, and which of them may be read."""
    everything = (counts == EVERYTHING)[..., None]
    whole = capacity
    if on_host(indices):  # on a CPU it is free to know how wide the widest list is
        indices = indices[..., : int(counts.max().clamp(min=0))]
        whole = int(torch.where(everything[..., 0], lengths[:, None], 0).max())
    width = max(whole, indices.shape[-1] * block_size)
    offsets = torch.arange(block_size, device=indices.device)
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    blocks = torch.where(listed, indices, capacity // block_size + 1)  # a block past every length
    tokens = (blocks[..., None] * block_size + offsets).flatten(2)
    tokens = pad(tokens, (0, width - tokens.shape[-1]), value=capacity)
    tokens = torch.where(everything, torch.arange(width, device=indices.device), tokens)
    return tokens, tokens < lengths[:, None, None]
