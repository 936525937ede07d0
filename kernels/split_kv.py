"""What split-KV attention kernels share: the host's plan, one step of online softmax, the merge of the splits."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = 1.4426950408889634
_LN2 = tl.constexpr(0.6931471805599453)
_MERGE_SPLITS = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program works on and with: query rows, padded channels, tokens a step, warps, pipeline stages."""

    rows: int
    dim: int
    tokens: int
    num_warps: int
    num_stages: int


class Partials(NamedTuple):
    """What splits leave: unnormalised outputs ``[P, R, S, D]``, row maxima (base 2) and sums ``[P, R, S]``, float32."""

    acc: Tensor
    top: Tensor
    total: Tensor


def choose_tile(rows: int, dim: int, dtype: torch.dtype) -> Tile:
    """Launch constants for ``rows`` queries of one list and head dimension ``dim``; sized by hand, not tuned.

    Tensor cores take at least 16 rows and 16 channels. float32 products run without them, out of registers, so their
    tiles are smaller.
    """
    padded = max(16, triton.next_power_of_2(dim))
    if dtype == torch.float32:
        return Tile(16, padded, 32 if padded <= 64 else 16, num_warps=4, num_stages=2)
    tokens = {16: 128, 32: 128, 64: 128, 128: 64}.get(padded, 32)
    return Tile(min(64, max(16, triton.next_power_of_2(rows))), padded, tokens, num_warps=4, num_stages=3)


def choose_splits(tokens: int, programs: int, device: torch.device) -> int:
    """How many programs share the tokens of one list, from static shapes alone; sized by hand, not tuned.

    Enough that two programs a multiprocessor are in flight, none with fewer than 128 tokens of a full list.

    Args:
        tokens: the most a list can hold.
        programs: lists times row tiles, each of which is split.
    """
    return max(1, min(2 * _multiprocessors(device) // programs, triton.cdiv(tokens, 128), 128))


@cache
def _multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device; an H200's where there is none to ask."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def new_partials(lists: int, rows: int, splits: int, dim: int, device: torch.device) -> Partials:
    """Uninitialised scratch; a split without tokens writes its maximum and sum, and its ``acc`` is never read."""
    acc = torch.empty(lists, rows, splits, dim, dtype=torch.float32, device=device)
    top = torch.empty(lists, rows, splits, dtype=torch.float32, device=device)
    return Partials(acc, top, torch.empty_like(top))


@triton.jit
def softmax_step(b_q, b_k, b_v, visible, b_top, b_total, b_acc, scale_log2):
    """Fold one tile of keys and values into running maximum, sum and weighted values, in base 2.

    ``b_q`` ``[R, D]``, ``b_k`` and ``b_v`` ``[N, D]``, ``visible`` ``[N]``; a tile may be wholly invisible.
    """
    b_scores = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale_log2
    b_scores = tl.where(visible[None, :], b_scores, float("-inf"))
    b_new = tl.maximum(b_top, tl.max(b_scores, 1))
    b_base = tl.where(b_new == float("-inf"), 0.0, b_new)
    b_shrink = tl.exp2(b_top - b_base)
    b_weights = tl.exp2(b_scores - b_base[:, None])
    b_total = b_total * b_shrink + tl.sum(b_weights, 1)
    b_acc = tl.dot(b_weights.to(b_v.dtype), b_v, b_acc * b_shrink[:, None], input_precision="ieee")
    return b_new, b_total, b_acc


@triton.jit
def store_partials(
    p_acc, p_top, p_total, b_acc, b_top, b_total, i_list, o_row, i_split, splits, rows, o_dim, dim, has_tokens
):
    """Write one split's rows; ``acc`` only where the split had tokens to sum."""
    o_part = (i_list * rows + o_row) * splits + i_split
    tl.store(p_top + o_part, b_top, mask=o_row < rows)
    tl.store(p_total + o_part, b_total, mask=o_row < rows)
    written = (o_row < rows)[:, None] & (o_dim < dim)[None, :] & has_tokens
    tl.store(p_acc + o_part[:, None] * dim + o_dim[None, :], b_acc, mask=written)


@triton.jit
def merge_splits_kernel(
    p_acc, p_top, p_total, p_out, p_lse, splits,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, ALL_SPLITS: tl.constexpr, BLOCK_SPLITS: tl.constexpr,
):  # fmt: skip
    """Join the splits of one query row: ``out = sum_s 2^{m_s - m} acc_s / sum_s 2^{m_s - m} l_s``, one program a row.

    ``p_acc`` ``[rows, S, D]``, ``p_top`` (``m``, base 2) and ``p_total`` (``l``) ``[rows, S]``, all float32; ``p_out``
    ``[rows, D]``, ``p_lse`` ``[rows]`` float32, natural logarithm. Splits without tokens have ``m`` = minus infinity
    and ``l`` = 0, and their ``acc`` is not read; a row without any gives zeros and minus infinity. Moves
    ``rows * S * (D + 2)`` float32 in and ``rows * D`` elements out.

    Source: Dao et al. 2023, "Flash-Decoding for long-context inference" (PyTorch blog).
    """
    i_row = tl.program_id(0).to(tl.int64)
    o_dim = tl.arange(0, BLOCK_DIM)
    o_all = tl.arange(0, ALL_SPLITS)
    b_tops = tl.load(p_top + i_row * splits + o_all, mask=o_all < splits, other=float("-inf"))
    b_totals = tl.load(p_total + i_row * splits + o_all, mask=o_all < splits, other=0.0)
    top = tl.max(b_tops, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(b_tops - base) * b_totals, 0)
    b_out = tl.zeros([BLOCK_DIM], dtype=tl.float32)
    for i_split in range(0, splits, BLOCK_SPLITS):
        o_split = i_split + tl.arange(0, BLOCK_SPLITS)
        b_top = tl.load(p_top + i_row * splits + o_split, mask=o_split < splits, other=float("-inf"))
        b_total = tl.load(p_total + i_row * splits + o_split, mask=o_split < splits, other=0.0)
        o_acc = (i_row * splits + o_split)[:, None] * DIM + o_dim[None, :]
        # Not by the maximum, which drops NaN: a NaN among the scores must reach the output.
        holds = (b_total != 0.0)[:, None] & (o_dim < DIM)[None, :]
        b_acc = tl.load(p_acc + o_acc, mask=holds, other=0.0)
        b_out += tl.sum(b_acc * tl.exp2(b_top - base)[:, None], 0)
    total = tl.where(total == 0.0, 1.0, total)
    b_out = b_out / total
    tl.store(p_out + i_row * DIM + o_dim, b_out.to(p_out.dtype.element_ty), mask=o_dim < DIM)
    tl.store(p_lse + i_row, (top + tl.log2(total)) * _LN2)


def merge_splits(partials: Partials, shape: torch.Size, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Join partials whose rows lie in the order of the output's.

    Args:
        partials: see ``Partials``; ``P * R`` is the number of output rows.
        shape: of the output, ``[..., D]``.
        dtype: of the output.

    Returns:
        ``out`` of that shape and ``lse`` ``[...]`` float32; rows that read nothing hold zeros and minus infinity.
    """
    lists, rows, splits, dim = partials.acc.shape
    out = torch.empty(shape, dtype=dtype, device=partials.acc.device)
    lse = torch.empty(shape[:-1], dtype=torch.float32, device=partials.acc.device)
    merge_splits_kernel[(lists * rows,)](
        *partials, out, lse, splits,
        DIM=dim, BLOCK_DIM=triton.next_power_of_2(dim), ALL_SPLITS=triton.next_power_of_2(splits),
        BLOCK_SPLITS=_MERGE_SPLITS, num_warps=4,
    )  # fmt: skip
    return out, lse
