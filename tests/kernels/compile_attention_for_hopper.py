"""Compiles every Triton kernel for compute capability 9.0; fails where one spills or takes too much shared memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from compile_only import RUNS, SHAPES, check, integers, meta
from torch import Tensor

from longdecode.kernels.attention_weights.gpu import attention_weights_gpu
from longdecode.kernels.decode_attention.gpu import decode_attention_gpu
from longdecode.kernels.eviction.gpu import choose_victims_gpu
from longdecode.kernels.linear.silu_gpu import silu_mul_gpu
from longdecode.kernels.page_minmax.gpu import build_page_minmax_gpu
from longdecode.kernels.page_score.gpu import page_score_gpu
from longdecode.kernels.quantised_kv import new_fp8, new_int4
from longdecode.kernels.quantised_kv.append_gpu import append_quantised_gpu
from longdecode.kernels.quantised_kv.fp8_gpu import attend_fp8_gpu
from longdecode.kernels.quantised_kv.int4_gpu import attend_int4_gpu
from longdecode.kernels.rms_norm.gpu import rms_norm_gpu
from longdecode.kernels.rope.gpu import apply_rope_gpu
from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu
from longdecode.kernels.sparse_training_attention.gpu import sparse_training_attention_gpu


def launch_all(batch: int, heads: int, kv_heads: int, dim: int, capacity: int, dtype: torch.dtype) -> None:
    """Every launch that decoding at this shape makes, and those of blocks of rows under a tree mask.

    A launch without an option takes less than the same with it, and is left out; so is a tree of 121, whose tiles are
    those of 41. Heads of 32 hold a quarter of what heads of 128 hold: fewer pairs of options.
    """
    tensor = partial(meta, dtype=dtype)
    cache, lengths, q = tensor(batch, kv_heads, capacity, dim), integers(batch), tensor(batch, heads, 1, dim)
    decode_attention_gpu(q, cache, cache, lengths, kv_tokens_read=lengths)
    evict(q, cache[:, :, :1024])
    quantise(q, tensor(batch, kv_heads, 1, dim), capacity)
    for rows in (8, 41) if dim == 128 else (8,):
        block, tree = tensor(batch, heads, rows, dim), meta(rows, rows, dtype=torch.bool)
        decode_attention_gpu(block, cache, cache, lengths, mask=tree, kv_tokens_read=lengths)
        attention_weights_gpu(block, cache, lengths, group="max", mask=tree, lse=meta(*block.shape[:3]))
        entries, mask = integers(batch, kv_heads, 128), meta(batch, kv_heads, rows, 128, dtype=torch.bool)
        limited = {"block_size": 16, "kv_lengths": integers(batch, rows), "row_mask": mask}
        sparse_decode_attention_gpu(block, cache, cache, entries, integers(batch, kv_heads), **limited)
    # lists, block, uneven, tokens a score stands for, bias
    options = [(kv_heads, 1, True, 1, False)]
    if dim == 128:
        options += [(kv_heads, 16, False, 64, False), (heads, 16, True, 0, False), (heads, 16, False, 0, True)]
    else:
        options.append((kv_heads, 1, False, 0, True))
    for lists, block, uneven, score_block, biased in options:
        plan: dict[str, Any] = {"block_size": block, "kv_lengths": lengths, "kv_tokens_read": lengths, "uneven": uneven}
        if score_block:
            plan |= {"scores": meta(batch, lists, capacity // score_block), "score_rows": integers(lists)}
            plan |= {"score_block": score_block}
        plan |= {"bias": meta(batch, lists, capacity)} if biased else {}
        indices, counts = integers(batch, lists, 2048 // block), integers(batch, lists)
        sparse_decode_attention_gpu(q, cache, cache, indices, counts, **plan)
    rms_norm_gpu(tensor(batch, 1, heads * dim), tensor(heads * dim), 1e-5)
    rms_norm_gpu(q.transpose(1, 2), tensor(dim), 1e-5)
    angles = meta(batch, 1, dim)
    apply_rope_gpu(q, tensor(batch, kv_heads, 1, dim), angles, angles)
    silu_mul_gpu(tensor(batch, 1, 7 * heads * dim))


def evict(q: Tensor, cache: Tensor) -> None:
    """One read of a kept cache that leaves its logits, and both rules of eviction."""
    (batch, heads), (kv_heads, kept) = q.shape[:2], cache.shape[1:3]
    logits, by_head = meta(batch, heads, kept), integers(batch, kv_heads)
    decode_attention_gpu(q, cache, cache, by_head, logits=logits)
    told = meta(batch, kv_heads, kept, dtype=torch.int32), meta(batch, kv_heads, kept)
    for rule in ("accumulate", "latest"):
        rows = integers(batch)
        choose_victims_gpu(logits, logits[..., 0], by_head, by_head, rows, rows, *told, by_head, rule=rule)


def quantise(q: Tensor, k: Tensor, capacity: int) -> None:
    """Append a token to eight-bit and four-bit storage and attend to it, or to listed blocks of it."""
    (batch, _, _, dim), kv_heads = q.shape, k.shape[1]
    size = (batch, kv_heads), capacity, dim, q.dtype, torch.device("meta")
    listed, fp8, int4 = new_fp8(*size, 16), new_fp8(*size), new_int4(*size)
    angles, rows, norm, lists = meta(batch, 1, dim), integers(batch), q[0, 0, 0], integers(batch, kv_heads, 256)
    bounds = build_page_minmax_gpu(listed.k, rows, 16)
    append_quantised_gpu(listed, q, k, k, angles, angles, rows, bounds=bounds, page_size=16)
    page_score_gpu(q, bounds, rows, group="max", k_scale=listed.k_scale)
    for uneven in (False, True) if q.dtype != torch.float32 else ():
        sparse_decode_attention_gpu(q, *listed[:2], lists, lists[..., 0], block_size=16, kv_lengths=rows, uneven=uneven,
                                    k_scale=listed.k_scale, v_scale=listed.v_scale)  # fmt: skip
    for layer, attend in ((fp8, attend_fp8_gpu), (int4, attend_int4_gpu)):
        append_quantised_gpu(layer, q, k, k, angles, angles, rows, q_norm=norm, k_norm=norm)
        # Eight bits in float32, which the gate alone runs, multiply out of registers that do not suffice.
        # Four bits in bfloat16 are compiled for heads of 128.
        if q.dtype != torch.float32 if layer is fp8 else q.dtype == torch.float32 or dim == 128:
            attend(layer, q, rows, rows)


def train_on_blocks() -> None:
    """Attention of a fork of SmolLM2 with the importance's bias, and its gradient."""
    tensor, kv_shape = partial(meta, dtype=torch.bfloat16), (2, 3, 4096, 64)
    leaves = [x.requires_grad_() for x in (tensor(2, 9, 4096, 64), tensor(*kv_shape), tensor(*kv_shape))]
    read, bias = meta(*kv_shape[:3], 256, dtype=torch.bool), meta(*kv_shape[:3])
    out = sparse_training_attention_gpu(*leaves, read, 16, bias, 0.125)
    out.backward(torch.empty_like(out))


if __name__ == "__main__":
    cases = [(f"{name}, {dtype}", partial(launch_all, *SHAPES[name], dtype)) for name, dtype in RUNS]
    check([*cases, ("training", train_on_blocks)])
