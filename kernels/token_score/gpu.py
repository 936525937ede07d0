"""Token scores as a Triton kernel: one pass over the keys, reduced over the query group before anything is written."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import wait_for_earlier
from longdecode.kernels.score_rows import ScoreLaunch, load_keys, score_keys, store_scores


@triton.jit
def token_score_kernel(
    p_q, p_k, p_lengths, p_out, q_batch, q_head, q_dim, k_batch, k_head, k_token, k_dim,
    scale, rows, kv_heads, capacity,
    REDUCE: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr, TILES: tl.constexpr, STAGES: tl.constexpr,
    UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``s_{h,i} = scale * q_h . k_i`` over tiles of tokens of one KV head, reduced over heads.

    ``REDUCE`` is ``max``, ``sum`` or ``mean`` over the head's ``rows`` queries, or ``none``. Grid
    ``(tiles / TILES, B * Hkv)``. Tokens at or past the length are not read and score minus infinity.

    ``p_q`` ``[B, Hq, 1, D]`` and ``p_k`` ``[B, Hkv, S, D]`` float32, float16 or bfloat16; ``p_lengths`` ``[B]``
    integer; ``p_out`` ``[B, Hkv or Hq, S]`` float32, contiguous. Moves
    ``sum(lengths) * Hkv * D`` elements in.
    """
    wait_for_earlier(PDL)
    i_list = tl.program_id(1).to(tl.int64)
    i_batch = i_list // kv_heads
    i_head = i_list % kv_heads
    o_row = tl.arange(0, BLOCK_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    length = tl.minimum(tl.load(p_lengths + i_batch), capacity)
    p_k += i_batch * k_batch + i_head * k_head

    o_q = (i_batch * q_batch + (i_head * rows + o_row) * q_head)[None, :] + (o_dim * q_dim)[:, None]
    b_q = tl.load(p_q + o_q, mask=(o_row < rows)[None, :] & (o_dim < DIM)[:, None], other=0.0)
    if UPCAST:
        b_q = b_q.to(tl.float32)
    for i_tile in tl.range(0, TILES, num_stages=STAGES):
        o_token = (tl.program_id(0) * TILES + i_tile) * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
        visible = o_token < length
        b_k = load_keys(p_k, o_token, k_token, o_dim, k_dim, visible, DIM, BLOCK_DIM).to(b_q.dtype)
        b_scores = tl.dot(b_k, b_q, input_precision="ieee") * scale
        store_scores(p_out, b_scores, visible, i_list, o_row, o_token, rows, capacity, REDUCE)


def token_logits_gpu(
    q: Tensor,
    k: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    group: str | None = None,
    launch: ScoreLaunch | None = None,
) -> Tensor:
    """Return attention logits of one query row as in ``naive.token_logits``, in one pass over the keys.

    Args:
        q: ``[B, Hq, 1, D]``, float32, float16 or bfloat16.
        k: ``[B, Hkv, S, D]`` in ``q``'s dtype, any strides.
        lengths: ``[B]`` integers; a length over ``S`` counts as ``S``.
        scale: factor on the scores; ``D ** -0.5`` when left out.
        group: ``max``, ``sum`` or ``mean`` over the query heads of a KV head; ``None`` keeps one score per query head.
        launch: launch constants; from the shapes when left out.

    Returns:
        ``[B, Hq, S]``, or ``[B, Hkv, S]`` under a group reduction, in float32.

    Raises:
        ValueError: the group reduction is unknown, the heads do not divide, there is more than one query row or the
            dtypes differ.
    """
    if q.dtype != k.dtype:
        raise ValueError(f"queries {q.dtype} and keys {k.dtype} of one dtype are needed")
    return score_keys(
        token_score_kernel, q, (k,), lengths, group, launch, q.shape[3] ** -0.5 if scale is None else scale
    )
