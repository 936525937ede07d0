"""Sparse decode attention in plain torch: gathers the selected tokens and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from longdecode.kernels.layout import accumulator, before, on_host

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
    kv_tokens_read: Tensor | None = None,
    scores: Tensor | None = None,
    score_rows: Tensor | None = None,
    score_block: int = 1,
) -> tuple[Tensor, Tensor]:
    """Softmax attention over the tokens of the listed blocks, ``S_h = {i : i // block_size in list_h, i < length}``.

    ``out_h = sum_{i in S_h} softmax_{S_h}(scale * q_h k_i + bias_{hi}) v_i``; a list whose count is ``EVERYTHING``
    reads ``S_h = {i : i < length}``. A list belongs to one KV head and serves its whole query group (``Hs = Hkv``), or
    to one query head (``Hs = Hq``). A block must not be listed twice. Moves ``2 * D`` elements of cache and, with a
    bias, one float for each token of each list, and ``B * Hs * N`` indices. Off the CPU, where counts cannot be looked
    at, the width of the gather is the larger of a full list and the whole cache.

    With ``scores``, a list ``h`` that reads everything and has a row also leaves
    ``scores[b, score_rows[h], j] = max_{i in block j, i < length} mean_g(scale * q_g k_i)``: the mean runs over the
    query heads that the list serves, the bias takes no part, and the unit is that of the logits (natural logarithm).

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
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over lists, are added.
        scores: ``[B, R, P]``, any float dtype and strides, ``P = ceil(S / score_block)``, to be written. What begins at
            or past a row's length, and rows of lists that do not read everything, stay as they are.
        score_rows: ``[Hs]`` int64, the row of ``scores`` that each list fills, no two the same; -1 fills none.
        score_block: tokens that one score stands for; 1 scores every token.

    Returns:
        ``out`` ``[B, Hq, 1, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, 1]`` in float32 (float64 for float64); a head
        with nothing to read gives zeros and minus infinity.

    Raises:
        ValueError: ``Hs`` is neither the number of KV heads nor of query heads, there is more than one query row, or
            ``scores`` and ``score_rows`` are not both there in shapes that fit.

    Source: Tang et al. 2024, Quest (arXiv 2406.10774), section 3.3: attention over selected pages; LycheeDecode (arXiv
    2602.04541) and its released code (95c3d2c): group-mean scores, max-pooled over blocks.
    """
    batch, heads, rows, dim = q.shape
    kv_heads, capacity, lists = k.shape[1], k.shape[2], indices.shape[1]
    if rows != 1:
        raise ValueError(f"sparse decode takes one query row, got {rows}")
    if lists not in (kv_heads, heads):
        raise ValueError(f"{lists} index lists fit neither {kv_heads} KV heads nor {heads} query heads")
    check_scores(scores, score_rows, score_block, (batch, lists, capacity))
    scale = dim**-0.5 if scale is None else scale
    dtype = accumulator(q.dtype)
    if scores is not None and score_rows is not None:
        _write_scores(q, k, lengths.clamp(max=capacity), counts, scale, scores, score_rows, score_block)

    tokens, visible = _tokens(indices, counts, lengths.clamp(max=capacity), block_size, capacity)
    if kv_tokens_read is not None:
        kv_tokens_read += visible.sum(dim=(1, 2))
    tokens = torch.where(visible, tokens, 0)
    base = torch.arange(batch, device=q.device)[:, None] * kv_heads + (
        torch.arange(lists, device=q.device) // (lists // kv_heads)
    )
    flat = (base[..., None] * capacity + tokens).flatten()
    shape = (batch, lists, tokens.shape[-1], dim)
    keys = k.reshape(-1, dim).index_select(0, flat).view(shape).to(dtype)
    values = v.reshape(-1, dim).index_select(0, flat).view(shape).to(dtype)

    logits = (q.reshape(batch, lists, heads // lists, dim).to(dtype) * scale) @ keys.transpose(-1, -2)
    if bias is not None:
        logits = logits + bias.gather(2, tokens)[:, :, None].to(dtype)
    logits = torch.where(visible[:, :, None], logits, float("-inf"))
    lse = torch.logsumexp(logits, dim=-1)
    probabilities = torch.exp(logits - torch.where(lse == float("-inf"), 0.0, lse)[..., None])
    # What may not be read was gathered from slot 0, which is clean unless the row is empty.
    out = torch.where(lse[..., None] == float("-inf"), 0.0, probabilities @ values)
    return out.to(q.dtype).reshape(q.shape), lse.reshape(batch, heads, 1)


def check_scores(
    scores: Tensor | None, score_rows: Tensor | None, score_block: int, shape: tuple[int, int, int]
) -> None:
    """Refuse score arguments that do not fit each other or ``shape``: rows of the batch, lists and capacity.

    Raises:
        ValueError: one of ``scores`` and ``score_rows`` is missing, or a shape or the block does not fit.
    """
    batch, lists, capacity = shape
    if scores is None and score_rows is None:
        return
    if scores is None or score_rows is None:
        raise ValueError("scores and score_rows are given together or not at all")
    if score_block < 1:
        raise ValueError(f"score_block = {score_block}; a score stands for 1 token or more")
    wanted = (batch, scores.shape[1], -(-capacity // score_block))
    if tuple(scores.shape) != wanted or score_rows.shape != (lists,):
        raise ValueError(
            f"scores {tuple(scores.shape)} and score_rows {tuple(score_rows.shape)} for {lists} lists: blocks of "
            f"{score_block} in a cache of {capacity} need [{batch}, R, {wanted[2]}] and [{lists}]"
        )


def _write_scores(
    q: Tensor, k: Tensor, lengths: Tensor, counts: Tensor, scale: float,
    scores: Tensor, score_rows: Tensor, score_block: int,
) -> None:  # fmt: skip
    """Fill the rows of ``scores`` that lists of everything have."""
    (batch, heads, _, dim), lists = q.shape, counts.shape[1]
    fills = score_rows[:, None] == torch.arange(scores.shape[1], device=q.device)
    filled_by = fills.to(torch.int8).argmax(dim=0)
    filled = fills.any(dim=0) & (counts[:, filled_by] == EVERYTHING)
    dtype = accumulator(q.dtype)
    mean = q.reshape(batch, lists, heads // lists, dim).to(dtype).mean(dim=2)[:, filled_by] * scale
    size = k.shape[2]
    if on_host(lengths):  # on a CPU it is free to know how long the longest row is
        size = max(1, int(lengths.max()))
    keys = k[:, filled_by // (lists // k.shape[1]), :size].to(dtype)
    logits = (keys @ mean[..., None])[..., 0]
    logits = torch.where(before(lengths, size)[:, None], logits, float("-inf"))
    blocks = -(-size // score_block)
    best = pad(logits, (0, blocks * score_block - size), value=float("-inf"))
    best = best.unflatten(-1, (blocks, score_block)).amax(dim=-1)
    begun = torch.arange(blocks, device=q.device) * score_block < lengths[:, None, None]
    into = scores[..., :blocks]
    into.copy_(torch.where(filled[..., None] & begun, best.to(scores.dtype), into))


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
