"""Compiles the selection kernels for compute capability 9.0; fails where one spills or takes too much shared memory."""

from __future__ import annotations

from functools import partial

import torch
from compile_only import RUNS, SHAPES, check, integers, meta

from longdecode.kernels.block_choice import BlockShares
from longdecode.kernels.block_choice.gpu import choose_blocks_gpu
from longdecode.kernels.block_residency import Arrivals, BlockQueue, Residents
from longdecode.kernels.block_residency.gpu import claim_slots_gpu
from longdecode.kernels.block_residency.slots_gpu import values_in_slots_gpu
from longdecode.kernels.block_score.gpu import block_scores_gpu
from longdecode.kernels.chunk_residency import ChunkResidents
from longdecode.kernels.chunk_residency.gpu import claim_chunks_gpu
from longdecode.kernels.host_fetch.gpu import copy_blocks_gpu
from longdecode.kernels.importance import Importance, ImportanceWeights
from longdecode.kernels.importance.gpu import append_importance_gpu
from longdecode.kernels.layout import GROUP_REDUCTIONS
from longdecode.kernels.low_rank_fetch import LowRankPrompt
from longdecode.kernels.low_rank_fetch.gpu import fetch_chunks_gpu
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.page_minmax import gpu as minmax
from longdecode.kernels.page_minmax.rebuild_gpu import rebuild_page_minmax_gpu
from longdecode.kernels.page_score.gpu import page_score_gpu
from longdecode.kernels.pooled_keys.gpu import append_pooled_key_gpu
from longdecode.kernels.pooled_keys.naive import PooledKeys, Pooling
from longdecode.kernels.resident_attention.gpu import resident_attention_gpu
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu
from longdecode.kernels.token_score.gpu import token_logits_gpu
from longdecode.kernels.topk_select import gpu as topk
from longdecode.kernels.window_correction.gpu import attend_window_gpu
from longdecode.kernels.window_correction.gpu_append import append_window_gpu
from longdecode.kernels.window_correction.gpu_pages import unseen_pages_gpu


def launch_topk() -> None:
    """Lists in registers and through the sieve."""
    for size, k in ((63, 16), (8192, 256), (32_768, 3277), (524_288, 52_429)):
        valid = integers(1)
        topk.topk_select_gpu(meta(1, 8, size), k, valid, keep_last=1)
        topk.topk_select_gpu(meta(1, 8, size), k, valid, keep_last=1, row_k=valid)
        lists, heads = integers(1, 8, k), integers(3)
        topk.topk_select_into_gpu(meta(1, 3, size), k, valid, lists, heads, keep_first=2, keep_last=5)


def launch_scores(batch: int, heads: int, kv_heads: int, dim: int, capacity: int, dtype: torch.dtype) -> None:
    """Every score and bound of a cache; float16 compiles as bfloat16 does."""
    q, k = meta(batch, heads, 1, dim, dtype=dtype), meta(batch, kv_heads, capacity, dim, dtype=dtype)
    lengths = integers(batch)
    bounds = minmax.build_page_minmax_gpu(k, lengths, 16)
    minmax.update_page_minmax_gpu(bounds, k, integers(batch, kv_heads, 8), 16)
    for group in (None, *GROUP_REDUCTIONS)[: None if dim == 128 else 2]:  # scores are reduced in float32 everywhere
        page_score_gpu(q, bounds, lengths, group=group)
        token_logits_gpu(q, k, lengths, group=group)
    rebuild_page_minmax_gpu(bounds, k, lengths, lengths, 2, 16)
    page_score_gpu(q, PageBounds(bounds.minimum[:, :, :256], bounds.maximum[:, :, :256]), lengths, group="max")


def launch_windows(batch: int, heads: int, kv_heads: int, dim: int, capacity: int, dtype: torch.dtype) -> None:
    """RetroAttention's windows of 4 and 32 rows, one sequence and several, heads as a projection leaves them."""
    for several in sorted({batch, 4}):
        k = meta(several, kv_heads, capacity, dim, dtype=dtype)
        bounds = PageBounds(*(meta(several, kv_heads, capacity // 16, dim, dtype=dtype) for _ in range(2)))
        indices = integers(several, kv_heads, 256)
        loaded = meta(several, kv_heads, capacity // 16, dtype=torch.int32)
        for window in (32,) if batch == several == 1 else (4,):
            rows = integers(several, window)
            fused = meta(several, window, heads + 2 * kv_heads, dim, dtype=dtype).transpose(1, 2)
            angles = meta(several, window, dim)
            q = append_window_gpu(
                *fused.split((heads, kv_heads, kv_heads), dim=1), angles, angles, k, k, rows, bounds, 16,
                rows[:, 0],
            )  # fmt: skip
            attend_window_gpu(
                q, k, k, indices, indices[..., 0], loaded, rows, rows,
                meta(several, heads, window - 1, dim, dtype=dtype), meta(several, heads, window - 1), block_size=16,
                kv_tokens_read=rows[:, 0],
            )  # fmt: skip
    unseen_pages_gpu(loaded, indices, indices[..., 0], rows)


def launch_blocks(batch: int, heads: int, kv_heads: int, dim: int, capacity: int, dtype: torch.dtype) -> None:
    """Pooled keys, importances, scores and choice of blocks."""
    pooling, block = Pooling(32, 16), 64
    room, lengths = pooling.room(capacity), integers(batch)
    k = meta(batch, kv_heads, capacity, dim, dtype=dtype)
    pooled = PooledKeys(meta(batch, kv_heads, room, dim, dtype=dtype), meta(batch, kv_heads, 32, dim, dtype=dtype))
    append_pooled_key_gpu(pooled, k, lengths, lengths, pooling)
    kept = Importance(meta(batch, kv_heads, capacity), meta(batch, kv_heads, capacity // block))
    weights = ImportanceWeights(meta(kv_heads, kv_heads * dim), meta(kv_heads))
    append_importance_gpu(kept, k[:, :, :1], weights, lengths, pooling, block)
    logits, lse = meta(batch, heads, room), meta(batch, heads)
    block_scores_gpu(logits, lse, lengths, kv_heads, pooling, block, capacity // block)
    q, shares = meta(batch, heads, 1, dim, dtype=dtype), BlockShares(1, 16, 16, 31)
    for importances in (kept.blocks, None):
        choose_blocks_gpu(q, pooled.means, lengths, lengths, importances, shares, pooling, block, capacity // block)


def launch_rows(batch: int, heads: int, kv_heads: int, dim: int, capacity: int, dtype: torch.dtype) -> None:
    """Prompt rows that read lists of their own with a bias; heads of 32 in bfloat16 take registers as heads of 128."""
    k, tiles, rows = meta(batch, kv_heads, capacity, dim, dtype=dtype), 32, 16
    for width, size in ((capacity // 64, 64), (512, 1))[: 2 if dim == 128 else 1]:
        sparse_decode_attention_gpu(
            meta(tiles, heads, rows, dim, dtype=dtype), *[k[:1].expand(tiles, -1, -1, -1)] * 2,
            integers(tiles, kv_heads, width), integers(tiles, kv_heads), block_size=size,
            kv_lengths=integers(tiles, rows),
            row_mask=meta(tiles, kv_heads, rows, width, dtype=torch.bool),
            bias=meta(1, kv_heads, capacity).expand(tiles, -1, -1),
        )  # fmt: skip


def launch_offload(dtype: torch.dtype) -> None:
    """Slots of 64 to 1,024 a list, and blocks of 64 tokens; attention that waits for them and at once."""
    integer, single = torch.int64, dtype == torch.float32
    queue = BlockQueue(meta(5121, dtype=integer), meta(5121, dtype=integer), meta(1, dtype=integer))
    for slots in (64, 96, 128, 1024):
        held = meta(40, 2, slots, dtype=integer)
        residents = Residents(held, held, queue.count, meta(40, dtype=integer), held)
        lists = meta(40, 2, 64, dtype=integer)
        arrivals = Arrivals(meta(40, 2, 64, dtype=torch.int32), queue.sources) if slots > 64 else None
        claim_slots_gpu(lists, meta(40, 2, dtype=integer), residents, queue, 1024, arrivals)
        values_in_slots_gpu(meta(40, 2, 65_600), held, 64)
    pair = (meta(80 * 1024, 64 * 128, dtype=dtype),) * 2
    for waited in (None, arrivals):
        copy_blocks_gpu(pair, (meta(80 * 96, 64 * 128, dtype=dtype),) * 2, queue, waited)
    for heads, dim, width in ((32, 128, 64), (8, 256, 64), (8, 64, 4))[single : 2 + single]:
        near, lists, count = meta(40, 2, 96 * 64, dim, dtype=dtype), meta(40, 2, width, dtype=integer), meta(40, 2)
        waits = Arrivals(meta(40, 2, width, dtype=torch.int32), queue.sources)
        for waited in (None, waits) if heads == 32 else (waits,):
            resident_attention_gpu(
                meta(40, heads, 1, dim, dtype=dtype), near, near, lists, count.long(), block_size=64,
                kv_lengths=count[:, 0].long(), bias=meta(40, 2, 96 * 64), kv_tokens_read=count[:, 0].long(),
                arrivals=waited,
            )  # fmt: skip


def launch_chunks(dtype: torch.dtype) -> None:
    """ShadowKV's chunks of 8 and 64 tokens: as NOSA runs it, as published, and of full rank as the gate checks."""
    integer, small, single = torch.int64, torch.int32, dtype == torch.float32
    for batch, heads, dim, rank, chunk, slots in (
        (25, 2, 128, 40, 8, 384), (1, 8, 128, 160, 8, 1536), (2, 8, 64, 512, 64, 48), (4, 4, 32, 128, 8, 24),
    )[2 * single : 3 + single]:  # fmt: skip
        tokens = 65_600
        queue = BlockQueue(*[meta(batch * heads * slots + 1, dtype=integer)] * 2, meta(1, dtype=integer))
        held, slot_of = (meta(batch, heads, n + 1, dtype=small) for n in (slots, tokens // chunk))
        lists, counts = meta(batch, heads, slots, dtype=integer), meta(batch, heads, dtype=integer)
        claim_chunks_gpu(lists, counts, ChunkResidents(held, slot_of, counts[:, 0], held), queue, lists)
        prompt = LowRankPrompt(
            meta(batch, tokens, rank, dtype=dtype), meta(batch, heads, rank, dim, dtype=dtype),
            *[meta(tokens, dim // 2)] * 2, meta(batch, heads, tokens, dim, dtype=dtype), chunk,
        )  # fmt: skip
        near = meta(batch, heads, slots * chunk + 1065, dim, dtype=dtype)
        fetch_chunks_gpu(prompt, *[near[:, :, : slots * chunk]] * 2, queue)


NOSA_8B = (32, 32, 2, 128, 65_600)

if __name__ == "__main__":
    launches = [partial(launch_topk)]
    for name, dtype in RUNS:
        launches += [partial(launch, *SHAPES[name], dtype) for launch in (launch_scores, launch_windows)]
        shape = SHAPES[name] if name == "miniature" else NOSA_8B
        launches += [partial(launch, *shape, dtype) for launch in (launch_blocks, launch_rows)]
    launches.append(partial(launch_rows, *SHAPES["miniature"], torch.bfloat16))
    for dtype in (torch.bfloat16, torch.float32):
        launches += [partial(launch_offload, dtype), partial(launch_chunks, dtype)]
    check((f"{launch.func.__name__}{launch.args}", launch) for launch in launches)
