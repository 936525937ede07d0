"""Attention over blocks that are still being copied: against float64, and the same bits whatever is late."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Generator, Tensor

from kernel_inputs import ATTENTION_TOLERANCE, DEVICE, NAN, captured
from longdecode.kernels.block_residency import Arrivals, BlockQueue
from longdecode.kernels.host_fetch.gpu import BESIDE_ATTENTION, copy_blocks_gpu
from longdecode.kernels.resident_attention import naive
from longdecode.kernels.resident_attention.gpu import resident_attention_gpu
from longdecode.kernels.resident_attention.launch import COPYING, SHARE_TOKENS, ResidentLaunch, choose_launch
from longdecode.kernels.split_kv import COUNTERS, arrival_counters

Found = tuple[Tensor, Tensor, Tensor]


class Case(NamedTuple):
    """Arguments of the op: ``k`` and ``v`` hold NaN in slots that no list names and past the lengths."""

    q: Tensor
    k: Tensor
    v: Tensor
    slots: Tensor
    counts: Tensor
    lengths: Tensor
    bias: Tensor | None
    size: int


def case(
    rng: Generator, counts: list[list[int]], width: int, size: int, group: int, dim: int, dtype: torch.dtype,
    biased: bool = True,
) -> Case:  # fmt: skip
    """Sharp queries; three slots more than a list names; the newest block, in the last slot, is part full."""
    batch, heads, room = len(counts), len(counts[0]), width + 3
    tokens = room * size
    q = (3 * torch.randn(batch, heads * group, 1, dim, generator=rng)).to(dtype)
    k, v = (torch.randn(batch, heads, tokens, dim, generator=rng).to(dtype) for _ in range(2))
    lengths = tokens - torch.randint(0, size, (batch,), generator=rng)
    slots = torch.rand(batch, heads, room, generator=rng).argsort(-1)[..., :width].contiguous()
    for row, head in torch.cartesian_prod(torch.arange(batch), torch.arange(heads)).tolist():
        listed = slots[row, head, : counts[row][head]]
        if len(listed) and room - 1 not in listed.tolist():
            listed[0] = room - 1
        kept = torch.zeros(room, dtype=torch.bool).index_fill_(0, listed, True).repeat_interleave(size)
        kept &= torch.arange(tokens) < lengths[row]
        k[row, head, ~kept] = v[row, head, ~kept] = NAN
        slots[row, head, counts[row][head] :] = 1 << 40
    bias = torch.randn(tokens, batch, heads, generator=rng).permute(1, 2, 0) if biased else None
    return Case(q, k, v, slots, torch.tensor(counts), lengths, bias, size)


def drawn(rng: Generator, one: Case, share: float) -> Tensor:
    """Late entries of the lists, never the tail."""
    late = torch.rand(one.slots.shape, generator=rng) < share
    listed = torch.arange(one.slots.shape[2]) < one.counts[..., None]
    return late & listed & (one.slots != one.k.shape[2] // one.size - 1)


def queued(one: Case, late: Tensor) -> tuple[BlockQueue, Arrivals]:
    """The late blocks in any order, to be copied from where they lie in ``one`` to the same slots."""
    batch, heads, _ = late.shape
    room = one.k.shape[2] // one.size
    lists = torch.arange(batch * heads).view(batch, heads, 1) * room
    entries = late.flatten().nonzero()[:, 0]
    entries = entries[torch.randperm(len(entries))]
    places = torch.zeros(late.numel() + 1, dtype=torch.int64)
    places[: len(entries)] = (lists + one.slots).flatten()[entries]
    padded = torch.zeros_like(places)
    padded[: len(entries)] = entries
    queue = BlockQueue(places.to(DEVICE), places.to(DEVICE), torch.tensor([len(entries)], device=DEVICE))
    return queue, Arrivals(late.to(DEVICE, torch.int32), padded.to(DEVICE))


def run(one: Case, late: Tensor | None, launch: ResidentLaunch | None) -> Found:
    """Output, log-sum-exp and tokens read. Late blocks hold NaN until they are copied; flags and counters end at 0.

    With late blocks the bias lies in an order of its own.
    """
    q, k, v, slots, counts, lengths = (x.to(DEVICE) for x in one[:6])
    bias = None if one.bias is None else one.bias.to(DEVICE)
    read, arrivals, named = torch.zeros(len(q), dtype=torch.int64, device=DEVICE), None, None
    if late is not None:
        if one.bias is not None:
            bias, named = (x.to(DEVICE) for x in reordered(one.bias, one))
        truth = tuple(x.pin_memory() if torch.cuda.is_available() else x for x in (one.k, one.v))
        queue, arrivals = queued(one, late)
        k, v = (poisoned(x.clone(), one, late) for x in (k, v))
        copy_blocks_gpu(in_blocks(truth, one.size), in_blocks((k, v), one.size), queue, arrivals)
    out, lse = resident_attention_gpu(
        q, k, v, slots, counts, block_size=one.size, kv_lengths=lengths, bias=bias, bias_blocks=named,
        kv_tokens_read=read, arrivals=arrivals, launch=launch,
    )  # fmt: skip
    assert arrivals is None or not (arrivals.state == 1).any()
    assert not arrival_counters(1, DEVICE).any()
    return out.cpu(), lse.cpu(), read.cpu()


def reordered(bias: Tensor, one: Case) -> tuple[Tensor, Tensor]:
    """The bias with its blocks in another order, two more between them, and where each entry's block lies."""
    room = one.k.shape[2] // one.size
    order = torch.randperm(room + 2)[:room]
    moved = torch.full((*bias.shape[:2], room + 2, one.size), NAN)
    moved[:, :, order] = bias.unflatten(2, (room, one.size))
    return moved.flatten(2), torch.where(one.slots < room, order[one.slots.clamp(max=room - 1)], 1 << 40)


def in_blocks(pair: tuple[Tensor, Tensor], size: int) -> tuple[Tensor, Tensor]:
    return pair[0].view(-1, size * pair[0].shape[3]), pair[1].view(-1, size * pair[1].shape[3])


def poisoned(x: Tensor, one: Case, late: Tensor) -> Tensor:
    """Fill the late blocks of keys or values with NaN."""
    for row, head, entry in late.nonzero().tolist():
        first = int(one.slots[row, head, entry]) * one.size
        x[row, head, first : first + one.size] = NAN
    return x


def check(one: Case, found: Found) -> None:
    """Compare with the definition in float64."""
    wide = [x.nan_to_num(0.0).double() for x in one[:3]]
    read = torch.zeros(len(one.q), dtype=torch.int64)
    bias = None if one.bias is None else one.bias.double()
    out, lse = naive.resident_attention(
        *wide, one.slots, one.counts, block_size=one.size, kv_lengths=one.lengths, bias=bias, kv_tokens_read=read
    )
    tolerance = ATTENTION_TOLERANCE[one.q.dtype]
    torch.testing.assert_close(found[0].double(), out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found[1].double(), lse, atol=1e-4, rtol=1e-4)
    assert found[2].equal(read)


@pytest.mark.parametrize(
    ("size", "share", "each", "splits", "dtype"),
    [(16, 160, 2, 1, torch.float32), (16, 96, 1, 2, torch.bfloat16), (16, 32, 2, 3, torch.float16),
     (24, 64, 4, 1, torch.bfloat16), (7, 16, 4, 2, torch.float16), (64, 32, 8, 3, torch.float32)],
    ids=["whole", "halves", "blocks", "straddling", "small blocks", "parts of blocks"],
)  # fmt: skip
def test_lateness_is_unseen(rng: Generator, size: int, share: int, each: int, splits: int, dtype: torch.dtype) -> None:
    """Lists that are full, short, of one block, empty; nothing late, some, everything but the tail."""
    launch = ResidentLaunch(16, 16, share, each, 4, 2)
    one = case(rng, [[10, 4], [0, 1], [7, 9]], 10, size, 3, 20, dtype, biased=bool(splits % 2))
    assert launch.splits_of(10 * size) == splits
    whole = run(one, None, launch)
    check(one, whole)
    for rate in (0.0, 0.3, 1.0):
        found = run(one, drawn(rng, one, rate), launch)
        assert all(got.equal(want) for got, want in zip(found, whole, strict=True))


def test_a_bias_in_an_order_of_its_own_is_the_same_bias(rng: Generator) -> None:
    one = case(rng, [[10, 4], [0, 1], [7, 9]], 10, 7, 3, 20, torch.float32)
    assert one.bias is not None
    kv = [x.nan_to_num(0.0) for x in one[1:3]]
    given = {"block_size": 7, "kv_lengths": one.lengths}
    moved, named = reordered(one.bias, one)
    want = naive.resident_attention(one.q, *kv, one.slots, one.counts, **given, bias=one.bias)
    got = naive.resident_attention(one.q, *kv, one.slots, one.counts, **given, bias=moved, bias_blocks=named)
    assert all(x.equal(y) for x, y in zip(got, want, strict=True))


def test_many_query_heads_take_several_row_tiles(rng: Generator) -> None:
    one = case(rng, [[6, 5], [2, 6], [6, 0]], 6, 16, 20, 16, torch.float32)
    launch = ResidentLaunch(16, 16, 32, 2, 4, 2)
    whole, parted = run(one, None, launch), run(one, drawn(rng, one, 0.4), launch)
    check(one, whole)
    assert all(got.equal(want) for got, want in zip(parted, whole, strict=True))


def test_the_rule_takes_one_wave_of_programs_that_can_be_counted_and_joined() -> None:
    meta = torch.device("meta")
    nosa = choose_launch(60, 16, 128, 4096, torch.bfloat16, meta)
    assert nosa.share == SHARE_TOKENS == 2 * 64 and nosa.parts == 8 and nosa.splits_of(4096) == 4 and nosa.rows == 16
    assert choose_launch(64, 16, 128, 4096, torch.bfloat16, meta) == nosa
    assert choose_launch(60, 16, 128, 128, torch.bfloat16, meta).splits_of(128) == 1
    assert BESIDE_ATTENTION.programs == COPYING and choose_launch(2, 16, 128, 4096, torch.bfloat16, meta).parts == 1
    for most in (1, 100_000, 1 << 20):
        assert choose_launch(8, 4, 64, most, torch.bfloat16, meta).splits_of(most) <= 128
    assert choose_launch(COUNTERS + 1, 16, 128, 4096, torch.bfloat16, meta).splits_of(4096) == 1
    for dtype, dim in ((torch.float32, 128), (torch.float16, 256), (torch.bfloat16, 32)):
        chosen = choose_launch(60, 16, dim, 4096, dtype, meta)
        assert chosen.share % chosen.tokens == 0
    with pytest.raises(ValueError, match="a power of two of at most 16"):
        ResidentLaunch(16, 64, 64, 3, 4, 2)
    with pytest.raises(ValueError, match="whole steps of 64"):
        ResidentLaunch(16, 64, 96, 1, 4, 2)


def test_refuses_what_it_cannot_read(rng: Generator) -> None:
    one = case(rng, [[3, 2]], 3, 16, 2, 16, torch.float32, biased=False)
    given = {"block_size": 16, "kv_lengths": one.lengths}
    with pytest.raises(ValueError, match="2 query rows"):
        resident_attention_gpu(one.q.expand(-1, -1, 2, -1), *one[1:5], **given)
    with pytest.raises(ValueError, match="of one dtype"):
        resident_attention_gpu(one.q.half(), *one[1:5], **given)
    with pytest.raises(ValueError, match=r"blocks of the bias \[1, 2\]; \[1, 2, 3\] are needed"):
        resident_attention_gpu(*one[:5], **given, bias=one.k[..., 0].float(), bias_blocks=one.counts)
    late = torch.zeros(1, 2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"contiguous int32 \[1, 2, 3\] is needed"):
        resident_attention_gpu(*one[:5], **given, arrivals=Arrivals(late, late))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("share", "each"), [(128, 4), (256, 1), (512, 8), (8192, 1)])
def test_overlaps_a_copy_in_a_graph(rng: Generator, dtype: torch.dtype, share: int, each: int) -> None:
    """NOSA's shape, from a graph that is replayed with other late blocks: none, all, more than programs can hold."""
    one = case(rng, [[64, 64], [64, 3], [64, 30], [0, 64]] * 8, 64, 64, 16, 128, dtype)
    q, slots, counts, lengths, bias = (x.to(DEVICE) for x in (one.q, *one[3:7]) if x is not None)
    launch = ResidentLaunch(16, 64 if dtype == torch.bfloat16 else 16, share, each, 4, 2)
    whole = run(one, None, launch)
    check(one, whole)
    truth = tuple(x.pin_memory() for x in (one.k, one.v))
    near = (one.k.to(DEVICE), one.v.to(DEVICE))
    queue, arrivals = queued(one, torch.ones_like(one.slots, dtype=torch.bool) & (one.slots < 1 << 40))

    def step() -> tuple[Tensor, Tensor]:
        copy_blocks_gpu(in_blocks(truth, 64), in_blocks(near, 64), queue, arrivals)
        return resident_attention_gpu(
            q, *near, slots, counts, block_size=64, kv_lengths=lengths, bias=bias, launch=launch, arrivals=arrivals
        )

    graph, found = captured(step)
    for rate in (0.0, 0.03, 0.3, 1.0, 0.03):
        late = drawn(rng, one, rate)
        for mine, theirs in zip(parts(queue, arrivals), parts(*queued(one, late)), strict=True):
            mine.copy_(theirs)
        for x, source in zip(near, truth, strict=True):
            x.copy_(poisoned(source.clone(), one, late))
        graph.replay()
        torch.cuda.synchronize()
        assert found[0].cpu().equal(whole[0]) and found[1].cpu().equal(whole[1])
        assert not (arrivals.state == 1).any() and not arrival_counters(1, DEVICE).any()


def parts(queue: BlockQueue, arrivals: Arrivals) -> tuple[Tensor, ...]:
    return queue.sources, queue.targets, queue.count, arrivals.state, arrivals.entries
