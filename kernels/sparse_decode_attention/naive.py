"""Sparse decode attention in plain torch: gathers the selected tokens and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from longdecode.kernels.layout import accumulator, before, on_host

EVERYTHING = -1
"""Count of a list that reads every token of its row, whatever its indices hold."""


def sparse_decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    indices: Tensor,
    counts: Tensor,
    *,
    block_size: int,
    kv_lengths: Tensor,
    row_mask: Tensor | None = None,
    scale: float | None = None,
    bias: Tensor | None = None,
    kv_tokens_read: Tensor | None = None,
    scores: Tensor | None = None,
    score_rows: Tensor | None = None,
    score_block: int = 1,
    uneven: bool = False,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax attention over the tokens of the listed blocks, which the ``T`` query rows share.

    ``out_ht = sum_{i in S_ht} softmax(scale * q_ht k_i + bias_hi) v_i`` with
    ``S_ht = {i : i // block_size = list_hn, row_mask_htn, i < kv_lengths_t}``; a list whose count is ``EVERYTHING``
    reads ``{i : i < kv_lengths_t}``. A list belongs to one KV head and serves its query group (``Hs = Hkv``), or to one
    query head (``Hs = Hq``). A block must not be listed twice. Moves ``2 * D`` elements of cache and, with a bias, one
    float for each token of each list, once for all rows, and ``B * Hs * N`` indices. Off the CPU, where counts cannot
    be looked at, the width of the gather is the larger of a full list and the whole cache.

    With ``scores``, which takes ``T = 1``, a list ``h`` that reads everything and has a row also leaves
    ``scores[b, score_rows[h], j] = max_{i in block j, i < length} mean_g(scale * q_g k_i)``: the mean runs over the
    query heads that the list serves, without the bias, in the unit of the logits (natural logarithm).

    Args:
        q: ``[B, Hq, T, D]``, any float dtype; sums run in float32 (float64 for float64).
        k: ``[B, Hkv, S, D]``, ``Hq`` a multiple of ``Hkv``.
        v: ``[B, Hkv, S, D]``.
        indices: ``[B, Hs, N]`` int64 block numbers.
        counts: ``[B, Hs]`` int64, valid leading entries of each list; the others may hold anything. ``EVERYTHING``
            (-1): the whole row is read.
        block_size: tokens in a block; the last block of a row may be cut short by its length.
        kv_lengths: ``[B]`` int64, or ``[B, T]`` with a limit for each row of the block; over ``S`` counts as ``S``.
        row_mask: ``[B, Hs, T, N]`` bool, row ``t`` reads list entry ``n``; ``None`` reads all entries. Lists of
            everything ignore it.
        scale: factor on the scores, above 0; ``D ** -0.5`` when left out.
        bias: ``[B, Hs, S]``, added to the scaled scores of the list's tokens (natural logarithm).
        kv_tokens_read: ``[B]`` int64, to which the listed tokens below the largest limit, summed over lists, are added.
        scores: ``[B, R, P]``, any float dtype and strides, ``P = ceil(S / score_block)``, to be written. Blocks that
            begin at or past a row's length, and rows of lists that do not read everything, stay as they are.
        score_rows: ``[Hs]`` int64, the row of ``scores`` that each list fills, no two the same; -1 fills none.
        score_block: tokens that one score stands for; 1 scores every token. Triton takes powers of two alone, and up to
            64 query heads a list where it scores.
        uneven: a load-balancing hint for lists that differ much in length, without effect on the output.
        k_scale: ``[B, Hkv, D]`` where keys and values are codes as in ``Fp8Layer``, ``v`` ``[B, Hkv, N, D, V]``: what
            is attended to are the numbers that they stand for.
        v_scale: ``[B, Hkv]``, likewise.

    Returns:
        ``out`` ``[B, Hq, T, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, T]`` in float32 (float64 for float64); a row
        with nothing to read gives zeros and minus infinity.

    Raises:
        ValueError: shapes do not fit, or scores are asked of more than one row.

    Source: Tang et al. 2024, Quest (arXiv 2406.10774), section 3.3: attention over selected pages; LycheeDecode (arXiv
    2602.04541) and its released code (95c3d2c): group-mean scores, max-pooled over blocks.
    """
    batch, heads, rows, dim = q.shape
    kv_heads, capacity, lists = k.shape[1], k.shape[2], indices.shape[1]
    if k_scale is not None and v_scale is not None:
        from longdecode.kernels.quantised_kv.naive import Fp8Layer, from_fp8  # few runs store codes

        k, v = (part[:, :, :capacity] for part in from_fp8(Fp8Layer(k, v, k_scale, v_scale)))
    check_shapes(q, kv_heads, indices, kv_lengths, row_mask)
    check_scores(scores, score_rows, score_block, (batch, lists, capacity), rows)
    scale = dim**-0.5 if scale is None else scale
    dtype = accumulator(q.dtype)
    limits = kv_lengths.clamp(max=capacity).view(batch, -1)
    longest = limits.amax(dim=1)
    if scores is not None and score_rows is not None:
        _write_scores(q, k, longest, counts, scale, scores, score_rows, score_block)

    tokens, visible = _tokens(indices, counts, longest, block_size, capacity)
    if kv_tokens_read is not None:
        kv_tokens_read += visible.sum(dim=(1, 2))
    tokens = torch.where(visible, tokens, 0)
    base = torch.arange(batch, device=q.device)[:, None] * kv_heads + (
        torch.arange(lists, device=q.device) // (lists // kv_heads)
    )
    if k.stride(0) == v.stride(0) == 0:  # one cache for all rows, which need not be copied for each
        base, k, v = base % kv_heads, k[:1], v[:1]
    flat = (base[..., None] * capacity + tokens).flatten()
    shape = (batch, lists, tokens.shape[-1], dim)
    keys = k.reshape(-1, dim).index_select(0, flat).view(shape).to(dtype)
    values = v.reshape(-1, dim).index_select(0, flat).view(shape).to(dtype)
    seen = visible[:, :, None] & (tokens[:, :, None] < limits[:, None, :, None])
    if row_mask is not None:
        entry = torch.arange(tokens.shape[-1], device=q.device) // block_size
        listed = row_mask[..., entry.clamp(max=row_mask.shape[-1] - 1)]
        seen = seen & (listed | (counts == EVERYTHING)[..., None, None])

    logits = (q.reshape(batch, lists, heads // lists * rows, dim).to(dtype) * scale) @ keys.transpose(-1, -2)
    if bias is not None:
        logits = logits + bias.gather(2, tokens)[:, :, None].to(dtype)
    logits = torch.where(seen[:, :, None], logits.unflatten(2, (-1, rows)), float("-inf"))
    lse = torch.logsumexp(logits, dim=-1)
    probabilities = torch.exp(logits - torch.where(lse == float("-inf"), 0.0, lse)[..., None]).flatten(2, 3)
    # What may not be read was gathered from slot 0, which is clean unless the row is empty.
    out = torch.where(lse.flatten(2)[..., None] == float("-inf"), 0.0, probabilities @ values)
    return out.to(q.dtype).reshape(q.shape), lse.reshape(batch, heads, rows)


def check_shapes(q: Tensor, kv_heads: int, indices: Tensor, kv_lengths: Tensor, row_mask: Tensor | None) -> None:
    """Refuse lists, lengths and masks that do not fit the queries ``[B, Hq, T, D]``.

    Raises:
        ValueError: the number of lists is neither that of KV heads nor of query heads, ``kv_lengths`` is neither
            ``[B]`` nor ``[B, T]``, or ``row_mask`` is not ``[B, Hs, T, N]`` bool.
    """
    (batch, heads, rows, _), lists = q.shape, indices.shape[1]
    if heads % kv_heads or lists not in (kv_heads, heads):
        raise ValueError(f"{lists} index lists fit neither {kv_heads} KV heads nor {heads} query heads")
    if kv_lengths.shape not in ((batch,), (batch, rows)):
        raise ValueError(f"kv_lengths {tuple(kv_lengths.shape)}; [{batch}] or [{batch}, {rows}] is needed")
    wanted = (batch, lists, rows, indices.shape[2])
    if row_mask is not None and (row_mask.shape != wanted or row_mask.dtype != torch.bool):
        raise ValueError(f"row_mask {row_mask.dtype} {tuple(row_mask.shape)}; bool {list(wanted)} is needed")


def check_scores(
    scores: Tensor | None, score_rows: Tensor | None, score_block: int, shape: tuple[int, int, int], rows: int
) -> None:
    """Refuse score arguments that do not fit each other or ``shape``: rows of the batch, lists and capacity.

    Raises:
        ValueError: one of ``scores`` and ``score_rows`` is missing, a shape or the block does not fit, or there is more
            than one query row.
    """
    batch, lists, capacity = shape
    if scores is None and score_rows is None:
        return
    if rows != 1:
        raise ValueError(f"scores are left by one query row, got {rows}")
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
    """Return the token numbers ``[B, Hs, W]`` of the lists, and which of them may be read."""
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
