"""The projections of a decode step as Triton kernels.

With ``PDL`` (programmatic dependent launch) a kernel may start while its predecessors still run. It then touches only
the weight, which nothing writes during a step, until ``gdc_wait``; that returns when every earlier kernel has ended and
its writes are visible. Whatever it reads of theirs, and whatever it writes, comes after. See ``kernels/overlap.py``.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.layout import needs_upcast
from longdecode.kernels.linear import silu_mul
from longdecode.kernels.linear.launch import Launch, choose_launch
from longdecode.kernels.multiprocessors import shared_limit
from longdecode.kernels.overlap import let_next_start, overlap_settings
from longdecode.kernels.split_kv import arrival_counters


@triton.jit
def prefetch_rows(
    p_rows, w_channel, up, start, FIRST: tl.constexpr, LAST: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr,
    VECTOR: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Ask for tiles ``FIRST .. LAST - 1`` after channel ``start`` of weight rows ``[BLOCK_N, 1]`` to be brought to L2.

    Nothing waits for them.
    """
    # A pointer for each sector of 32 bytes: whether the instruction brings whole lines is not documented.
    SECTOR: tl.constexpr = min(BLOCK_K, 2 * VECTOR)
    for i_tile in tl.static_range(FIRST, LAST):
        o_k = start + i_tile * BLOCK_K + tl.arange(0, BLOCK_K // SECTOR) * SECTOR
        p_sectors = p_rows + (tl.minimum(o_k, K - 1) * w_channel)[None, :]
        prefetch(p_sectors)
        if GATED:
            prefetch(p_sectors + up)


@triton.jit
def prefetch(p):
    """Bring what the pointers point at to L2."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [p], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def gate(b_gate, b_up, dtype: tl.constexpr):
    """``silu(g) * u`` of projections rounded to the dtype, as where they are stored in between."""
    b_gate = b_gate.to(dtype).to(tl.float32)
    return b_gate * tl.sigmoid(b_gate) * b_up.to(dtype).to(tl.float32)


@triton.jit
def load_weight(p_rows, w_channel, up, o_k, K: tl.constexpr, EVICTION: tl.constexpr, GATED: tl.constexpr):
    """A tile of weight rows ``[BLOCK_N, BLOCK_K]``, and of up rows where gated (elsewhere the same tile)."""
    b_weight = tl.load(p_rows + o_k * w_channel, mask=o_k < K, other=0.0, eviction_policy=EVICTION)
    b_up = b_weight
    if GATED:
        b_up = tl.load(p_rows + up + o_k * w_channel, mask=o_k < K, other=0.0, eviction_policy=EVICTION)
    return b_weight, b_up


@triton.jit
def add_product(b_acc, b_weight, b_x, VECTOR: tl.constexpr):
    """Add ``w * x`` to sums ``[BLOCK_N, BLOCK_K / VECTOR]``: a vector's elements stay in the thread that loaded it."""
    b_product = b_weight.to(tl.float32) * b_x
    return b_acc + tl.sum(tl.reshape(b_product, [b_acc.shape[0], b_acc.shape[1], VECTOR]), 2)


@triton.jit
def linear_fma_kernel(
    p_x, p_weight, p_bias, p_out, x_row, x_channel, w_row, w_channel, rows, width, up,
    K: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    VECTOR: tl.constexpr, EVICTION: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr, PREFETCH: tl.constexpr,
):  # fmt: skip
    """``BLOCK_N`` outputs of one row: ``y_n = sum_k x_k W_nk + b_n``; gated, ``silu(sum x_k G_nk) * sum x_k U_nk``.

    Grid ``ceil(N / BLOCK_N) * rows``, the rows of a tile beside each other. ``p_x`` ``[rows, K]``, ``p_weight``
    ``[N, K]`` (the up rows ``up`` elements after the gate's) and ``p_bias`` ``[N]`` in one of float32, float16 and
    bfloat16, ``x`` and weight of any strides (in elements); ``p_out`` ``[rows, N]`` contiguous. Each thread adds its
    own channels in float32, the threads' sums are added once at the end. Moves ``N * K`` elements (``2 * N * K``
    gated), and ``x`` once a program, from L2.
    """
    let_next_start(PDL)
    i_row = (tl.program_id(0) % rows).to(tl.int64)
    o_n = (tl.program_id(0) // rows) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Programs past the edge repeat the last row: loads without a mask stay whole vectors.
    o_from = tl.minimum(o_n, width - 1).to(tl.int64)
    p_rows = p_weight + o_from[:, None] * w_row
    p_x += i_row * x_row
    b_first = tl.zeros([BLOCK_N, BLOCK_K // VECTOR], dtype=tl.float32)
    b_second = tl.zeros([BLOCK_N, BLOCK_K // VECTOR], dtype=tl.float32)
    if PDL:
        # The first tile waits in registers, the next ones in L2, for ``x`` to be written.
        o_k = tl.arange(0, BLOCK_K)[None, :]
        b_weight, b_up = load_weight(p_rows, w_channel, up, o_k, K, EVICTION, GATED)
        prefetch_rows(p_rows, w_channel, up, 0, 1, 1 + PREFETCH, K, BLOCK_K, VECTOR, GATED)
        tl.extra.cuda.gdc_wait()
        b_x = tl.load(p_x + o_k * x_channel, mask=o_k < K, other=0.0).to(tl.float32)
        b_first = add_product(b_first, b_weight, b_x, VECTOR)
        if GATED:
            b_second = add_product(b_second, b_up, b_x, VECTOR)
    START: tl.constexpr = BLOCK_K if PDL else 0
    for start in tl.range(START, K, BLOCK_K, num_stages=STAGES):
        o_k = start + tl.arange(0, BLOCK_K)[None, :]
        b_x = tl.load(p_x + o_k * x_channel, mask=o_k < K, other=0.0).to(tl.float32)
        b_weight, b_up = load_weight(p_rows, w_channel, up, o_k, K, EVICTION, GATED)
        b_first = add_product(b_first, b_weight, b_x, VECTOR)
        if GATED:
            b_second = add_product(b_second, b_up, b_x, VECTOR)
    b_out = tl.sum(b_first, 1)
    if BIAS:
        b_out += tl.load(p_bias + o_from).to(tl.float32)
    if GATED:
        b_out = gate(b_out, tl.sum(b_second, 1), p_out.dtype.element_ty)
    tl.store(p_out + i_row * width + o_n, b_out.to(p_out.dtype.element_ty), mask=o_n < width)


@triton.jit
def multiply(
    p_w, p_x, b_acc, inside_x, o_k, w_channel, x_channel, K: tl.constexpr, PARTS: tl.constexpr, EVICTION: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Add one tile's product ``W x^T`` to ``b_acc``; the last axis of the pointers is the channel's."""
    b_weight = tl.load(p_w + o_k * w_channel, mask=o_k < K, other=0.0, eviction_policy=EVICTION)
    b_x = tl.load(p_x + o_k * x_channel, mask=inside_x & (o_k < K), other=0.0)
    if UPCAST:
        b_weight = b_weight.to(tl.float32)
        b_x = b_x.to(tl.float32)
    b_x = tl.permute(b_x, (1, 0)) if PARTS == 1 else tl.permute(b_x, (0, 2, 1))
    return tl.dot(b_weight, b_x, b_acc, input_precision="ieee")


@triton.jit
def store_outputs(p_bias, p_out, b_out, o_from, o_n, o_row, rows, width, BIAS: tl.constexpr):
    """Add the bias to outputs ``[BLOCK_N, BLOCK_ROWS]`` and write them, a column a row of ``p_out`` ``[rows, N]``."""
    if BIAS:
        b_out += tl.load(p_bias + o_from).to(tl.float32)[:, None]
    p_to = p_out + o_row.to(tl.int64)[None, :] * width + o_n[:, None]
    tl.store(p_to, b_out.to(p_out.dtype.element_ty), mask=(o_n < width)[:, None] & (o_row < rows)[None, :])


@triton.jit
def linear_dot_kernel(
    p_x, p_weight, p_bias, p_out, p_parts, p_counters, x_row, x_channel, w_row, w_channel, rows, width, up,
    K: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr, VECTOR: tl.constexpr, EVICTION: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr, PREFETCH: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """``BLOCK_N`` outputs of ``BLOCK_ROWS`` rows: ``y_rn = sum_k x_rk W_nk + b_n``, or gated; see the kernel above.

    Grid ``(ceil(N / BLOCK_N), ceil(rows / BLOCK_ROWS), SPLITS)``. The weight is the left operand, so that the few rows
    take the tensor core's narrow side. The channels of a tile fall into ``PARTS`` runs, multiplied by warps of their
    own and added at the end. Columns of a product do not mix: a row's result does not depend on its neighbours.
    With ``SPLITS``, programs share the channels of a tile of outputs: each leaves its sums in ``p_parts`` (a slot
    ``[BLOCK_N, BLOCK_ROWS]`` float32 a program), and the last of a tile by ``p_counters`` (int32, zero between
    launches) adds them in the order of the channels: a result repeats to the bit. Moves ``N * K`` elements
    (``2 * N * K`` gated) once a row tile, ``rows * K / SPLITS`` once a program, from L2, and parts in and out.
    """
    let_next_start(PDL)
    SHARE: tl.constexpr = (K + BLOCK_K * SPLITS - 1) // (BLOCK_K * SPLITS) * BLOCK_K
    first, last = 0, K
    if SPLITS > 1:
        first = tl.program_id(2) * SHARE
        last = tl.minimum(first + SHARE, K)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Programs past the edge repeat the last row: loads without a mask stay whole vectors.
    o_from = tl.minimum(o_n, width - 1).to(tl.int64)
    if PDL:
        p_first = p_weight + o_from[:, None] * w_row
        prefetch_rows(p_first, w_channel, up, first, 0, PREFETCH, K, BLOCK_K, VECTOR, GATED)
        tl.extra.cuda.gdc_wait()
    o_row = tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    i_rows = o_row.to(tl.int64)
    PART: tl.constexpr = BLOCK_K // PARTS
    if PARTS == 1:
        o_channel = tl.arange(0, BLOCK_K)[None, :]
        p_w = p_weight + o_from[:, None] * w_row
        p_rows = p_x + i_rows[:, None] * x_row
        inside = (o_row < rows)[:, None]
        b_first = tl.zeros([BLOCK_N, BLOCK_ROWS], dtype=tl.float32)
        b_second = tl.zeros([BLOCK_N, BLOCK_ROWS], dtype=tl.float32)
    else:
        o_channel = tl.arange(0, PARTS)[:, None, None] * PART + tl.arange(0, PART)[None, None, :]
        p_w = p_weight + o_from[None, :, None] * w_row
        p_rows = p_x + i_rows[None, :, None] * x_row
        inside = (o_row < rows)[None, :, None]
        b_first = tl.zeros([PARTS, BLOCK_N, BLOCK_ROWS], dtype=tl.float32)
        b_second = tl.zeros([PARTS, BLOCK_N, BLOCK_ROWS], dtype=tl.float32)
    for start in tl.range(first, last, BLOCK_K, num_stages=STAGES):
        o_k = start + o_channel
        b_first = multiply(p_w, p_rows, b_first, inside, o_k, w_channel, x_channel, K, PARTS, EVICTION, UPCAST)
        if GATED:
            b_second = multiply(
                p_w + up, p_rows, b_second, inside, o_k, w_channel, x_channel, K, PARTS, EVICTION, UPCAST
            )
    if PARTS > 1:
        b_first = tl.sum(b_first, 0)
        b_second = tl.sum(b_second, 0)
    if GATED:
        b_first = gate(b_first, b_second, p_out.dtype.element_ty)
    if SPLITS == 1:
        store_outputs(p_bias, p_out, b_first, o_from, o_n, o_row, rows, width, BIAS)
    else:
        i_tile = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        o_part = tl.arange(0, BLOCK_N)[:, None] * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[None, :]
        p_parts += i_tile.to(tl.int64) * (SPLITS * BLOCK_N * BLOCK_ROWS) + o_part
        tl.store(p_parts + tl.program_id(2) * (BLOCK_N * BLOCK_ROWS), b_first)
        # The barrier puts every thread's stores before the one thread's release.
        tl.debug_barrier()
        arrived = tl.atomic_add(p_counters + i_tile, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLITS - 1:
            tl.store(p_counters + i_tile, 0)
            b_sum = tl.zeros([BLOCK_N, BLOCK_ROWS], dtype=tl.float32)
            for i_split in tl.static_range(0, SPLITS):
                # Other programs wrote these: they are in L2, never in this multiprocessor's L1.
                b_sum += tl.load(p_parts + i_split * (BLOCK_N * BLOCK_ROWS), cache_modifier=".cg")
            store_outputs(p_bias, p_out, b_sum, o_from, o_n, o_row, rows, width, BIAS)


def linear_gpu(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, launch: Launch | None = None) -> Tensor:
    """Project the last axis as in ``naive.linear``, reading the weight once for 64 rows.

    Args:
        x: ``[..., K]``, float32, float16 or bfloat16.
        weight: ``[N, K]`` in ``x``'s dtype, any strides; whole vectors are loaded where ``K`` lies contiguous.
        bias: ``[N]`` in ``x``'s dtype.
        launch: how; by ``choose_launch`` when left out, which leaves many rows and float32 to torch.

    Returns:
        ``[..., N]`` in ``x``'s dtype.

    Raises:
        ValueError: shapes or dtypes differ.
    """
    return _project(x, weight, bias, launch, gated=False)


def gated_linear_gpu(x: Tensor, gate_up: Tensor, *, launch: Launch | None = None) -> Tensor:
    """Project and gate as in ``naive.gated_linear``, in one launch that reads the weight once for 16 rows.

    Args:
        x: ``[..., K]``, float32, float16 or bfloat16.
        gate_up: ``[2F, K]`` in ``x``'s dtype, the gate's rows first, any strides.
        launch: as in ``linear_gpu``.

    Returns:
        ``[..., F]`` in ``x``'s dtype.

    Raises:
        ValueError: shapes or dtypes differ, the weight's rows are odd in number, or the launch splits the channels.
    """
    return _project(x, gate_up, None, launch, gated=True)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, launch: Launch | None, gated: bool) -> Tensor:
    _check(x, weight, bias, gated)
    channels, width = x.shape[-1], weight.shape[0] // (2 if gated else 1)
    count = x.numel() // channels if channels else 0
    launch = launch or choose_launch(width, channels, count, x.dtype, gated, shared_limit(x.device))
    if launch is None:
        return _torch_path(x, weight, bias, gated)
    out = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    rows = x.reshape(-1, channels)
    arguments = (rows, weight, weight if bias is None else bias.contiguous(), out)
    sizes = (*rows.stride(), *weight.stride(), count, width, width * weight.stride(0))
    settings: dict[str, Any] = {
        "K": channels, "BIAS": bias is not None, "GATED": gated, "BLOCK_N": launch.block_n, "BLOCK_K": launch.block_k,
        "VECTOR": min(launch.block_k, 16 // x.element_size()), "EVICTION": launch.eviction,
        "STAGES": launch.num_stages, "PREFETCH": launch.prefetch, "num_warps": launch.num_warps,
        **overlap_settings(launch.launch_pdl, x.device),
    }  # fmt: skip
    if launch.max_registers is not None:
        settings["maxnreg"] = launch.max_registers
    tiles, row_tiles = triton.cdiv(width, launch.block_n), triton.cdiv(count, launch.block_rows)
    parts = counters = out
    if launch.splits > 1:
        if gated:
            raise ValueError(f"{launch.splits} splits of the channels: what is gated is not a sum over them")
        counters = arrival_counters(tiles * row_tiles, x.device)
        size = tiles * row_tiles * launch.splits * launch.block_n * launch.block_rows
        parts = torch.empty(size, dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        if launch.body == "fma":
            linear_fma_kernel[(tiles * count,)](*arguments, *sizes, **settings)
        else:
            linear_dot_kernel[(tiles, row_tiles, launch.splits)](
                *arguments, parts, counters, *sizes, **settings, BLOCK_ROWS=launch.block_rows, PARTS=launch.k_parts,
                SPLITS=launch.splits,
                UPCAST=needs_upcast(x),
            )  # fmt: skip
    return out


def _torch_path(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool) -> Tensor:
    # Two axes make one product. Of a strided ``[B, 1, K]``, such as the last rows of a block, torch makes a product a
    # row with the weight expanded: it is read ``B`` times.
    rows = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    out = silu_mul(F.linear(rows, weight)) if gated else F.linear(rows, weight, bias)
    return out.view(*x.shape[:-1], out.shape[-1])


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool) -> None:
    """Raise where the shapes or dtypes of a projection do not fit each other."""
    given = f"rows {x.dtype} of {x.shape[-1]}, weight {weight.dtype} {list(weight.shape)}"
    if weight.dim() != 2 or weight.shape[1] != x.shape[-1] or weight.dtype != x.dtype:
        raise ValueError(f"a projection needs one dtype and as many channels as its input: {given}")
    if gated and weight.shape[0] % 2:
        raise ValueError(f"gate and up need rows of equal number: {given}")
    if bias is not None and (bias.dtype != x.dtype or bias.shape != weight.shape[:1]):
        raise ValueError(f"bias {bias.dtype} {list(bias.shape)} does not fit: {given}")
