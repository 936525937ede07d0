"""Choice of the token that the next one replaces as one Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.eviction.naive import check_rule
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.split_kv import LOG2E, arrival_counters

_LOG2E = tl.constexpr(LOG2E)
_TOKENS = 256
_NONE = tl.constexpr(0x7F800000)
"""Bits of infinity, above those of any score."""


@triton.jit
def eviction_kernel(
    p_logits, p_lse, p_lengths, p_newest, p_position, p_protected, p_slot_positions, p_scores, p_victims,
    p_least, p_counters, length_batch, length_head, newest_batch, newest_head, kv_heads, capacity,
    ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, CHUNKS: tl.constexpr,
    LATEST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``s_i += sum_h 2^{log2(e) (logit_hi - lse_h)}`` over a group, and the free slot of the lowest ``s_i``.

    With ``LATEST`` ``s_i`` is the mean over all query heads, the program's ``ROWS``, and each KV head's. Grid
    ``(chunks, Hkv, B)``, ``(chunks, 1, B)`` with ``LATEST``: each program leaves its lowest score and slot in
    ``p_least`` ``[lists, chunks]`` int64, and the last of a list by ``p_counters`` (int32, zero between launches) takes
    the lowest of all. ``p_logits`` ``[B, Hq, S]`` and ``p_lse`` ``[B, Hq]`` float32,
    ``p_slot_positions`` ``[B, Hkv, S]`` int32, ``p_scores`` ``[B, Hkv, S]`` float32, ``p_victims`` ``[B, Hkv]`` int64,
    contiguous; ``p_lengths`` and ``p_newest`` ``[B, Hkv]``, ``p_position`` and ``p_protected`` ``[B]`` int64. Moves
    ``B * S * (4 Hq + 8 Hkv)`` bytes, and a part's 8 twice.

    Source: Zhang et al. 2023, H2O (arXiv 2306.14048), algorithm 1; Oren et al. 2024, TOVA (arXiv 2401.06104), 3.2.
    """
    i_chunk = tl.program_id(0)
    i_head = tl.program_id(1).to(tl.int64)
    i_batch = tl.program_id(2).to(tl.int64)
    chunks = tl.num_programs(0)
    o_row = tl.arange(0, BLOCK_ROWS)
    o_token = i_chunk * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    let_next_start(PDL)
    wait_for_earlier(PDL)
    length = tl.load(p_lengths + i_batch * length_batch + i_head * length_head)
    newest = tl.load(p_newest + i_batch * newest_batch + i_head * newest_head)
    position = tl.load(p_position + i_batch).to(tl.int32)
    protected = tl.load(p_protected + i_batch)
    i_list = i_batch * kv_heads + i_head
    p_slot_positions += i_list * capacity
    p_scores += i_list * capacity
    # The program's first query head: of a group, or of the whole batch row, where there is one list for it.
    first = (i_batch if LATEST else i_list) * ROWS
    b_lse = tl.load(p_lse + first + o_row, mask=o_row < ROWS, other=float("inf"))
    inside = o_token < length
    p_rows = p_logits + (first + o_row)[:, None] * capacity + o_token[None, :]
    b_logits = tl.load(p_rows, mask=(o_row < ROWS)[:, None] & inside[None, :], other=float("-inf"))
    b_score = tl.sum(tl.exp2((b_logits - b_lse[:, None]) * _LOG2E), 0)
    b_position = tl.load(p_slot_positions + o_token, mask=inside, other=0)
    b_position = tl.where(o_token == newest, position, b_position)
    if LATEST:
        b_score = b_score / ROWS
        for i_other in range(kv_heads):
            tl.store(p_scores + i_other * capacity + o_token, b_score, mask=inside)
            tl.store(p_slot_positions + i_other * capacity + o_token, position, mask=o_token == newest)
    else:
        b_score += tl.load(p_scores + o_token, mask=inside & (o_token != newest), other=0.0)
        tl.store(p_scores + o_token, b_score, mask=inside)
        tl.store(p_slot_positions + o_token, position, mask=o_token == newest)
    # Scores are sums of weights: as integers, their bits have the same order. The slot stands below them.
    free = inside & (b_position < protected)
    b_least = tl.where(free, b_score.to(tl.int32, bitcast=True), _NONE).to(tl.int64) << 32 | o_token
    p_least += i_list * chunks
    tl.store(p_least + i_chunk, tl.min(b_least, 0))
    tl.debug_barrier()
    if tl.atomic_add(p_counters + i_list, 1, sem="acq_rel", scope="gpu") == chunks - 1:
        tl.store(p_counters + i_list, 0)
        o_chunk = tl.arange(0, CHUNKS)
        none: tl.constexpr = _NONE << 32
        b_all = tl.load(p_least + o_chunk, mask=o_chunk < chunks, other=none, cache_modifier=".cg")
        victim = tl.min(b_all, 0)
        victim = tl.where(victim >= none, 0, victim & 0xFFFFFFFF)
        if LATEST:
            for i_other in range(kv_heads):
                tl.store(p_victims + i_batch * kv_heads + i_other, victim)
        else:
            tl.store(p_victims + i_list, victim)


def choose_victims_gpu(
    logits: Tensor,
    lse: Tensor,
    lengths: Tensor,
    newest: Tensor,
    position: Tensor,
    protected: Tensor,
    slot_positions: Tensor,
    scores: Tensor,
    victims: Tensor,
    *,
    rule: str,
) -> None:
    """Score and choose as in ``naive.choose_victims``, in one launch.

    Args:
        logits: ``[B, Hq, S]`` float32, contiguous.
        lse: ``[B, Hq]`` float32.
        lengths: ``[B, Hkv]`` int64.
        newest: ``[B, Hkv]`` int64.
        position: ``[B]`` int64.
        protected: ``[B]`` int64.
        slot_positions: ``[B, Hkv, S]`` int32, contiguous.
        scores: ``[B, Hkv, S]`` float32, contiguous.
        victims: ``[B, Hkv]`` int64, contiguous.
        rule: ``accumulate`` or ``latest``.

    Raises:
        ValueError, RuntimeError: the rule is unknown; as ``split_kv.arrival_counters``, whose other rules hold too.
    """
    check_rule(rule)
    batch, heads, capacity = logits.shape
    kv_heads, latest = scores.shape[1], rule == "latest"
    rows = heads if latest else heads // kv_heads
    tokens = min(_TOKENS, triton.next_power_of_2(capacity))
    chunks, lists = triton.cdiv(capacity, tokens), batch * kv_heads
    least = torch.empty(lists * chunks, dtype=torch.int64, device=logits.device)
    with torch.cuda.device_of(logits):
        eviction_kernel[(chunks, 1 if latest else kv_heads, batch)](
            logits, lse.contiguous(), lengths, newest, position.contiguous(), protected.contiguous(), slot_positions,
            scores, victims, least, arrival_counters(lists, logits.device), *lengths.stride(), *newest.stride(),
            kv_heads, capacity, ROWS=rows, BLOCK_ROWS=triton.next_power_of_2(rows), BLOCK_TOKENS=tokens,
            CHUNKS=triton.next_power_of_2(chunks), LATEST=latest, num_warps=8 if rows > 8 else 4,
            **overlap_settings(True, logits.device),
        )  # fmt: skip
