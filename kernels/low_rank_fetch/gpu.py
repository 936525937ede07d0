"""Queued chunks of a prompt as a Triton kernel: keys are rebuilt while their values cross the bus."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.block_residency.naive import BlockQueue
from longdecode.kernels.layout import needs_upcast
from longdecode.kernels.low_rank_fetch.naive import LowRankPrompt, check_prompt


@dataclass(frozen=True, slots=True)
class Launch:
    """Persistent programs, chunks whose values each has under way at a time, warps, ranks of a product at a time.

    The bus needs about 100 KB in flight (see ``host_fetch``): 64 programs of four chunks of 8 tokens have 512 KB.
    """

    programs: int
    group: int
    num_warps: int
    ranks: int


def choose_launch(chunk: int, dim: int, rank: int, dtype: torch.dtype) -> Launch:
    """Choose chunks so that a program has about 8 KB of bfloat16 values under way, and products that do not spill."""
    size = triton.next_power_of_2(chunk) * triton.next_power_of_2(dim)
    # Products of float32 run without tensor cores, out of registers.
    ranks = 16 if dtype == torch.float32 else max(16, min(64, triton.next_power_of_2(rank)))
    return Launch(programs=64, group=max(1, min(8, 4096 // size)), num_warps=4, ranks=ranks)


@triton.jit
def rebuild_chunk(
    p_factors, p_basis, p_cos, p_sin, p_k, i_token, i_place,
    RANK: tl.constexpr, DIM: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, BLOCK_HALF: tl.constexpr,
    BLOCK_RANK: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Rebuild one chunk's keys: ``x = U B``, then ``(x_1 cos - x_2 sin, x_2 cos + x_1 sin)`` of its halves.

    Pointers are those of its row (factors) and list (basis, slots); ``i_token`` and ``i_place`` its first token and
    first place in the slots. Rows at or past ``CHUNK`` fill the tile of the tensor cores.
    """
    o_row = tl.arange(0, ROWS)
    o_half = tl.arange(0, BLOCK_HALF)
    HALF: tl.constexpr = DIM // 2
    real = (o_row < CHUNK)[:, None] & (o_half < HALF)[None, :]
    b_first = tl.zeros([ROWS, BLOCK_HALF], dtype=tl.float32)
    b_second = tl.zeros([ROWS, BLOCK_HALF], dtype=tl.float32)
    for i_rank in range(0, RANK, BLOCK_RANK):
        o_rank = i_rank + tl.arange(0, BLOCK_RANK)
        b_factor = tl.load(
            p_factors + (i_token + o_row)[:, None] * RANK + o_rank[None, :],
            mask=(o_row < CHUNK)[:, None] & (o_rank < RANK)[None, :], other=0.0,
        )  # fmt: skip
        o_basis = o_rank[:, None] * DIM + o_half[None, :]
        inside = (o_rank < RANK)[:, None] & (o_half < HALF)[None, :]
        b_low = tl.load(p_basis + o_basis, mask=inside, other=0.0)
        b_high = tl.load(p_basis + o_basis + HALF, mask=inside, other=0.0)
        if UPCAST:
            b_factor, b_low, b_high = b_factor.to(tl.float32), b_low.to(tl.float32), b_high.to(tl.float32)
        b_first = tl.dot(b_factor, b_low, b_first, input_precision="ieee")
        b_second = tl.dot(b_factor, b_high, b_second, input_precision="ieee")
    b_first = b_first.to(p_k.dtype.element_ty).to(tl.float32)
    b_second = b_second.to(p_k.dtype.element_ty).to(tl.float32)
    o_angle = (i_token + o_row)[:, None] * HALF + o_half[None, :]
    b_cos = tl.load(p_cos + o_angle, mask=real, other=0.0)
    b_sin = tl.load(p_sin + o_angle, mask=real, other=0.0)
    p_to = p_k + (i_place + o_row)[:, None] * DIM + o_half[None, :]
    tl.store(p_to, (b_first * b_cos - b_second * b_sin).to(p_k.dtype.element_ty), mask=real)
    tl.store(p_to + HALF, (b_second * b_cos + b_first * b_sin).to(p_k.dtype.element_ty), mask=real)


@triton.jit
def fetch_chunks_kernel(
    p_factors, p_basis, p_cos, p_sin, p_values, p_k, p_v, p_sources, p_targets, p_count,
    factor_batch, value_batch, value_head, k_batch, k_head, v_batch, v_head, heads, chunks, slots,
    RANK: tl.constexpr, DIM: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_CHUNK: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_RANK: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Fetch chunks: ``v[target] = values[source]`` and ``k[target] = rotated(factors[source] basis)``.

    Grid ``(P,)``: program ``p`` takes ``GROUP`` queued chunks, then those ``P * GROUP`` further on. It asks for their
    values first, rebuilds their keys (``rebuild_chunk``), and stores the values when they are there.

    ``p_factors`` ``[B, S, r]``, ``p_basis`` ``[B, Hkv, r, D]``, ``p_values`` ``[B, Hkv, S, D]`` (on the device or in
    pinned host memory) and the slots ``[B, Hkv, T, D]`` of one dtype, tokens in one piece; ``p_cos`` and ``p_sin``
    ``[S, D / 2]`` float32; queue int64. Sums run in float32. Moves, for each chunk, ``CHUNK * D`` values in; as many
    and ``CHUNK * (r + D)`` numbers more from the device, the basis of its list through L2; ``2 * CHUNK * D`` out.
    """
    count = tl.load(p_count)
    i_first = tl.program_id(0).to(tl.int64) * GROUP
    o_row = tl.arange(0, GROUP * BLOCK_CHUNK)
    o_inside = o_row % BLOCK_CHUNK
    o_dim = tl.arange(0, BLOCK_DIM)
    while i_first < count:
        o_entry = i_first + o_row // BLOCK_CHUNK
        real = (o_entry < count) & (o_inside < CHUNK)
        # Numbers of chunks and slots fit 32 bits, in which a division takes a fraction of the time; addresses do not.
        b_source = tl.load(p_sources + o_entry, mask=real, other=0).to(tl.int32)
        b_target = tl.load(p_targets + o_entry, mask=real, other=0).to(tl.int32)
        b_list = b_source // chunks
        b_batch, b_head = (b_list // heads).to(tl.int64), (b_list % heads).to(tl.int64)
        b_token = ((b_source - b_list * chunks) * CHUNK + o_inside).to(tl.int64)
        b_from = b_batch * value_batch + b_head * value_head + b_token * DIM
        loaded = real[:, None] & (o_dim < DIM)[None, :]
        b_v = tl.load(p_values + b_from[:, None] + o_dim[None, :], mask=loaded)
        for i_chunk in tl.static_range(GROUP):
            if i_first + i_chunk < count:
                source = tl.load(p_sources + i_first + i_chunk).to(tl.int32)
                target = tl.load(p_targets + i_first + i_chunk).to(tl.int32)
                i_list = source // chunks
                i_batch, i_head = (i_list // heads).to(tl.int64), (i_list % heads).to(tl.int64)
                rebuild_chunk(
                    p_factors + i_batch * factor_batch, p_basis + i_list.to(tl.int64) * (RANK * DIM), p_cos, p_sin,
                    p_k + i_batch * k_batch + i_head * k_head,
                    ((source - i_list * chunks) * CHUNK).to(tl.int64), ((target - i_list * slots) * CHUNK).to(tl.int64),
                    RANK, DIM, CHUNK, ROWS, BLOCK_HALF, BLOCK_RANK, UPCAST,
                )  # fmt: skip
        b_place = ((b_target - b_list * slots) * CHUNK + o_inside).to(tl.int64)
        b_to = b_batch * v_batch + b_head * v_head + b_place * DIM
        tl.store(p_v + b_to[:, None] + o_dim[None, :], b_v, mask=loaded)
        i_first += tl.num_programs(0) * GROUP


def fetch_chunks_gpu(
    prompt: LowRankPrompt, k: Tensor, v: Tensor, queue: BlockQueue, launch: Launch | None = None
) -> None:
    """Put queued chunks into slots as in ``naive.fetch_chunks``, without the host; a CUDA graph can capture it.

    Args:
        prompt: float32, float16 or bfloat16; each row's and head's tokens in one piece, the basis contiguous.
        k: slots ``[B, Hkv, T, D]``, each head's tokens in one piece.
        v: likewise.
        queue: on the device.
        launch: how to run; ``choose_launch``'s when left out.

    Raises:
        ValueError: shapes, dtypes or strides do not fit.
    """
    check_prompt(prompt, k, v)
    dim, rank, chunk = k.shape[3], prompt.factors.shape[2], prompt.chunk
    pieces = ((prompt.factors, rank), (prompt.values, dim), (k, dim), (v, dim))
    whole = (prompt.basis, prompt.cos, prompt.sin)
    if any(x.stride()[-2:] != (width, 1) for x, width in pieces) or not all(x.is_contiguous() for x in whole):
        raise ValueError("tokens of factors, values and slots must lie in one piece, basis and angles be contiguous")
    if k.shape[0] * k.shape[1] * max(prompt.chunks, k.shape[2] // chunk) >= 1 << 31:
        raise ValueError(f"{k.shape[0]} rows of {prompt.chunks} chunks are more than 32 bits number")
    launch = launch or choose_launch(chunk, dim, rank, k.dtype)
    padded = triton.next_power_of_2(chunk)
    with torch.cuda.device_of(k):
        fetch_chunks_kernel[(launch.programs,)](
            prompt.factors, prompt.basis, prompt.cos, prompt.sin, prompt.values, k, v,
            queue.sources, queue.targets, queue.count,
            prompt.factors.stride(0), *prompt.values.stride()[:2], *k.stride()[:2], *v.stride()[:2],
            k.shape[1], prompt.chunks, k.shape[2] // chunk,
            RANK=rank, DIM=dim, CHUNK=chunk, GROUP=launch.group, ROWS=max(16, padded), BLOCK_CHUNK=padded,
            BLOCK_DIM=triton.next_power_of_2(dim), BLOCK_HALF=max(16, triton.next_power_of_2(dim // 2)),
            BLOCK_RANK=launch.ranks,
            UPCAST=needs_upcast(k),
            num_warps=launch.num_warps, num_stages=1,
        )  # fmt: skip
