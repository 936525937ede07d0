"""Numbers by token in the order of slots, as a Triton kernel."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024


@triton.jit
def values_in_slots_kernel(
    p_values, p_held, p_out, value_batch, value_head, value_token, heads, size, places,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``out[s * BLOCK_SIZE + i] = values[held[s] * BLOCK_SIZE + i]``; grid ``(places / TILE, B * H)``.

    ``p_values`` ``[B, H, S]`` of any strides; ``p_held`` ``[B, H, slots]`` int64 and ``p_out`` ``[B, H, places]``
    contiguous. Moves ``2 * places`` numbers a list.
    """
    i_list = tl.program_id(1).to(tl.int64)
    o_place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = o_place < places
    b_block = tl.load(p_held + i_list * (places // BLOCK_SIZE) + o_place // BLOCK_SIZE, mask=inside, other=0)
    b_token = tl.minimum(tl.maximum(b_block, 0) * BLOCK_SIZE + o_place % BLOCK_SIZE, size - 1)
    p_values += (i_list // heads) * value_batch + (i_list % heads) * value_head
    b_value = tl.load(p_values + b_token * value_token, mask=inside)
    tl.store(p_out + i_list * places + o_place, b_value, mask=inside)


def values_in_slots_gpu(values: Tensor, held: Tensor, block_size: int) -> Tensor:
    """Return numbers by token in the order of slots as in ``naive.values_in_slots``, in one launch.

    Args:
        values: ``[B, H, S]``, any strides.
        held: ``[B, H, slots]`` int64, contiguous.
        block_size: tokens in a block.
    """
    batch, heads, size = values.shape
    places = held.shape[2] * block_size
    out = torch.empty(batch, heads, places, dtype=values.dtype, device=values.device)
    with torch.cuda.device_of(values):
        values_in_slots_kernel[(triton.cdiv(places, _TILE), batch * heads)](
            values, held, out, *values.stride(), heads, size, places,
            BLOCK_SIZE=block_size, TILE=_TILE, num_warps=4,
        )  # fmt: skip
    return out
