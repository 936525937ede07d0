"""Chunks that stay in their slots, and those fetched into others: naive and Triton against lists and float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor

from kernel_inputs import DEVICE, NAN, captured, new_queue, whole
from longdecode.kernels.block_residency import BlockQueue
from longdecode.kernels.chunk_residency import ChunkResidents
from longdecode.kernels.chunk_residency import naive as claim_naive
from longdecode.kernels.chunk_residency.gpu import claim_chunks_gpu
from longdecode.kernels.low_rank_fetch import LowRankPrompt
from longdecode.kernels.low_rank_fetch import naive as fetch_naive
from longdecode.kernels.low_rank_fetch.gpu import Launch, fetch_chunks_gpu

BATCH, HEADS = 3, 2


def new_residents(slots: int, chunks: int) -> ChunkResidents:
    held, slot_of = (torch.full((BATCH, HEADS, n + 1), -1, dtype=torch.int32, device=DEVICE) for n in (slots, chunks))
    return ChunkResidents(held, slot_of, whole([0] * BATCH), held)


@pytest.mark.parametrize("claim", [claim_naive.claim_chunks, claim_chunks_gpu], ids=["naive", "triton"])
@pytest.mark.parametrize(("slots", "chunks"), [(1, 5), (6, 40), (37, 200), (130, 300)])
def test_listed_chunks_stay_in_their_slots(rng: Generator, claim: Callable[..., None], slots: int, chunks: int) -> None:
    """Steps of random lists, ragged from row to row; junk past the counts, strided lists, another order each step."""
    residents, lists = new_residents(slots, chunks), BATCH * HEADS
    counts = torch.tensor([slots, max(1, slots // 2), 0])[:, None].expand(BATCH, HEADS)
    held: list[list[int]] = [[-1] * slots for _ in range(lists)]
    fetched = [0] * BATCH
    for _ in range(8):
        indices = torch.randint(-3, 5 * chunks, (slots, BATCH, HEADS), generator=rng).permute(1, 2, 0)
        queue, out = new_queue(lists * slots), torch.full((BATCH, HEADS, slots + 3), -5, device=DEVICE)
        want_queue = set()
        for i in range(lists):
            row, head = divmod(i, HEADS)
            kept = [chunk for chunk in held[i] if chunk >= 0 and torch.rand((), generator=rng) < 0.6]
            new = [chunk for chunk in torch.randperm(chunks, generator=rng).tolist() if chunk not in kept]
            listed = torch.tensor((kept + new)[: int(counts[row, head])], dtype=torch.int64)
            listed = listed[torch.randperm(len(listed), generator=rng)]
            indices[row, head, : len(listed)] = listed
            free = [slot for slot in range(slots) if held[i][slot] not in listed.tolist()]
            for chunk in listed.tolist():
                if chunk not in held[i]:
                    slot = free.pop(0)
                    held[i][slot] = chunk
                    want_queue.add((i * chunks + chunk, i * slots + slot))
                    fetched[row] += 1
        claim(indices.to(DEVICE), counts.to(DEVICE), residents, queue, out)
        assert residents.held[..., :slots].flatten(0, 1).tolist() == held
        for i, row in enumerate(residents.slot_of[..., :chunks].flatten(0, 1).tolist()):
            wanted = {chunk: slot for slot, chunk in enumerate(held[i]) if chunk >= 0}
            assert {chunk: slot for chunk, slot in enumerate(row) if slot >= 0} == wanted
        many = int(queue.count)
        entries = zip(queue.sources[:many].tolist(), queue.targets[:many].tolist(), strict=True)
        assert set(entries) == want_queue and many == len(want_queue)
        for i, slots_of_list in enumerate(out.flatten(0, 1).tolist()):
            row, head = divmod(i, HEADS)
            count = int(counts[row, head])
            listed = indices[row, head, :count].tolist()
            assert [held[i][slot] for slot in slots_of_list[:count]] == listed
            assert slots_of_list[count:] == [-5] * (slots + 3 - count)
        assert residents.fetched.tolist() == fetched


def test_refuses_lists_without_room() -> None:
    residents, queue = new_residents(4, 9), new_queue(60)
    lists, counts = torch.zeros(BATCH, HEADS, 5, dtype=torch.int64, device=DEVICE), whole([[1, 1]] * BATCH)
    for claim in (claim_naive.claim_chunks, claim_chunks_gpu):
        with pytest.raises(ValueError, match="lists of 5 chunks; 4 slots and 8 entries"):
            claim(lists, counts, residents, queue, lists.new_zeros(BATCH, HEADS, 8))
        with pytest.raises(ValueError, match="lists of 4 chunks; 4 slots and 3 entries"):
            claim(lists[..., :4], counts, residents, queue, lists.new_zeros(BATCH, HEADS, 3))


def new_prompt(rng: Generator, tokens: int, chunk: int, rank: int, dim: int, dtype: torch.dtype) -> LowRankPrompt:
    """A prompt whose factors and values have room for more rows than are used."""

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng).to(dtype).to(DEVICE)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    angles = torch.arange(tokens, dtype=wide)[:, None] * torch.rand(dim // 2, generator=rng).to(wide)
    cos, sin = angles.cos().to(DEVICE), angles.sin().to(DEVICE)
    basis = some(BATCH, HEADS, rank, dim) / rank**0.5
    return LowRankPrompt(some(BATCH, tokens, rank), basis, cos, sin, some(BATCH, HEADS, tokens, dim), chunk)


SIZES = [(8, 5, 32, 6), (8, 40, 128, 9), (3, 16, 16, 5), (16, 70, 40, 3), (5, 1, 2, 4)]
DTYPES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("chunk", "rank", "dim", "slots"), SIZES)
def test_chunks_are_rebuilt(rng: Generator, chunk: int, rank: int, dim: int, slots: int, dtype: torch.dtype) -> None:
    """Against products and complex rotations in float64; slots are part of a larger buffer; no chunk, some, many."""
    chunks = 11
    prompt = new_prompt(rng, chunks * chunk + chunk // 2, chunk, rank, dim, dtype)
    lists = BATCH * HEADS
    prompt.factors[:, chunks * chunk :] = NAN
    prompt.values[:, :, chunks * chunk :] = NAN
    paths: list[Callable[..., None]] = [fetch_naive.fetch_chunks]
    if dtype != torch.float64:
        paths.append(fetch_chunks_gpu)
        paths.append(lambda *given: fetch_chunks_gpu(*given, launch=Launch(programs=2, group=2, num_warps=1, ranks=16)))
    for count in (0, 1, 13):
        sources = torch.randint(0, chunks, (lists,), generator=rng).repeat_interleave(slots)
        order = torch.randperm(lists * slots, generator=rng)[: count + 1]
        at = order // slots
        queue = BlockQueue((at * chunks + sources[order]).to(DEVICE), order.to(DEVICE), whole([count]))
        shape = (BATCH, HEADS, slots * chunk + 9, dim)
        before = [torch.randn(shape, generator=rng).to(dtype).to(DEVICE) for _ in range(2)]
        for fetch in paths:
            k, v = (tensor.clone() for tensor in before)
            fetch(prompt, k[:, :, : slots * chunk], v[:, :, : slots * chunk], queue)
            want_k, want_v = (tensor.clone() for tensor in before)
            for source, target in zip(queue.sources[:count].tolist(), queue.targets[:count].tolist(), strict=True):
                row, head = divmod(source // chunks, HEADS)
                tokens = slice(source % chunks * chunk, source % chunks * chunk + chunk)
                places = slice(target % slots * chunk, target % slots * chunk + chunk)
                plain = prompt.factors[row, tokens].double() @ prompt.basis[row, head].double()
                plain = torch.complex(*plain.chunk(2, dim=-1))
                turned = plain * torch.complex(prompt.cos[tokens].double(), prompt.sin[tokens].double())
                want_k[row, head, places] = torch.cat((turned.real, turned.imag), dim=-1).to(dtype)
                want_v[row, head, places] = prompt.values[row, head, tokens]
            assert v.equal(want_v)
            touched = (want_v != before[1]).any(dim=-1, keepdim=True)
            assert torch.where(touched, 0, k).equal(torch.where(touched, 0, before[0]))
            torch.testing.assert_close(k, want_k, atol=DTYPES[dtype], rtol=DTYPES[dtype])


def test_refuses_what_does_not_fit(rng: Generator) -> None:
    prompt, queue = new_prompt(rng, 40, 8, 5, 16, torch.float32), new_queue(4)
    k = torch.zeros(BATCH, HEADS, 24, 16, device=DEVICE)
    for fetch in (fetch_naive.fetch_chunks, fetch_chunks_gpu):
        for slots, other in (
            (k[:, :, :20], prompt), (k.double(), prompt), (k[:, :1], prompt),
            (k, replace(prompt, values=prompt.values[:, :, :30])), (k, replace(prompt, basis=prompt.basis[:, :, :4])),
        ):  # fmt: skip
            with pytest.raises(ValueError, match="do not fit a prompt"):
                fetch(other, slots, slots.clone(), queue)
        with pytest.raises(ValueError, match=r"angles \(39, 8\); \[40, 8\]"):
            fetch(replace(prompt, cos=prompt.cos[:39]), k, k.clone(), queue)
    apart = torch.zeros(BATCH, HEADS, 16, 24, device=DEVICE).transpose(2, 3)
    with pytest.raises(ValueError, match="in one piece"):
        fetch_chunks_gpu(prompt, apart, k, queue)


@pytest.mark.gpu
def test_fetches_from_pinned_memory_in_a_graph(rng: Generator) -> None:
    """Values by unified addresses, replayed with another queue, at the shape of NOSA-8B."""
    prompt = new_prompt(rng, 4096, 8, 40, 128, torch.bfloat16)
    far = replace(prompt, values=prompt.values.cpu().pin_memory())
    queue = new_queue(BATCH * HEADS * 64)
    slots = [torch.zeros(BATCH, HEADS, 64 * 8, 128, dtype=torch.bfloat16, device=DEVICE) for _ in range(4)]
    graph, _ = captured(lambda: fetch_chunks_gpu(far, slots[0], slots[1], queue))
    targets = torch.randperm(BATCH * HEADS * 64, generator=rng)
    sources = targets // 64 * 512 + torch.randint(0, 512, targets.shape, generator=rng)
    queue.sources[:-1], queue.targets[:-1] = sources.to(DEVICE), targets.to(DEVICE)
    queue.count.fill_(len(targets))
    graph.replay()
    fetch_naive.fetch_chunks(prompt, slots[2], slots[3], queue)
    assert slots[1].equal(slots[3])
    torch.testing.assert_close(slots[0], slots[2], atol=2e-2, rtol=2e-2)


def test_a_short_prompt_is_not_read_past_its_end(rng: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is queued, but where the host does not know that, every entry is worked on: as on a CUDA device."""
    monkeypatch.setattr(fetch_naive, "on_host", lambda tensor: False)
    prompt = new_prompt(rng, 3, 8, 4, 8, torch.float32)
    slots = torch.randn(2, BATCH, HEADS, 16, 8, device=DEVICE)
    before = slots.clone()
    fetch_naive.fetch_chunks(prompt, slots[0], slots[1], new_queue(5))
    assert slots.equal(before)
