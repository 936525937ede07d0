"""Slots of listed blocks and copies of the missing ones, naive and Triton, against lists and dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from kernel_inputs import DEVICE, captured, new_queue, whole
from longdecode.kernels.block_residency import Arrivals, BlockQueue, Residents, naive
from longdecode.kernels.block_residency.gpu import Launch as ClaimLaunch
from longdecode.kernels.block_residency.gpu import claim_slots_gpu
from longdecode.kernels.block_residency.slots_gpu import values_in_slots_gpu
from longdecode.kernels.host_fetch import naive as fetch_naive
from longdecode.kernels.host_fetch.gpu import Launch, copy_blocks_gpu

Claim = Callable[..., Tensor]
BATCH, HEADS, BLOCKS = 3, 2, 40


class Simulated:
    """One list's slots as a plain list, kept by the rule of the docstring."""

    def __init__(self, slots: int, newest: int):
        self.held = [-1] * (slots - 1) + [newest]
        self.used = [-1] * slots

    def claim(self, listed: list[int], now: int) -> tuple[list[int | None], list[tuple[int, int]]]:
        """The slot of each entry (``None``: ignored) and the blocks to fetch, each with its slot."""
        before = {block: slot for slot, block in reversed(list(enumerate(self.held)))}
        valid = [0 <= block <= self.held[-1] for block in listed]
        stay = {before[block] for block, good in zip(listed, valid, strict=True) if good and block in before}
        free = sorted(set(range(len(self.held) - 1)) - stay, key=lambda slot: (self.used[slot], slot))
        chosen: list[int | None] = []
        fetched = []
        for block, good in zip(listed, valid, strict=True):
            if good and block not in before and free:
                fetched.append((block, free.pop(0)))
                chosen.append(fetched[-1][1])
            else:
                chosen.append(before.get(block) if good else None)
        for slot in stay:
            self.used[slot] = now
        for block, slot in fetched:
            self.held[slot], self.used[slot] = block, now
        return chosen, fetched


def claim_in_tiles(*given: Any) -> Tensor:
    """Lists in several tiles, which short ones would not need."""
    return claim_slots_gpu(*given, launch=ClaimLaunch(entries=16))


@pytest.mark.parametrize("claim", [naive.claim_slots, claim_slots_gpu, claim_in_tiles], ids=["naive", "one", "tiles"])
@pytest.mark.parametrize(("slots", "width"), [(2, 1), (7, 6), (40, 37)])
def test_slots_follow_the_rule(rng: Generator, claim: Claim, slots: int, width: int) -> None:
    """Steps of random lists, ragged in length and in the newest block; junk past the counts, strided lists."""
    lists, newest = BATCH * HEADS, [BLOCKS - 1, 20, 3]
    simulated = [Simulated(slots, newest[i // HEADS]) for i in range(lists)]
    held = whole([one.held for one in simulated]).view(BATCH, HEADS, slots)
    residents = Residents(held, torch.full_like(held, -1), whole([0]), whole([0] * BATCH), held)
    fetched = 0
    for step in range(12 if claim is naive.claim_slots else 6):
        residents.clock.fill_(step)
        indices = torch.randint(-3, 2 * BLOCKS, (width, BATCH, HEADS), generator=rng).permute(1, 2, 0)
        counts = torch.zeros(BATCH, HEADS, dtype=torch.int64)
        queue, want_queue = new_queue(lists * width), set()
        want: list[list[int | None]] = []
        want_late: dict[int, tuple[int, int]] = {}
        for i, one in enumerate(simulated):
            row, head = divmod(i, HEADS)
            pool = torch.randperm(newest[row] + 1, generator=rng)
            # The newest block is always listed, the others come and go; one entry names no block of the row.
            listed = [newest[row], *[b for b in pool.tolist() if b != newest[row]][: min(width, slots) - 1]]
            listed = listed[: max(1, width - step % 3)] + [BLOCKS + 5] * (step % 3 == 1 and len(listed) < width)
            listed = listed[:width]
            indices[row, head, : len(listed)] = torch.tensor(listed)
            counts[row, head] = len(listed)
            chosen, missing = one.claim(listed, step)
            want.append(chosen)
            came = {slot: (i * BLOCKS + block, i * slots + slot) for block, slot in missing}
            want_late |= {i * width + n: came[slot] for n, slot in enumerate(chosen) if slot in came}
            want_queue |= {(i * BLOCKS + block, i * slots + slot) for block, slot in missing}
        late = torch.full((BATCH, HEADS, width), 7, device=DEVICE, dtype=torch.int32)
        arrivals = Arrivals(late, torch.full_like(queue.sources, -1)) if step % 2 else None
        got = claim(indices.to(DEVICE), counts.to(DEVICE), residents, queue, BLOCKS, arrivals)
        got = got.view(lists, width).tolist()
        for mine, theirs in zip(got, want, strict=True):
            assert all(b is None or a == b for a, b in zip(mine, theirs, strict=False))
            assert all(0 <= a < slots for a in mine)
        assert residents.blocks.view(lists, slots).tolist() == [one.held for one in simulated]
        assert residents.used.view(lists, slots).tolist() == [one.used for one in simulated]
        many = int(queue.count)
        entries = list(zip(queue.sources[:many].tolist(), queue.targets[:many].tolist(), strict=True))
        assert set(entries) == want_queue and many == len(want_queue)
        if arrivals is not None:
            assert dict(zip(arrivals.entries[:many].tolist(), entries, strict=True)) == want_late
            assert late.flatten().nonzero()[:, 0].tolist() == sorted(want_late) and not (late > 1).any()
        fetched += many
        assert int(residents.fetched.sum()) == fetched


@pytest.mark.parametrize("claim", [naive.claim_slots, claim_slots_gpu], ids=["naive", "triton"])
def test_lists_without_room_or_sense_do_no_harm(claim: Claim) -> None:
    """More blocks than slots, blocks named twice, none: what is named fits or is left out, nothing else moves."""
    held = whole([[[-1, -1, -1, 9]]])
    residents = Residents(held, torch.full_like(held, -1), whole([5]), whole([0]), held)
    queue = new_queue(8)
    claim(whole([[[4, 4, 7, 8, 1, 30, -2, 9]]]), whole([[8]]), residents, queue, 10)
    assert held.tolist() == [[[4, 4, 7, 9]]] and int(queue.count) == 3
    got = claim(whole([[[7, 4]]]), whole([[2]]), residents, queue, 10)
    assert got.tolist() == [[[2, 0]]] and int(queue.count) == 3
    claim(whole([[[1, 2]]]), whole([[0]]), residents, queue, 10)
    assert held.tolist() == [[[4, 4, 7, 9]]] and int(queue.count) == 3
    # A block that stands in two slots needs one: the other is free for what is missing.
    got = claim(whole([[[1, 4, 7, 9]]]), whole([[4]]), residents, queue, 10)
    assert got.tolist() == [[[1, 0, 2, 3]]] and held.tolist() == [[[4, 1, 7, 9]]] and int(queue.count) == 4


@pytest.mark.parametrize("take", [naive.values_in_slots, values_in_slots_gpu], ids=["naive", "triton"])
@pytest.mark.parametrize(("slots", "size"), [(3, 4), (70, 24)])
def test_numbers_by_token_lie_where_their_slots_are(
    rng: Generator, take: Callable[[Tensor, Tensor, int], Tensor], slots: int, size: int
) -> None:
    """Strided numbers, a last block that is cut short, slots that hold none."""
    tokens = 80 * size - 3
    values = torch.randn(tokens, BATCH, HEADS, generator=rng).permute(1, 2, 0)
    held = torch.stack([torch.randperm(80, generator=rng)[:slots] for _ in range(BATCH * HEADS)])
    held = held.view(BATCH, HEADS, slots)
    held[..., 1], held[..., -1] = -1, 79
    got = take(values.to(DEVICE), held.to(DEVICE), size).cpu()
    for row, head, slot in torch.cartesian_prod(*map(torch.arange, held.shape)).tolist():
        block = int(held[row, head, slot])
        want = values[row, head, block * size : (block + 1) * size]
        assert block < 0 or got[row, head, slot * size :][: len(want)].equal(want)


@pytest.mark.parametrize("elements", [5, 96, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_copies_what_is_queued_and_nothing_else(rng: Generator, dtype: torch.dtype, elements: int) -> None:
    for count in (0, 11):
        source = tuple(torch.randn(30, elements, generator=rng).to(dtype).to(DEVICE) for _ in range(2))
        sources = torch.randperm(30, generator=rng)[:12].to(DEVICE)
        targets = torch.randperm(20, generator=rng)[:12].to(DEVICE)
        queue = BlockQueue(sources, targets, whole([count]))
        before = [torch.randn(20, elements, generator=rng).to(dtype).to(DEVICE) for _ in range(2)]
        copied_gpu = partial(copy_blocks_gpu, launch=Launch(programs=3, chunk=64))
        for copy in (fetch_naive.copy_blocks, copied_gpu):
            target = tuple(tensor.clone() for tensor in before)
            late = torch.zeros(40, dtype=torch.int32, device=DEVICE)
            late[::3][:count] = 1
            copy(source, target, queue, Arrivals(late, 3 * torch.arange(12, device=DEVICE)))
            assert late.tolist() == [2 * (place % 3 == 0 and place < 3 * count) for place in range(40)]
            for have, old, new in zip(source, before, target, strict=True):
                want = old.clone()
                for i in range(count):
                    want[targets[i]] = have[sources[i]]
                assert new.equal(want)


def test_refuses_blocks_that_differ() -> None:
    pair = (torch.zeros(2, 4), torch.zeros(2, 4))
    queue = new_queue(1)
    for other in ((torch.zeros(2, 5),) * 2, (torch.zeros(2, 4, dtype=torch.float64),) * 2):
        for copy in (fetch_naive.copy_blocks, copy_blocks_gpu):
            with pytest.raises(ValueError, match="one size and dtype"):
                copy(pair, other, queue)
    with pytest.raises(ValueError, match="contiguous"):
        copy_blocks_gpu((torch.zeros(4, 2).T, torch.zeros(4, 2).T), pair, queue)


@pytest.mark.gpu
def test_fetches_from_pinned_memory_in_a_graph(rng: Generator) -> None:
    """Both directions through unified addresses, by kernel and by torch, replayed with another queue."""
    host = tuple(torch.randn(64, 8192, generator=rng).to(torch.bfloat16).pin_memory() for _ in range(2))
    for copy in (fetch_naive.copy_blocks, copy_blocks_gpu):
        near = tuple(torch.zeros(16, 8192, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
        queue = BlockQueue(torch.zeros(9, dtype=torch.int64, device=DEVICE), whole(list(range(9))), whole([0]))
        graph, _ = captured(partial(copy, host, near, queue))
        picked = torch.randperm(64, generator=rng)[:8]
        queue.sources[:8] = picked.to(DEVICE)
        queue.count.fill_(8)
        graph.replay()
        assert all(a[:8].cpu().equal(b[picked]) for a, b in zip(near, host, strict=True))
        back = tuple(torch.zeros(16, 8192, dtype=torch.bfloat16).pin_memory() for _ in range(2))
        copy(near, back, BlockQueue(whole(list(range(9))), whole([*range(3, 11), 0]), whole([8])))
        torch.cuda.synchronize()
        assert all(a[3:11].equal(b[:8].cpu()) and not a[:3].any() for a, b in zip(back, near, strict=True))
