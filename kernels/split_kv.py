"""Shared parts of split-KV attention kernels: one step of online softmax, partial results, and their merge."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.multiprocessors import MERGE_PARTS
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier

LOG2E = 1.4426950408889634
COUNTERS = 1 << 16
"""Lists times row tiles that may be under way in one launch with a fused merge."""
_COUNTERS: dict[torch.device, Tensor] = {}
_LN2 = tl.constexpr(0.6931471805599453)
_MERGE_ELEMENTS_A_THREAD = 128


class Partials(NamedTuple):
    """Partial results of lists: unnormalised outputs ``[P, R, D]``, row maxima (base 2) and sums ``[P, R]``, float32.

    The parts of one list lie one after the other.
    """

    acc: Tensor
    top: Tensor
    total: Tensor


def new_partials(parts: int, rows: int, dim: int, device: torch.device) -> Partials:
    """Return uninitialised scratch for ``parts`` parts of ``rows`` query rows."""
    acc = torch.empty(parts, rows, dim, dtype=torch.float32, device=device)
    top = torch.empty(parts, rows, dtype=torch.float32, device=device)
    return Partials(acc, top, torch.empty_like(top))


def empty_outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    """Return uninitialised outputs in ``q``'s shape and dtype, contiguous, and their log-sum-exp in float32."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return out, torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)


def merge_tile(rows: int, parts: int, dim: int, num_warps: int) -> tuple[int, int]:
    """Return rows and parts that a merge step loads at once: ``rows * parts * dim`` numbers, 128 a thread at most."""
    parts = min(MERGE_PARTS, triton.next_power_of_2(parts))
    most = _MERGE_ELEMENTS_A_THREAD * 32 * num_warps // (parts * dim)
    return max(1, min(triton.next_power_of_2(rows), most)), parts


def arrival_counters(needed: int, device: torch.device) -> Tensor:
    """Return the device's ``COUNTERS`` arrival counters ``[COUNTERS]`` int32, zero between launches.

    A launch counts the finished parts of each list here, and whoever finishes a list sets its counter back to zero, so
    that nothing need be cleared. All launches of a device share the counters:
    they must run one after the other (one stream, no programmatic overlap of two of them). The buffer is made once per
    device, at its first use, and is never freed, so that a captured graph's pointer to it stays good; made during a
    capture it would belong to that graph's pool and be zeroed only by its replay, which is refused.

    Raises:
        ValueError: ``needed`` is more than there are.
        RuntimeError: the first use on this device falls into the capture of a CUDA graph.
    """
    if needed > COUNTERS:
        raise ValueError(f"a fused merge has {COUNTERS} arrival counters, {needed} are needed")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if device not in _COUNTERS:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"the first attention on {device} must run before a CUDA graph is captured: warm up first"
            )
        _COUNTERS[device] = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
    return _COUNTERS[device]


@triton.jit
def deal_out(i_split, tiles, SPLITS: tl.constexpr):
    """Return the first tile of a split and the one after its last; the first splits take what is left over."""
    share = tiles // SPLITS
    spare = tiles % SPLITS
    start = i_split * share + tl.minimum(i_split, spare)
    return start, start + share + tl.where(i_split < spare, 1, 0)


@triton.jit
def empty_state(BLOCK_ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr):
    """Return maximum, sum and weighted values of rows that have read nothing, as ``softmax_step`` takes them."""
    b_top = tl.full([BLOCK_ROWS], float("-inf"), dtype=tl.float32)
    b_total = tl.zeros([BLOCK_ROWS, BLOCK_TOKENS if BLOCK_ROWS == 16 else 1], dtype=tl.float32)
    return b_top, b_total, tl.zeros([BLOCK_ROWS, BLOCK_DIM], dtype=tl.float32)


@triton.jit
def tile_scores(b_q, b_k, scale_log2):
    """Return scaled scores of a tile in base 2: ``b_q`` ``[R, D]`` and ``b_k`` ``[N, D]`` give ``[R, N]`` float32."""
    return tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale_log2


@triton.jit
def softmax_step(b_scores, b_v, b_top, b_total, b_acc):
    """Fold a tile's scores ``[R, N]`` and values ``[N, D]`` into running maximum, sum and weighted values, in base 2.

    Invisible tokens have scores of minus infinity and finite values; a tile may be wholly invisible. The sum is kept
    in as many columns as ``b_total`` has, one a token of the tile or a single one: summed over at the end, they save
    a reduction across warps in every tile.
    """
    b_new = tl.maximum(b_top, tl.max(b_scores, 1))
    b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
    b_shrink = tl.exp2(b_top - b_base)
    b_weights = tl.exp2(b_scores - b_base[:, None])
    if b_total.shape[1] == 1:
        b_total = b_total * b_shrink[:, None] + tl.sum(b_weights, 1)[:, None]
    else:
        b_total = b_total * b_shrink[:, None] + b_weights
    b_acc = tl.dot(b_weights.to(b_v.dtype), b_v, b_acc * b_shrink[:, None], input_precision="ieee")
    return b_new, b_total, b_acc


@triton.jit
def store_rows(p_out, p_lse, b_sum, b_top, b_total, o_out, live, o_dim, DIM: tl.constexpr):
    """Normalise and write finished rows: ``out = sum / total`` and its log-sum-exp; rows without tokens hold zeros."""
    b_total = tl.where(b_total == 0.0, 1.0, b_total)
    b_out = (b_sum / b_total[:, None]).to(p_out.dtype.element_ty)
    tl.store(p_out + o_out[:, None] * DIM + o_dim[None, :], b_out, mask=live[:, None] & (o_dim < DIM)[None, :])
    tl.store(p_lse + o_out, (b_top + tl.log2(b_total)) * _LN2, mask=live)


@triton.jit
def join_parts(
    p_acc, p_top, p_total, i_first, parts, i_row,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_PARTS: tl.constexpr,
):  # fmt: skip
    """Return sum, maximum and total of ``parts`` parts from slot ``i_first`` on, for the rows from ``i_row`` on.

    They are joined in the order of their slots, whoever wrote them first: a result repeats to the bit.
    """
    o_row = i_row + tl.arange(0, MERGE_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    o_part = tl.arange(0, MERGE_PARTS)
    live = o_row < ROWS
    # One list's parts fit 32-bit offsets from a 64-bit start.
    i_first = tl.cast(i_first, tl.int64) * ROWS
    p_acc += i_first * DIM
    p_top += i_first
    p_total += i_first
    b_top = tl.full([MERGE_ROWS], float("-inf"), dtype=tl.float32)
    b_total = tl.zeros([MERGE_ROWS], dtype=tl.float32)
    b_sum = tl.zeros([MERGE_ROWS, BLOCK_DIM], dtype=tl.float32)
    for i_part in range(0, parts, MERGE_PARTS):
        o_at = (i_part + o_part)[:, None] * ROWS + o_row[None, :]
        held = (i_part + o_part < parts)[:, None] & live[None, :]
        # Other programs wrote these: they are in L2, never in this multiprocessor's L1.
        b_tops = tl.load(p_top + o_at, mask=held, other=float("-inf"), cache_modifier=".cg")
        b_totals = tl.load(p_total + o_at, mask=held, other=0.0, cache_modifier=".cg")
        o_acc = o_at[:, :, None] * DIM + o_dim[None, None, :]
        stored = held[:, :, None] & (o_dim < DIM)[None, None, :]
        b_accs = tl.load(p_acc + o_acc, mask=stored, other=0.0, cache_modifier=".cg")
        b_new = tl.maximum(b_top, tl.max(b_tops, 0))
        b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
        b_shrink = tl.exp2(b_top - b_base)
        b_weights = tl.exp2(b_tops - b_base[None, :])
        b_total = b_total * b_shrink + tl.sum(b_weights * b_totals, 0)
        b_sum = b_sum * b_shrink[:, None] + tl.sum(b_weights[:, :, None] * b_accs, 0)
        b_top = b_new
    return b_sum, b_top, b_total


@triton.jit
def merge_parts(
    p_acc, p_top, p_total, p_out, p_lse, i_list, i_first, parts, i_row,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_PARTS: tl.constexpr,
):  # fmt: skip
    """Join ``parts`` parts as ``join_parts`` does and write the list's rows: see ``merge_parts_kernel``."""
    b_sum, b_top, b_total = join_parts(
        p_acc, p_top, p_total, i_first, parts, i_row, ROWS, DIM, BLOCK_DIM, MERGE_ROWS, MERGE_PARTS
    )
    o_row = i_row + tl.arange(0, MERGE_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    store_rows(p_out, p_lse, b_sum, b_top, b_total, i_list * ROWS + o_row, o_row < ROWS, o_dim, DIM)


@triton.jit
def store_part(
    p_acc, p_top, p_total, b_acc, b_top, b_total, i_slot, i_row,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Write the rows from ``i_row`` on of the part in a slot."""
    o_row = i_row + tl.arange(0, BLOCK_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    live = o_row < ROWS
    i_at = tl.cast(i_slot, tl.int64) * ROWS
    o_acc = o_row[:, None] * DIM + o_dim[None, :]
    tl.store(p_top + i_at + o_row, b_top, mask=live)
    tl.store(p_total + i_at + o_row, b_total, mask=live)
    tl.store(p_acc + i_at * DIM + o_acc, b_acc, mask=live[:, None] & (o_dim < DIM)[None, :])


@triton.jit
def finish_part(
    p_acc, p_top, p_total, p_counter, p_out, p_lse, b_acc, b_top, b_total,
    i_list, i_slot, i_first, parts, i_row,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr, MERGE_ROWS: tl.constexpr,
    MERGE_PARTS: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    """Write one part of a list; with ``FUSED``, whoever writes the list's last part joins them all.

    A list of one part is finished at once. ``i_slot`` is where this part goes, ``i_first`` where the list's ``parts``
    parts begin, ``p_counter`` the list's (and row tile's) counter, ``i_row`` the first row of the tile.
    """
    o_row = i_row + tl.arange(0, BLOCK_ROWS)
    o_dim = tl.arange(0, BLOCK_DIM)
    live = o_row < ROWS
    if parts == 1:
        store_rows(p_out, p_lse, b_acc, b_top, b_total, i_list * ROWS + o_row, live, o_dim, DIM)
    else:
        store_part(p_acc, p_top, p_total, b_acc, b_top, b_total, i_slot, i_row, ROWS, DIM, BLOCK_DIM, BLOCK_ROWS)
        if FUSED:
            # The barrier puts every thread's stores before the one thread's release.
            tl.debug_barrier()
            arrived = tl.atomic_add(p_counter, 1, sem="acq_rel", scope="gpu")
            if arrived == parts - 1:
                tl.store(p_counter, 0)
                if ROWS <= MERGE_ROWS:
                    merge_parts(
                        p_acc, p_top, p_total, p_out, p_lse, i_list, i_first, parts, 0,
                        ROWS, DIM, BLOCK_DIM, MERGE_ROWS, MERGE_PARTS,
                    )  # fmt: skip
                else:
                    for i_block in range(i_row, tl.minimum(i_row + BLOCK_ROWS, ROWS), MERGE_ROWS):
                        merge_parts(
                            p_acc, p_top, p_total, p_out, p_lse, i_list, i_first, parts, i_block,
                            ROWS, DIM, BLOCK_DIM, MERGE_ROWS, MERGE_PARTS,
                        )  # fmt: skip


@triton.jit
def merge_parts_kernel(
    p_acc, p_top, p_total, p_out, p_lse, parts,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, MERGE_ROWS: tl.constexpr, MERGE_PARTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Join the parts of lists: ``out = sum_s 2^{m_s - m} acc_s / sum_s 2^{m_s - m} l_s``; grid ``(lists, row blocks)``.

    ``p_acc`` ``[lists * S, R, D]``, ``p_top`` (``m``, base 2) and ``p_total`` (``l``) ``[lists * S, R]``, all float32;
    ``p_out`` ``[lists * R, D]``, ``p_lse`` ``[lists * R]`` float32, natural logarithm. Parts without tokens have ``m``
    = minus infinity, ``l`` = 0 and ``acc`` = 0; a row without any gives zeros and minus infinity. Moves
    ``lists * S * R * (D + 2)`` float32 in and ``lists * R * D`` elements out.

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference" (PyTorch blog).
    """
    let_next_start(PDL)
    wait_for_earlier(PDL)
    i_list = tl.program_id(0).to(tl.int64)
    merge_parts(
        p_acc, p_top, p_total, p_out, p_lse, i_list, i_list * parts, parts, tl.program_id(1) * MERGE_ROWS,
        ROWS, DIM, BLOCK_DIM, MERGE_ROWS, MERGE_PARTS,
    )  # fmt: skip


def merge_partials(partials: Partials, parts: int, out: Tensor, lse: Tensor) -> None:
    """Join partials in a launch of its own, ``parts`` parts a list, into ``out`` and ``lse``.

    A program a row, which reads all parts at once: waiting for memory several times would take longer than reading.

    Args:
        partials: see ``Partials``; the lists in the order of the output's rows.
        parts: of every list.
        out: ``[..., D]`` contiguous, any of the kernels' dtypes.
        lse: ``[...]`` contiguous float32.
    """
    slots, rows, dim = partials.acc.shape
    padded = triton.next_power_of_2(dim)
    most = max(MERGE_PARTS, _MERGE_ELEMENTS_A_THREAD * 32 * 4 // padded)
    merge_rows, merge_some = 1, min(most, triton.next_power_of_2(parts))
    merge_parts_kernel[(slots // parts, triton.cdiv(rows, merge_rows))](
        *partials, out, lse, parts,
        ROWS=rows, DIM=dim, BLOCK_DIM=padded, MERGE_ROWS=merge_rows, MERGE_PARTS=merge_some, num_warps=4,
        **overlap_settings(True, out.device),
    )  # fmt: skip
