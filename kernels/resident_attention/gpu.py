"""Attention over blocks in slots as a Triton kernel: one launch, or two around the arrival of the last blocks."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.resident_attention.launch import ResidentLaunch, choose_launch
from longdecode.kernels.resident_attention.naive import Arriving
from longdecode.kernels.sparse_decode_attention.naive import check_shapes
from longdecode.kernels.sparse_decode_attention.tiles import attend_tiles, load_blocks, load_queries
from longdecode.kernels.split_kv import LOG2E, arrival_counters, finish_part, merge_tile, new_partials


@triton.jit
def holds_late(p_late, first, stop, width, BLOCK_SIZE: tl.constexpr, ENTRIES: tl.constexpr):
    """Return true where one of the blocks with slots ``first`` to before ``stop`` of a list is late."""
    o_entry = first // BLOCK_SIZE + tl.arange(0, ENTRIES)
    mine = (o_entry < width) & (o_entry * BLOCK_SIZE < stop)
    return tl.max(tl.load(p_late + o_entry, mask=mine, other=0), 0) > 0


@triton.jit
def resident_attention_kernel(
    p_q, p_k, p_v, p_slots, p_counts, p_late, p_lengths, p_bias, p_tokens_read,
    p_acc, p_top, p_total, p_counters, p_out, p_lse,
    q_batch, q_head, q_dim, k_batch, k_head, v_batch, v_head, slot_batch, slot_list, slot_entry,
    count_batch, count_list, bias_batch, bias_list, bias_token, read_batch,
    scale_log2, capacity, width, lists, all_lists,
    K_TOKEN: tl.constexpr, K_DIM: tl.constexpr, V_TOKEN: tl.constexpr, V_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr, SHARE: tl.constexpr, ENTRIES: tl.constexpr,
    PHASE: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_PARTS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Parts of lists: ``m = max_i s_i``, ``l = sum_i 2^{s_i - m}``, ``acc = sum_i 2^{s_i - m} v_i``, then joined.

    ``i`` runs over the part's tokens and ``s_i = log2(e) * (scale * q . k_i + bias_i)``. Grid
    ``(SPLITS * row tiles, Hkv, B)``: program ``s`` takes the tokens ``s * SHARE`` to before ``(s + 1) * SHARE`` of its
    list: in phase ``at_hand`` where none of its blocks is late, in phase ``late`` where one is, in phase ``all``
    whichever. The first two write into the same parts and count arrivals in the same counters: each program arrives
    once, and the last one joins the parts in their order (``finish_part``). So no bit depends on which blocks are late.

    ``p_q`` ``[B, Hq, 1, D]``, ``p_k`` and ``p_v`` ``[B, Hkv, S, D]`` float32, float16 or bfloat16, any strides;
    ``p_slots`` ``[B, Hkv, N]`` and ``p_counts`` ``[B, Hkv]`` int64; ``p_late`` ``[B, Hkv, N]`` uint8, contiguous, or
    None in phase ``all``; ``p_lengths`` ``[B]`` int64; ``p_bias`` ``[B, Hkv, S]`` float32 or None; ``p_tokens_read``
    ``[B]`` int64 or None; partials as in ``Partials``; ``p_out`` and ``p_lse`` contiguous. Moves what
    ``sparse_decode_attention_kernel`` moves, and a byte a list entry and phase.

    Source: the split is that of Dao et al. 2023, "Flash-Decoding for long-context inference" (PyTorch blog); the phases
    are this project's.
    """
    i_program = tl.program_id(0) % SPLITS
    i_row_tile = tl.program_id(0) // SPLITS
    i_row = i_row_tile * BLOCK_ROWS
    o_row = i_row + tl.arange(0, BLOCK_ROWS)
    i_batch = tl.program_id(2).to(tl.int64)
    i_head = tl.program_id(1).to(tl.int64)
    i_list = i_batch * lists + i_head
    # These loads are under way while a program learns whether it is its turn.
    p_list = p_slots + i_batch * slot_batch + i_head * slot_list
    first = i_program * (SHARE // BLOCK_TOKENS)
    b_block = load_blocks(p_list, slot_entry, first, width, BLOCK_SIZE, BLOCK_TOKENS)
    length = tl.maximum(tl.minimum(tl.load(p_lengths + i_batch), capacity), 0).to(tl.int32)
    count = tl.load(p_counts + i_batch * count_batch + i_head * count_list)
    mine = True
    if PHASE != "all":
        late = holds_late(
            p_late + i_list * width, i_program * SHARE, (i_program + 1) * SHARE, width, BLOCK_SIZE, ENTRIES
        )
        mine = late == (PHASE == "late")
    if mine:
        listed = (tl.maximum(tl.minimum(count, width), 0) * BLOCK_SIZE).to(tl.int32)
        stop = tl.minimum(first + SHARE // BLOCK_TOKENS, tl.cdiv(listed, BLOCK_TOKENS))
        b_q = load_queries(p_q, q_batch, q_head, 0, q_dim, i_batch, i_head, o_row, 1, ROWS, DIM, BLOCK_DIM, UPCAST)
        b_top, b_total, b_acc = attend_tiles(
            b_q, b_block, p_k + i_batch * k_batch + i_head * k_head, p_v + i_batch * v_batch + i_head * v_head, p_list,
            None if p_bias is None else p_bias + i_batch * bias_batch + i_head * bias_list,
            None if p_tokens_read is None else p_tokens_read + i_batch * read_batch,
            first, stop, 1, False, listed, length, width, slot_entry, bias_token, scale_log2,
            None, False, 0, None, None, 0, 0, o_row, K_TOKEN, K_DIM, V_TOKEN, V_DIM,
            BLOCK_SIZE, DIM, BLOCK_DIM, BLOCK_ROWS, BLOCK_TOKENS, 1, ROWS, 0, UPCAST,
        )  # fmt: skip
        finish_part(
            p_acc, p_top, p_total, p_counters + i_row_tile * all_lists + i_list, p_out, p_lse, b_acc, b_top, b_total,
            i_list, i_list * SPLITS + i_program, i_list * SPLITS, SPLITS, i_row, ROWS,
            DIM, BLOCK_DIM, BLOCK_ROWS, MERGE_ROWS, MERGE_PARTS, True,
        )  # fmt: skip


def resident_attention_gpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    counts: Tensor,
    *,
    block_size: int,
    kv_lengths: Tensor,
    bias: Tensor | None = None,
    kv_tokens_read: Tensor | None = None,
    arriving: Arriving | None = None,
    launch: ResidentLaunch | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax attention as in ``naive.resident_attention``; a CUDA graph can capture it.

    With ``arriving`` two launches stand around its ``wait``. Launches on one device must follow one another (see
    ``split_kv.arrival_counters``), none between these two, and one must have run before the first capture.

    Args:
        q: ``[B, Hq, 1, D]``, float32, float16 or bfloat16.
        k: ``[B, Hkv, S, D]`` in ``q``'s dtype, any strides; fastest where ``D`` is contiguous.
        v: ``[B, Hkv, S, D]``, likewise.
        slots: ``[B, Hkv, N]`` int64, any strides; entries past the count may hold anything.
        counts: ``[B, Hkv]`` int64.
        block_size: tokens in a block, 1 or more.
        kv_lengths: ``[B]`` int64; a length over ``S`` counts as ``S``.
        bias: ``[B, Hkv, S]`` float32, any strides.
        kv_tokens_read: ``[B]`` int64, to which the tokens read, summed over lists, are added.
        arriving: blocks on their way, if any.
        launch: how to run; ``choose_launch``'s when left out.

    Returns:
        ``out`` ``[B, Hq, 1, D]`` in ``q``'s dtype and ``lse`` ``[B, Hq, 1]`` in float32.

    Raises:
        ValueError: a shape does not fit, there is more than one query row, or the dtypes differ.
    """
    batch, heads, queries, dim = q.shape
    lists, capacity, width = k.shape[1], k.shape[2], slots.shape[2]
    check_shapes(q, lists, slots, kv_lengths, None)
    if queries != 1 or slots.shape[1] != lists:
        raise ValueError(f"{queries} query rows and {slots.shape[1]} lists; 1 row and {lists} lists are needed")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"queries, keys and values of one dtype are needed, got {q.dtype}, {k.dtype}, {v.dtype}")
    late = None if arriving is None else arriving.late
    if late is not None and (late.shape != slots.shape or late.dtype != torch.bool or not late.is_contiguous()):
        raise ValueError(f"late {late.dtype} {tuple(late.shape)}; contiguous bool {list(slots.shape)} is needed")
    rows, all_lists = heads // lists, batch * lists
    launch = launch or choose_launch(all_lists, rows, dim, width * block_size, q.dtype, q.device)
    splits, row_tiles = launch.splits(width * block_size), triton.cdiv(rows, launch.rows)
    padded, alone = max(16, triton.next_power_of_2(dim)), splits == 1
    partials = new_partials(0 if alone else splits * all_lists, rows, dim, q.device)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    counters = lse if alone else arrival_counters(all_lists * row_tiles, q.device)
    merge_rows, merge_some = merge_tile(min(rows, launch.rows), splits, padded, launch.num_warps)

    def attend(phase: str) -> None:
        with torch.cuda.device_of(q):
            resident_attention_kernel[(splits * row_tiles, lists, batch)](
                q, k, v, slots, counts, None if late is None else late.view(torch.uint8), kv_lengths, bias,
                kv_tokens_read, *partials, counters, out, lse,
                q.stride(0), q.stride(1), q.stride(3), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
                *slots.stride(), *counts.stride(), *((0, 0, 0) if bias is None else bias.stride()),
                0 if kv_tokens_read is None else kv_tokens_read.stride(0),
                LOG2E * dim**-0.5, capacity, width, lists, all_lists,
                K_TOKEN=k.stride(2), K_DIM=k.stride(3), V_TOKEN=v.stride(2), V_DIM=v.stride(3), BLOCK_SIZE=block_size,
                DIM=dim, BLOCK_DIM=padded, BLOCK_ROWS=launch.rows, BLOCK_TOKENS=launch.tokens, ROWS=rows,
                SPLITS=splits, SHARE=launch.share,
                # Its share overlaps one block more where it begins inside one.
                ENTRIES=triton.next_power_of_2(triton.cdiv(launch.share, block_size) + 1), PHASE=phase,
                MERGE_ROWS=merge_rows, MERGE_PARTS=merge_some,
                # Triton's interpreter, which CPU tensors imply, computes wrongly on bfloat16.
                UPCAST=q.device.type == "cpu" and q.dtype == torch.bfloat16,
                num_warps=launch.num_warps, num_stages=launch.num_stages, maxnreg=launch.registers,
            )  # fmt: skip

    if arriving is None:
        attend("all")
    else:
        attend("at_hand")
        arriving.wait()
        attend("late")
    return out, lse
