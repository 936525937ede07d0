"""Recording of chosen tokens as one Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.draw.naive import Progress
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier


@triton.jit
def record_tokens_kernel(
    p_chosen, p_counts, p_steps, p_newest, p_active, p_totals, p_forced_counts, p_stops, p_tokens, p_limits,
    p_recorded, p_taken, chosen_row, token_row, token_column, stops,
    LIMITED: tl.constexpr, STOPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Append one sequence's tokens; see ``naive.record_tokens``. Grid ``(B,)``.

    ``p_chosen`` ``[B, N + 1]`` with contiguous rows, ``p_tokens`` ``[B, WIDTH]`` any strides, ``p_stops``
    ``[B, stops]``, ``p_taken`` ``[B, WIDTH]`` int8, ``p_active`` ``[B]`` int8, the rest ``[B]`` int64.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_row = tl.program_id(0).to(tl.int64)
    o_place = tl.arange(0, BLOCK)
    inside = o_place < WIDTH
    b_token = tl.load(p_tokens + i_row * token_row + o_place * token_column, mask=inside, other=-1)
    b_count = tl.load(p_counts + i_row)
    b_step = tl.load(p_steps + i_row)
    b_active = tl.load(p_active + i_row)
    b_total = tl.load(p_totals + i_row)
    o_index = b_count + o_place
    taken = inside & (b_active != 0) & (o_index < b_total)
    if LIMITED:
        taken = taken & (o_place < tl.load(p_limits + i_row))
    ends = o_place < 0
    if STOPS:
        o_stop = tl.arange(0, STOPS)
        b_stop = tl.load(p_stops + i_row * stops + o_stop, mask=o_stop < stops, other=-9)
        b_hits = tl.sum((b_token[:, None] == b_stop[None, :]).to(tl.int32), 1)
        ends = inside & (b_hits > 0) & (o_index >= tl.load(p_forced_counts + i_row))
        taken = taken & (o_place <= tl.min(tl.where(ends, o_place, BLOCK), 0))
    b_recorded = tl.sum(taken.to(tl.int64), 0)
    b_newest = tl.sum(tl.where(o_place == b_recorded - 1, b_token, 0), 0)
    done = (b_count + b_recorded >= b_total) | (tl.sum((ends & taken).to(tl.int32), 0) > 0)
    tl.debug_barrier()  # no thread may read what another has written
    tl.store(p_chosen + i_row * chosen_row + o_index, b_token, mask=taken)
    tl.store(p_newest + i_row, b_newest, mask=b_recorded > 0)
    tl.store(p_steps + i_row, b_step + b_active)
    tl.store(p_counts + i_row, b_count + b_recorded)
    tl.store(p_active + i_row, tl.where(done, 0, b_active).to(tl.int8))
    tl.store(p_recorded + i_row, b_recorded)
    tl.store(p_taken + i_row * WIDTH + o_place, taken.to(tl.int8), mask=inside)


def record_tokens_gpu(progress: Progress, tokens: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Record as in ``naive.record_tokens``, in one launch; the spare column is left alone."""
    batch, width = tokens.shape
    recorded = torch.empty(batch, dtype=torch.int64, device=tokens.device)
    taken = torch.empty(batch, width, dtype=torch.bool, device=tokens.device)
    stops = progress.stops
    with torch.cuda.device_of(tokens):
        record_tokens_kernel[(batch,)](
            progress.chosen, progress.counts, progress.steps, progress.newest, progress.active.view(torch.int8),
            progress.totals, progress.forced_counts, tokens if stops is None else stops, tokens,
            tokens if counts is None else counts, recorded, taken.view(torch.int8), progress.chosen.stride(0),
            *tokens.stride(), 0 if stops is None else stops.shape[1], LIMITED=counts is not None,
            STOPS=0 if stops is None else triton.next_power_of_2(stops.shape[1]), WIDTH=width,
            BLOCK=triton.next_power_of_2(width), num_warps=1, **overlap_settings(True, tokens.device),
        )  # fmt: skip
    return recorded, taken
