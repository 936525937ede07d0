"""Selection of a list held in registers: an interpolating search of eight bins a step, placement by threads."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from longdecode.kernels.overlap import let_next_start, wait_for_earlier
from longdecode.kernels.topk_select.entries import KEPT_KEY, LEAST_KEY, NO_KEY, kept_borders, load_keys


@triton.jit
def bound_by_maxima(b_tile, SECOND: tl.constexpr):
    """The largest key, and the least over threads of their largest (``SECOND``: second largest distinct) keys."""
    b_most = tl.max(tl.max(b_tile, 2), 0)
    b_least = b_most
    if SECOND:
        b_least = tl.max(tl.max(tl.where(b_tile == b_most[None, :, None], NO_KEY, b_tile), 2), 0)
    # One reduction for both: the least key is the complement of the largest complement.
    b_both = tl.join(b_most, ~tl.where(b_least == NO_KEY, KEPT_KEY, b_least))
    most, least = tl.split(tl.max(b_both, 0))
    return most.to(tl.int64), (~least).to(tl.int64)


@triton.jit
def count_bins(b_tile, base, exponent):
    """Keys of ``[R, THREADS, V]`` in bins ``2**exponent`` wide from ``base``; what lies outside is in the outermost.

    Returns bins (0, 4), (2, 6), (1, 5) and (3, 7), two counts of 16 bits in an int32 each. A thread holds at most 255.
    """
    least = base.to(tl.int32)
    b_bin = (tl.maximum(b_tile, least) - least).to(tl.uint32, bitcast=True) >> exponent.to(tl.uint32)
    # Eight entries fit eight counts of 4 bits, whose sums are widened to 8 bits, and those of the thread to 16.
    ROWS: tl.constexpr = 2 if b_tile.shape[0] > 1 else 1
    b_one = tl.full(b_tile.shape, 1, dtype=tl.int32) << (tl.minimum(b_bin, 7).to(tl.int32) << 2)
    b_one = tl.reshape(b_one, [b_tile.shape[0] // ROWS, ROWS, b_tile.shape[1], b_tile.shape[2]])
    b_count = tl.sum(tl.sum(b_one, 3), 1)
    b_even, b_odd = tl.sum(b_count & 0x0F0F0F0F, 0), tl.sum((b_count >> 4) & 0x0F0F0F0F, 0)
    b_low = tl.join(b_even & 0x00FF00FF, b_odd & 0x00FF00FF)
    b_high = tl.join((b_even >> 8) & 0x00FF00FF, (b_odd >> 8) & 0x00FF00FF)
    low, high = tl.split(tl.sum(tl.join(b_low, b_high), 0))
    even_low, odd_low = tl.split(low)
    even_high, odd_high = tl.split(high)
    return even_low, even_high, odd_low, odd_high


@triton.jit
def ceil_log2(value):
    """Exponent of the least power of two not below a float32 of at least 1, from its bits."""
    return ((value.to(tl.int32, bitcast=True) - 1) >> 23) - 126


@triton.jit
def interpolate(b_tile, need, low, high, reached, guess):
    """The largest key that ``need`` keys reach, or any threshold that exactly ``need`` do.

    ``low`` (``reached`` keys are at least that) never exceeds the ``need``-th largest key and ``high`` always does. A
    step counts eight bins: first between ``guess`` and ``high``; then around the place where ``need`` would be reached
    if keys were spread evenly, as wide as their spread makes likely; and, whenever the key lies outside those, over the
    whole range, so that two steps never narrow it less than eight times.

    Returns:
        The threshold, how many keys reach it, and, where those are too many, how many exceed it.
    """
    over = need * 0
    mode = need * 0
    while (high - low > 1) & (reached != need):
        span = (high - low).to(tl.uint32).to(tl.float32)
        between = (reached - over).to(tl.float32)
        share = (need - over).to(tl.float32) / between
        likely = tl.sqrt(between * share * (1.0 - share) + 0.3) * 0.8 / between
        width = span * tl.minimum(0.125, likely)
        width = tl.where(
            mode == 0, (high - guess).to(tl.uint32).to(tl.float32) / 7, tl.where(mode == 1, width, span / 8)
        )
        exponent = ceil_log2(tl.maximum(width, 1.0))
        one = (exponent * 0 + 1).to(tl.int64) << exponent.to(tl.int64)
        around = high - (span * share).to(tl.uint32).to(tl.int64) - 4 * one
        base = tl.where(mode == 0, guess - one, tl.where(mode == 1, tl.maximum(around, low + 1 - one), low))
        base = tl.maximum(base, LEAST_KEY)
        even_low, even_high, odd_low, odd_high = count_bins(b_tile, base, exponent)
        at7 = (odd_high >> 16) & 0xFFFF
        at6 = at7 + ((even_high >> 16) & 0xFFFF)
        at5 = at6 + ((odd_low >> 16) & 0xFFFF)
        at4 = at5 + ((even_low >> 16) & 0xFFFF)
        at3 = at4 + (odd_high & 0xFFFF)
        at2 = at3 + (even_high & 0xFFFF)
        at1 = at2 + (odd_low & 0xFFFF)
        # How many borders the key reaches says which; counts fall from border to border.
        bin = (at1 >= need).to(tl.int32) + (at2 >= need).to(tl.int32) + (at3 >= need).to(tl.int32)
        bin += (at4 >= need).to(tl.int32) + (at5 >= need).to(tl.int32) + (at6 >= need).to(tl.int32)
        bin += (at7 >= need).to(tl.int32)
        first = base + bin.to(tl.int64) * one
        after = first + one
        # `reach` is the least count that suffices, `beyond` the largest that does not.
        reach = tl.where(bin >= 4, tl.where(bin >= 6, tl.where(bin == 7, at7, at6), tl.where(bin == 5, at5, at4)),
                         tl.where(bin >= 2, tl.where(bin == 3, at3, at2), at1))  # fmt: skip
        beyond = tl.where(bin >= 4, tl.where(bin >= 6, at7, tl.where(bin == 5, at6, at5)),
                          tl.where(bin >= 2, tl.where(bin == 3, at4, at3), tl.where(bin == 1, at2, at1)))  # fmt: skip
        inside = (bin > 0) & (bin < 7)
        up = (bin > 0) & (first > low)
        down = (bin < 7) & (after < high)
        low, reached = tl.where(up, first, low), tl.where(up, reach, reached)
        high, over = tl.where(down, after, high), tl.where(down, beyond, over)
        # After steps over the whole range, or where the guess held, trust the next guess.
        mode = tl.where(inside | (mode == 2) | ((mode == 0) & (bin > 0)), 1, 2)
    return low, reached, over


@triton.jit
def ranks(b_step, OWN: tl.constexpr):
    """How many of ``[R, THREADS, 4]`` zeros and ones come before each entry; one scan over threads.

    ``OWN``: in the order ``[THREADS, R, 4]``, else in that of the tile. A thread's own sums are bytes of one number,
    which a product adds up without a scan.
    """
    o_byte = tl.arange(0, b_step.shape[2])[None, None, :] * 8
    b_four = tl.sum(b_step << o_byte, 2)
    b_row = tl.sum(b_step, 2)
    if OWN:
        o_row = tl.arange(0, b_step.shape[0])[:, None].to(tl.int64) * 8
        b_rows = tl.sum(b_row.to(tl.int64) << o_row, 0) * 0x0101010101010100
        b_sum = tl.sum(b_row, 0)
        b_base = (tl.cumsum(b_sum, 0) - b_sum)[None, :] + ((b_rows[None, :] >> o_row) & 0xFF).to(tl.int32)
    else:
        b_sum = tl.reshape(b_row, [b_step.shape[0] * b_step.shape[1]])
        b_base = tl.reshape(tl.cumsum(b_sum, 0) - b_sum, [b_step.shape[0], b_step.shape[1]])
    return (((b_four * 0x01010100)[:, :, None] >> o_byte) & 0xFF) + b_base[:, :, None]


@triton.jit
def put(p_indices, b_rank, o_tile, chosen):
    """Write the chosen of ``[R, THREADS, V]`` at their ranks.

    With threads in the last dimension the layout of a scattered store is that of the tile: nothing moves.
    """
    b_rank, o_tile = tl.permute(b_rank, [0, 2, 1]), tl.permute(o_tile, [0, 2, 1])
    tl.store(p_indices + b_rank, o_tile.to(tl.int64), mask=tl.permute(chosen, [0, 2, 1]))


@triton.jit
def place(p_indices, b_tile, o_tile, b_kept, threshold, exact, spare, count, width, OWN: tl.constexpr):
    """Write the chosen entries of ``[R, THREADS, V]``, each at its rank, and zeros past ``count``.

    Where ``exact``, ``threshold`` parts the chosen from the others; else of those equal to it the first ``spare``.
    """
    R: tl.constexpr = b_tile.shape[0]
    THREADS: tl.constexpr = b_tile.shape[1]
    V: tl.constexpr = b_tile.shape[2]
    if exact:
        chosen = (b_tile >= threshold) | b_kept
        put(p_indices, ranks(chosen.to(tl.int32), OWN), o_tile, chosen)
    else:
        above, tied = (b_tile > threshold) | b_kept, b_tile == threshold
        b_tied = ranks(tied.to(tl.int32), OWN)
        b_rank = ranks(above.to(tl.int32), OWN) + tl.minimum(b_tied, spare)
        put(p_indices, b_rank, o_tile, above | (tied & (b_tied < spare)))
    if count < width:
        o_flat = tl.arange(0, R * THREADS * V)
        tl.store(p_indices + o_flat, o_flat.to(tl.int64) * 0, mask=(o_flat >= count) & (o_flat < width))


@triton.jit
def own_rows(o_first, list_of, ROWS: tl.constexpr, VECTOR: tl.constexpr):
    """Keys of 2 or 4 vectors of each thread, one after the other in the list: ``[THREADS, VECTOR, 2, ROWS / 2]``."""
    p_scores, score_entry, size, valid, first, last = list_of
    b_zero = load_keys(p_scores, score_entry, o_first, size, valid, first, last)
    b_one = load_keys(p_scores, score_entry, o_first + VECTOR, size, valid, first, last)
    b_rows = tl.join(b_zero, b_one)
    if ROWS == 4:
        b_two = load_keys(p_scores, score_entry, o_first + 2 * VECTOR, size, valid, first, last)
        b_three = load_keys(p_scores, score_entry, o_first + 3 * VECTOR, size, valid, first, last)
        b_rows = tl.join(b_rows, tl.join(b_two, b_three))
    return b_rows


@triton.jit
def placed_select_kernel(
    p_scores, p_valid, p_indices, p_counts,
    score_batch, score_head, score_entry, heads, size, width, keep_first, keep_last,
    BLOCK: tl.constexpr, THREADS: tl.constexpr, VECTOR: tl.constexpr, SECOND: tl.constexpr, OWN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``{i : s_i among the width largest of s_0 ... s_{valid-1}}`` of one list held in registers; grid ``(B * H,)``.

    ``p_scores`` ``[B, H, N]`` float32, float16 or bfloat16; ``p_valid`` ``[B]`` integer; ``p_indices``
    ``[B, H, width]`` and ``p_counts`` ``[B, H]`` int64, contiguous. ``SECOND``: more are wanted than there are threads,
    so the search starts from threads' second largest keys. ``OWN``: a thread's entries are neighbours.

    Moves ``N`` scores in and ``width`` indices out.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_list = tl.program_id(0).to(tl.int64)
    valid = tl.minimum(tl.load(p_valid + i_list // heads), size).to(tl.int32)
    first, last = kept_borders(valid, keep_first, keep_last)
    p_scores += (i_list // heads) * score_batch + (i_list % heads) * score_head
    ROWS: tl.constexpr = BLOCK // (THREADS * VECTOR)
    if OWN:
        o_first = tl.arange(0, THREADS)[:, None] * (ROWS * VECTOR) + tl.arange(0, VECTOR)[None, :]
        list_of = (p_scores, score_entry, size, valid, first, last)
        if ROWS == 8:
            b_tile = tl.join(own_rows(o_first, list_of, 4, VECTOR), own_rows(o_first + 4 * VECTOR, list_of, 4, VECTOR))
            b_tile = tl.permute(b_tile, [4, 3, 2, 0, 1])
        elif ROWS == 4:
            b_tile = tl.permute(own_rows(o_first, list_of, 4, VECTOR), [3, 2, 0, 1])
        else:
            b_tile = tl.permute(own_rows(o_first, list_of, 2, VECTOR), [2, 0, 1])
        b_tile = tl.reshape(b_tile, [ROWS, THREADS, VECTOR])
        o_row = tl.arange(0, ROWS)[:, None, None] * VECTOR + tl.arange(0, VECTOR)[None, None, :]
        o_tile = o_row + tl.arange(0, THREADS)[None, :, None] * (ROWS * VECTOR)
    else:
        o_entry = tl.arange(0, BLOCK)
        b_keys = load_keys(p_scores, score_entry, o_entry, size, valid, first, last)
        b_tile = tl.reshape(b_keys, [ROWS, THREADS, VECTOR])
        o_tile = tl.reshape(o_entry, [ROWS, THREADS, VECTOR])

    rivals = last - first
    need = tl.minimum(width - first - (valid - last), rivals)
    most, guess = bound_by_maxima(b_tile, SECOND)
    high = most + 1
    # Where nothing is needed the search is over before it starts: no key reaches the threshold.
    low = tl.where(need == 0, KEPT_KEY, LEAST_KEY).to(tl.int64)
    reached = tl.where(need == 0, 0, rivals)
    low, reached, over = interpolate(b_tile, need, low, high, reached, tl.minimum(guess, high - 1))
    b_kept = ((o_tile < first) | (o_tile >= last)) & (o_tile < valid)
    count = tl.minimum(valid, width)
    place(
        p_indices + i_list * width, b_tile, o_tile, b_kept, low.to(tl.int32), reached == need, need - over,
        count, width, OWN,
    )  # fmt: skip
    tl.store(p_counts + i_list, count.to(tl.int64))
