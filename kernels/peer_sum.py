"""The sum over the GPUs of a host, residual addition and RMS norm as one Triton kernel, which writes to its peers.

NCCL is made for larger sums than a layer's 10 KB and cuts the chain of overlapping launches (``overlap.py``) twice a
layer; this kernel keeps it. Steps: ``results/h200/split_steps.csv``, those with NCCL in its history, at 5544394c.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import os
from contextlib import suppress
from itertools import permutations, starmap
from typing import cast

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
import triton
import triton.language as tl
from torch import Tensor

from longdecode.kernels.overlap import let_next_start, overlap_settings, wait_for_earlier
from longdecode.kernels.rms_norm.add_gpu import choose_launch, store_normed

CAPACITY = 1 << 18
"""Elements of the largest part, which bounds the memory; NCCL serves above."""


@triton.jit
def peer_sum_norm_kernel(
    p_part, p_residual, p_weight, p_out, p_total, buffers, p_calls, eps,
    RANK: tl.constexpr, WORLD: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``t = round(residual + round(sum_r part_r))``, ``out = weight * round(t / sqrt(mean(t^2) + eps))``.

    One row a program; the same bits on every rank, for the sum is in float32 and in the order of ranks. ``p_part``,
    ``p_residual``, ``p_out`` and ``p_total`` ``[rows, WIDTH]`` contiguous, ``rows <= ROWS``, and ``p_weight``
    ``[WIDTH]``, in one of float32, float16 and bfloat16. ``buffers`` are addresses, one of each rank, of
    ``[2, WORLD, ROWS, WIDTH]`` words twice as wide as an element: below it, above the number of the row's call
    (``p_calls`` ``[ROWS]`` counts them), so that a word says itself that it has come, as in NCCL's protocol LL. A
    program writes its row into its own slot of every peer's buffer and reads its own buffer until all words are of this
    call. Two halves of the buffer take turns: who writes the same half again has seen the peers' words of the call
    between, which they wrote when they had read this one's. Moves ``WORLD - 1`` rows of words to peers.
    """
    i_row = tl.program_id(0)
    # Volatile loads are of one word a thread, so that neighbours take neighbouring ones, and elements like words.
    o_channel = tl.max_contiguous(tl.arange(0, BLOCK), 1)
    inside = o_channel < WIDTH
    o_part = i_row * WIDTH + o_channel
    dtype = p_part.dtype.element_ty
    BITS: tl.constexpr = dtype.primitive_bitwidth
    number = tl.uint32 if BITS == 32 else tl.uint16
    word = tl.uint64 if BITS == 32 else tl.uint32
    let_next_start(PDL)
    b_weight = tl.load(p_weight + o_channel, mask=inside, other=0.0).to(tl.float32)
    wait_for_earlier(PDL)
    call = tl.load(p_calls + i_row) + 1
    tag = (call & 0xFFFF).to(word)
    half = (call & 1) * (WORLD * ROWS * WIDTH)
    b_part = tl.load(p_part + o_part, mask=inside, other=0.0)
    b_word = b_part.to(number, bitcast=True).to(word) | (tag << BITS)
    for i in tl.static_range(WORLD):
        if i != RANK:
            p_slot = tl.multiple_of(buffers[i].to(tl.pointer_type(word)) + half + RANK * ROWS * WIDTH, 16)
            tl.store(p_slot + o_part, b_word, mask=inside)
    b_total = tl.load(p_residual + o_part, mask=inside, other=0.0).to(tl.float32)
    b_sum = tl.zeros([BLOCK], dtype=tl.float32)
    for i in tl.static_range(WORLD):
        if i == RANK:
            b_sum += b_part.to(tl.float32)
        else:
            p_slot = tl.multiple_of(buffers[RANK].to(tl.pointer_type(word)) + half + i * ROWS * WIDTH, 16)
            b_word = tl.load(p_slot + o_part, mask=inside, other=0, volatile=True)
            while tl.max(((b_word >> BITS != tag) & inside).to(tl.int32), 0) > 0:
                b_word = tl.load(p_slot + o_part, mask=inside, other=0, volatile=True)
            b_sum += b_word.to(number).to(dtype, bitcast=True).to(tl.float32)
    tl.store(p_calls + i_row, call)  # the waits have brought all threads past its reading
    b_stored = (b_total + b_sum.to(dtype).to(tl.float32)).to(dtype)
    tl.store(p_total + o_part, b_stored, mask=inside)
    store_normed(p_out + o_part, b_stored.to(tl.float32), b_weight, inside, eps, WIDTH)


def peer_sum_norm(width: int, device: torch.device, dtype: torch.dtype) -> PeerSumNorm | None:
    """Return what sums over the ranks of ``torch.distributed``'s group, which all ask at the same time.

    ``None`` on every rank unless it works between all of them: not where GPUs do not reach each other's memory or only
    say so, torch cannot share it, a row has more than ``CAPACITY`` channels, or ``NCCL_P2P_DISABLE`` is set.
    """
    pairs = permutations(range(dist.get_world_size()), 2)
    reach = "NCCL_P2P_DISABLE" not in os.environ and all(starmap(torch.cuda.can_device_access_peer, pairs))
    if not reach or width > CAPACITY:
        return None
    sums = None
    with suppress(RuntimeError):
        sums = PeerSumNorm(width, device, dtype)
    return sums if _all_agree(sums is not None) and _all_agree(cast(PeerSumNorm, sums).arrives()) else None


def _all_agree(yes: bool) -> bool:
    """Return whether all ranks say yes."""
    said = torch.tensor(int(yes))
    dist.all_reduce(said, dist.ReduceOp.MIN)  # by gloo
    return bool(said)


class PeerSumNorm:
    """Memory that the ranks of ``torch.distributed``'s group share for sums.

    Args:
        width: channels of a row, at most ``CAPACITY``; ``CAPACITY // width`` rows can be summed at once.
        device: the rank's.
        dtype: of all tensors: float32, float16 or bfloat16.

    Raises:
        RuntimeError: of torch, where memory cannot be shared.
    """

    def __init__(self, width: int, device: torch.device, dtype: torch.dtype):
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # not needed, and set up by default
        self.rank, self.world, self.width = dist.get_rank(), dist.get_world_size(), width
        self.rows = CAPACITY // width
        word = torch.int64 if dtype == torch.float32 else torch.int32
        self.buffer = symmetric.empty(2 * self.world * self.rows * width, dtype=word, device=device).zero_()
        self.handle = symmetric.rendezvous(self.buffer, cast(dist.ProcessGroup, dist.group.WORLD))
        self.places = tuple(self.handle.buffer_ptrs)
        self.calls = torch.zeros(self.rows, dtype=torch.int32, device=device)

    def arrives(self) -> bool:
        """Return whether what all peers write to this rank's memory arrives; all ranks ask at the same time."""
        size, word = self.buffer.shape, self.buffer.dtype
        for peer in range(self.world):
            self.handle.get_buffer(peer, size, word)[self.rank] = 1
        torch.cuda.synchronize(self.buffer.device)
        _all_agree(True)
        found = bool(self.buffer[: self.world].all())
        self.buffer.zero_()
        torch.cuda.synchronize(self.buffer.device)
        _all_agree(True)
        return found

    def fits(self, part: Tensor) -> bool:
        """Return whether a part is small enough."""
        return part.numel() <= self.rows * self.width

    def __call__(self, part: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """As ``rms_norm.add_rms_norm`` of the sum of the parts, to rounding; every rank calls with the same shape."""
        part, residual = part.contiguous(), residual.contiguous()
        out, total = torch.empty_like(residual), torch.empty_like(residual)
        peer_sum_norm_kernel[(part.numel() // self.width,)](
            part, residual, weight, out, total, self.places, self.calls, eps, RANK=self.rank, WORLD=self.world,
            ROWS=self.rows, WIDTH=self.width, BLOCK=triton.next_power_of_2(self.width),
            num_warps=choose_launch(self.width).num_warps, **overlap_settings(True, part.device),
        )  # fmt: skip
        return out, total
