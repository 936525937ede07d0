"""Draw of tokens as Triton kernels: each row by chunks, then the chunks' best."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.draw import naive as keyed
from longdecode.kernels.draw.naive import DrawRule, Noise
from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier

_CHUNK = 2048
_GOLDEN = tl.constexpr(keyed.GOLDEN)
_MIX_1 = tl.constexpr(keyed.MIX_1)
_MIX_2 = tl.constexpr(keyed.MIX_2)


@triton.jit
def mix(z):
    """SplitMix64's finalizer of int64; the masks make arithmetic shifts logical ones."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MIX_1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MIX_2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@triton.jit
def gumbel(b_seed, b_position, o_column):
    """Gumbel noise of one row at its columns, float64; see ``naive.gumbel_noise``."""
    b_row = mix(mix(b_seed * _GOLDEN + 1) + b_position * _GOLDEN)
    b_bits = (mix(b_row + (o_column.to(tl.int64) + 1) * _GOLDEN) >> 11) & 0x1FFFFFFFFFFFFF
    b_uniform = (b_bits.to(tl.float64) + 0.5) * 1.1102230246251565e-16  # 2 ** -53
    return -tl.log(-tl.log(b_uniform))


@triton.jit
def load_moved(
    p_logits, p_seen, i_row, o_column, x_row, x_column, width, penalty, temperature,
    PENALTY: tl.constexpr, WARM: tl.constexpr,
):  # fmt: skip
    """A chunk of one row's logits, float32, penalised where seen, over the temperature; minus infinity past the row."""
    inside = o_column < width
    b_x = tl.load(p_logits + i_row * x_row + o_column * x_column, mask=inside, other=float("-inf")).to(tl.float32)
    if PENALTY:
        b_seen = tl.load(p_seen + i_row * width + o_column, mask=inside, other=0)
        b_x = tl.where(b_seen != 0, tl.where(b_x > 0, b_x / penalty, b_x * penalty), b_x)
    if WARM:
        b_x = b_x / temperature
    return b_x


@triton.jit
def mark_kernel(
    p_history, p_seen, history_row, history_token, width, tokens, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Set ``p_seen`` ``[N, V]`` int8, zeros, to 1 at the tokens of ``p_history`` ``[N, W]`` int64, any strides.

    Tokens under 0 name none. Grid ``(N, ceil(W / BLOCK))``. Moves ``8 * N * W`` bytes and a byte a token.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_row = tl.program_id(0).to(tl.int64)
    o_token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p_tokens = p_history + i_row * history_row + o_token.to(tl.int64) * history_token
    b_token = tl.load(p_tokens, mask=o_token < tokens, other=-1)
    named = (b_token >= 0) & (b_token < width)
    tl.store(p_seen + i_row * width + b_token, tl.full([BLOCK], 1, tl.int8), mask=named)


@triton.jit
def chunk_max_kernel(
    p_logits, p_seen, p_max, x_row, x_column, width, chunks, penalty, temperature,
    PENALTY: tl.constexpr, WARM: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The largest moved logit of each chunk, ``p_max`` ``[N, chunks]`` float32; grid ``(N, chunks)``."""
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_row = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    o_column = i_chunk.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b_x = load_moved(
        p_logits, p_seen, i_row, o_column, x_row, x_column, width, penalty, temperature, PENALTY, WARM
    )  # fmt: skip
    tl.store(p_max + i_row * chunks + i_chunk, tl.max(b_x, 0))


@triton.jit
def chunk_best_kernel(
    p_logits, p_seen, p_max, p_seeds, p_positions, p_score, p_token,
    x_row, x_column, width, chunks, penalty, temperature, log_min_p, seed_row, position_row,
    PENALTY: tl.constexpr, WARM: tl.constexpr, MIN_P: tl.constexpr, NOISE: tl.constexpr, COUNT: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The ``COUNT`` largest scores of one chunk of one row: ``x + g``, without the tokens under the row's floor.

    ``p_logits`` ``[N, V]`` float32, float16 or bfloat16, any strides; ``p_seen`` ``[N, V]`` int8; ``p_max``
    ``[N, chunks]``; ``p_seeds`` and ``p_positions`` ``[N]`` int64, any strides; ``p_score`` float64 and ``p_token``
    int64 ``[N, chunks, COUNT]``. Grid ``(N, chunks)``. Moves ``N * V`` logits, as many bytes where penalised. Noise is
    worked out only in chunks of which a token is left.
    """
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_row = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    o_column = i_chunk.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    b_x = load_moved(
        p_logits, p_seen, i_row, o_column, x_row, x_column, width, penalty, temperature, PENALTY, WARM
    )  # fmt: skip
    if MIN_P:
        o_chunk = tl.arange(0, CHUNKS)
        b_max = tl.load(p_max + i_row * chunks + o_chunk, mask=o_chunk < chunks, other=float("-inf"))
        b_x = tl.where(b_x < tl.max(b_max, 0) + log_min_p, float("-inf"), b_x)
    b_score = b_x.to(tl.float64)
    if NOISE:
        b_left = tl.max(b_x, 0)
        if b_left > float("-inf"):
            b_seed = tl.load(p_seeds + i_row * seed_row)
            b_score = b_score + gumbel(b_seed, tl.load(p_positions + i_row * position_row), o_column)
    p_best = (i_row * chunks + i_chunk) * COUNT
    for i_place in tl.static_range(COUNT):
        b_best = tl.max(b_score, 0)
        # Under the row's end also where the best is no number.
        b_token = tl.min(tl.where(b_score == b_best, o_column, width - 1), 0)
        tl.store(p_score + p_best + i_place, b_best)
        tl.store(p_token + p_best + i_place, b_token)
        b_score = tl.where(o_column == b_token, float("-inf"), b_score)


@triton.jit
def row_best_kernel(
    p_score, p_token, p_out, candidates, width, COUNT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """The ``COUNT`` best of a row's candidates ``[N, chunks * COUNT]``, best first: ``p_out`` ``[N, COUNT]`` int64."""
    wait_for_earlier(PDL)
    let_next_start(PDL)
    i_row = tl.program_id(0).to(tl.int64)
    o_candidate = tl.arange(0, BLOCK)
    inside = o_candidate < candidates
    b_score = tl.load(p_score + i_row * candidates + o_candidate, mask=inside, other=float("-inf"))
    b_token = tl.load(p_token + i_row * candidates + o_candidate, mask=inside, other=width)
    for i_place in tl.static_range(COUNT):
        b_best = tl.max(b_score, 0)
        b_first = tl.min(tl.where(b_score == b_best, b_token, width - 1), 0)
        tl.store(p_out + i_row * COUNT + i_place, b_first)
        b_score = tl.where(b_token == b_first, float("-inf"), b_score)


def draw_gpu(
    logits: Tensor, count: int, rule: DrawRule, noise: Noise | None = None, history: Tensor | None = None
) -> Tensor:
    """Draw as in ``naive.draw``: two launches, one more for min-p and two for a penalty, however many rows there are.

    Args:
        logits: ``[N, V]``, float32, float16 or bfloat16, any strides.

    Returns:
        ``[N, count]`` int64.
    """
    rows, width = logits.shape
    device, chunks = logits.device, triton.cdiv(width, _CHUNK)
    penalty, warm = history is not None and rule.penalty > 1, rule.temperature > 0
    min_p = warm and rule.min_p > 0
    overlap = overlap_settings(True, device)
    out = torch.empty(rows, count, dtype=torch.int64, device=device)
    score = torch.empty(rows, chunks * count, dtype=torch.float64, device=device)
    token = torch.empty(rows, chunks * count, dtype=torch.int64, device=device)
    highest = torch.empty(rows, chunks, dtype=torch.float32, device=device) if min_p else score
    seen = torch.zeros(rows, width, dtype=torch.int8, device=device) if penalty else logits
    keys = (noise.seeds, noise.positions) if noise else (token, token)
    numbers = (*logits.stride(), width, chunks, float(rule.penalty), float(rule.temperature))
    moved = {"PENALTY": penalty, "WARM": warm, "BLOCK": _CHUNK, "num_warps": 8, **overlap}
    with torch.cuda.device_of(logits):
        if penalty:
            assert history is not None
            tokens = history.shape[1]
            mark_kernel[(rows, triton.cdiv(tokens, 1024))](
                history, seen, *history.stride(), width, tokens, BLOCK=1024, num_warps=4, **overlap
            )
        if min_p:
            chunk_max_kernel[(rows, chunks)](logits, seen, highest, *numbers, **moved)
        chunk_best_kernel[(rows, chunks)](
            logits, seen, highest, *keys, score, token, *numbers, math.log(rule.min_p) if min_p else 0.0,
            *(key.stride(0) for key in keys),
            MIN_P=min_p, NOISE=noise is not None, COUNT=count, CHUNKS=triton.next_power_of_2(chunks), **moved,
        )  # fmt: skip
        row_best_kernel[(rows,)](
            score, token, out, chunks * count, width, COUNT=count,
            BLOCK=triton.next_power_of_2(chunks * count), num_warps=4, **overlap,
        )  # fmt: skip
    return out
