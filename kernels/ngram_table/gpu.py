"""A table of n-grams as Triton kernels: three launches add a step's tokens, two look a token up."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.ngram_table.naive import NgramCounts
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier

_CHUNK = 2048


@triton.jit
def append_text_kernel(
    p_text, p_lengths, p_tokens, p_kept, p_before, size, token_row, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Append the first tokens of a step to one row's text; set its ``p_before`` ``[B, W]`` to 0. Grid ``(B,)``.

    ``p_text`` ``[B, S]``, ``p_lengths`` and ``p_kept`` ``[B]``, ``p_tokens`` ``[B, W]``, all int64.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_row = tl.program_id(0).to(tl.int64)
    o_place = tl.arange(0, BLOCK)
    b_length = tl.load(p_lengths + i_row)
    b_kept = tl.load(p_kept + i_row)
    b_token = tl.load(p_tokens + i_row * token_row + o_place, mask=o_place < WIDTH, other=0)
    taken = (o_place < WIDTH) & (o_place < b_kept) & (b_length + o_place < size - 1)
    tl.store(p_text + i_row * size + b_length + o_place, b_token, mask=taken)
    tl.store(p_before + i_row * WIDTH + o_place, tl.zeros([BLOCK], tl.int64), mask=o_place < WIDTH)
    tl.debug_barrier()  # no thread may read the length after another has written it
    tl.store(p_lengths + i_row, b_length + b_kept)


@triton.jit
def continuation(p_text, start, read, vocab, ORDER: tl.constexpr):
    """The tokens after ``start`` as one integer."""
    b_code = start * 0
    for i_step in tl.static_range(1, ORDER):
        b_code = b_code * vocab + tl.load(p_text + start + i_step, mask=read, other=0)
    return b_code


@triton.jit
def count_ngrams_kernel(
    p_text, p_lengths, p_code, p_count, p_latest, p_kept, p_before, size, reach, vocab,
    WIDTH: tl.constexpr, ORDER: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Find a step's n-grams in one chunk of the text: their counts go to ``p_before``, their places are latest no more.

    The texts end with the step's tokens already; one longer than its row is cut off. ``reach`` are the lag and
    ``ORDER - 1`` tokens. ``p_latest`` ``[B, S]`` is int8, the rest int64. Grid ``(B, chunks)``. Moves
    ``17 * S`` bytes a row.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_row = tl.program_id(0).to(tl.int64)
    o_place = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = o_place < size - 1
    p_text += i_row * size
    b_kept = tl.load(p_kept + i_row)
    b_first_start = tl.load(p_lengths + i_row) - b_kept - reach
    b_text = tl.load(p_text + o_place, mask=inside, other=-1)
    b_code = tl.load(p_code + i_row * size + o_place, mask=inside, other=-1)
    b_latest = tl.load(p_latest + i_row * size + o_place, mask=inside, other=0) != 0
    any_known = o_place < 0
    for i_place in tl.static_range(WIDTH):
        b_start = b_first_start + i_place
        counted = (b_start >= 0) & (b_start + ORDER < size) & (i_place < b_kept)
        b_token = tl.load(p_text + b_start, mask=counted, other=-2)
        known = b_latest & (b_text == b_token) & (b_code == continuation(p_text, b_start, counted, vocab, ORDER))
        known = known & counted
        b_found = tl.max(known.to(tl.int32), 0)
        if b_found > 0:
            b_count = tl.load(p_count + i_row * size + o_place, mask=known, other=0)
            tl.atomic_max(p_before + i_row * WIDTH + i_place, tl.max(b_count, 0))
        any_known = any_known | known
    tl.store(p_latest + i_row * size + o_place, tl.zeros([BLOCK], tl.int8), mask=any_known)


@triton.jit
def settle_ngrams_kernel(
    p_text, p_lengths, p_code, p_count, p_latest, p_kept, p_before, size, reach, vocab,
    WIDTH: tl.constexpr, ORDER: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write the entries of a step's n-grams of one row, which may be equal to one another. Grid ``(B,)``."""
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_row = tl.program_id(0).to(tl.int64)
    o_place = tl.arange(0, BLOCK)
    p_text += i_row * size
    b_kept = tl.load(p_kept + i_row)
    b_first_start = tl.load(p_lengths + i_row) - b_kept - reach
    b_start = b_first_start + o_place
    counted = (o_place < WIDTH) & (b_start >= 0) & (b_start + ORDER < size) & (o_place < b_kept)
    b_token = tl.load(p_text + b_start, mask=counted, other=-2)
    b_code = continuation(p_text, b_start, counted, vocab, ORDER)
    b_count = tl.load(p_before + i_row * WIDTH + o_place, mask=counted, other=0) + 1
    b_later = o_place < 0
    for i_place in tl.static_range(WIDTH):
        b_other = b_first_start + i_place
        other = (b_other >= 0) & (b_other + ORDER < size) & (i_place < b_kept)
        same = (b_token == tl.load(p_text + b_other, mask=other, other=-1)) & other
        same = same & (b_code == continuation(p_text, b_other, other, vocab, ORDER))
        b_count += (same & (i_place < o_place)).to(tl.int64)
        b_later = b_later | (same & (i_place > o_place))
    p_entry = i_row * size + b_start
    tl.store(p_count + p_entry, b_count, mask=counted)
    tl.store(p_code + p_entry, b_code, mask=counted)
    tl.store(p_latest + p_entry, tl.where(b_later, 0, 1).to(tl.int8), mask=counted)


@triton.jit
def chunk_candidates_kernel(
    p_text, p_count, p_latest, p_first, p_key, size, first_row, chunks,
    COUNT: tl.constexpr, BLOCK_COUNT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The ``COUNT`` largest keys ``count * S + place`` of one chunk's n-grams that begin with the row's token.

    ``p_key`` ``[B, chunks, COUNT]`` int64, -1 where there are fewer. Grid ``(B, chunks)``. Moves ``9 * S`` bytes a row.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_row = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    o_place = i_chunk.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = o_place < size - 1
    b_text = tl.load(p_text + i_row * size + o_place, mask=inside, other=-1)
    known = inside & (b_text == tl.load(p_first + i_row * first_row))
    known = known & (tl.load(p_latest + i_row * size + o_place, mask=known, other=0) != 0)
    b_key = tl.load(p_count + i_row * size + o_place, mask=known, other=0) * size + o_place
    b_key = tl.where(known, b_key, -1)
    filled = tl.minimum(tl.sum(known.to(tl.int32), 0), COUNT)
    p_best = p_key + (i_row * chunks + i_chunk) * COUNT
    o_count = tl.arange(0, BLOCK_COUNT)
    tl.store(p_best + o_count, tl.full([BLOCK_COUNT], -1, tl.int64), mask=(o_count >= filled) & (o_count < COUNT))
    for i_place in range(filled):
        b_best = tl.max(b_key, 0)
        tl.store(p_best + i_place, b_best)
        b_key = tl.where(b_key == b_best, -1, b_key)


@triton.jit
def continuations_kernel(
    p_text, p_key, p_out, candidates, size,
    COUNT: tl.constexpr, BLOCK_COUNT: tl.constexpr, ORDER: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The tokens after the best of a row's candidates: ``p_out`` ``[B, COUNT, ORDER - 1]`` int64. Grid ``(B,)``."""
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_row = tl.program_id(0).to(tl.int64)
    o_candidate = tl.arange(0, BLOCK)
    b_key = tl.load(p_key + i_row * candidates + o_candidate, mask=o_candidate < candidates, other=-1)
    filled = tl.minimum(tl.sum((b_key >= 0).to(tl.int32), 0), COUNT)
    p_found = p_out + i_row * COUNT * (ORDER - 1)
    o_count = tl.arange(0, BLOCK_COUNT)
    missing = (o_count >= filled) & (o_count < COUNT)
    for i_step in tl.static_range(ORDER - 1):
        tl.store(p_found + o_count * (ORDER - 1) + i_step, tl.full([BLOCK_COUNT], -1, tl.int64), mask=missing)
    for i_place in range(filled):
        b_best = tl.max(b_key, 0)
        for i_step in tl.static_range(ORDER - 1):
            b_token = tl.load(p_text + i_row * size + b_best % size + 1 + i_step)
            tl.store(p_found + i_place * (ORDER - 1) + i_step, b_token)
        b_key = tl.where(b_key == b_best, -1, b_key)


def add_ngrams_gpu(table: NgramCounts, tokens: Tensor, kept: Tensor) -> None:
    """Append and count as in ``naive.add_ngrams``; the table's tensors are contiguous, the rows of ``tokens`` too."""
    (rows, size), width = table.text.shape, tokens.shape[1]
    before = torch.empty(rows, width, dtype=torch.int64, device=tokens.device)
    latest = table.is_latest.view(torch.int8)
    overlap = overlap_settings(True, tokens.device)
    tensors = (table.text, table.lengths, table.code, table.count, latest, kept, before)
    numbers = (size, table.lag + table.order - 1, table.vocab)
    block = triton.next_power_of_2(width)
    with torch.cuda.device_of(tokens):
        append_text_kernel[(rows,)](
            table.text, table.lengths, tokens, kept, before, size, tokens.stride(0), WIDTH=width, BLOCK=block,
            num_warps=1, **overlap,
        )  # fmt: skip
        count_ngrams_kernel[(rows, triton.cdiv(size, _CHUNK))](
            *tensors, *numbers, WIDTH=width, ORDER=table.order, BLOCK=_CHUNK, num_warps=8, **overlap
        )
        settle_ngrams_kernel[(rows,)](
            *tensors, *numbers, WIDTH=width, ORDER=table.order, BLOCK=block, num_warps=1, **overlap
        )


def frequent_continuations_gpu(table: NgramCounts, first: Tensor, k: int) -> Tensor:
    """Look up as in ``naive.frequent_continuations``, ``first`` of any stride."""
    rows, size = table.text.shape
    chunks = triton.cdiv(size, _CHUNK)
    keys = torch.empty(rows, chunks * k, dtype=torch.int64, device=first.device)
    out = torch.empty(rows, k, table.order - 1, dtype=torch.int64, device=first.device)
    overlap = overlap_settings(True, first.device)
    many = {"COUNT": k, "BLOCK_COUNT": triton.next_power_of_2(k)}
    with torch.cuda.device_of(first):
        chunk_candidates_kernel[(rows, chunks)](
            table.text, table.count, table.is_latest.view(torch.int8), first, keys, size, first.stride(0), chunks,
            **many, BLOCK=_CHUNK, num_warps=8, **overlap,
        )  # fmt: skip
        candidates = chunks * k
        continuations_kernel[(rows,)](
            table.text, keys, out, candidates, size, **many, ORDER=table.order,
            BLOCK=triton.next_power_of_2(candidates), num_warps=8 if candidates > 2048 else 4, **overlap,
        )  # fmt: skip
    return out
