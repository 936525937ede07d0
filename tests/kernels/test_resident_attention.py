"""Attention around the arrival of blocks: against float64, bit for bit against one launch, never a late block early."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from longdecode.kernels.resident_attention import Arriving, naive
from longdecode.kernels.resident_attention.gpu import resident_attention_gpu
from longdecode.kernels.resident_attention.launch import SHARE_TOKENS, ResidentLaunch, choose_launch
from longdecode.kernels.split_kv import COUNTERS, arrival_counters

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
NAN = float("nan")
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
    rng: torch.Generator, counts: list[list[int]], width: int, size: int, group: int, dim: int, dtype: torch.dtype,
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


def drawn(rng: torch.Generator, one: Case, share: float) -> Tensor:
    """Late entries of the lists, never the tail."""
    late = torch.rand(one.slots.shape, generator=rng) < share
    listed = torch.arange(one.slots.shape[2]) < one.counts[..., None]
    return late & listed & (one.slots != one.k.shape[2] // one.size - 1)


def run(one: Case, late: Tensor | None, launch: ResidentLaunch | None) -> Found:
    """Output, log-sum-exp and tokens read. Late blocks hold NaN until they are waited for; counters end at zero."""
    q, k, v, slots, counts, lengths = (x.to(DEVICE) for x in one[:6])
    bias = None if one.bias is None else one.bias.to(DEVICE)
    read, arriving, waits = torch.zeros(len(q), dtype=torch.int64, device=DEVICE), None, []
    if late is not None:
        near = [x.clone() for x in (k, v)]
        for row, head, entry in late.nonzero().tolist():
            first = int(one.slots[row, head, entry]) * one.size
            for x in near:
                x[row, head, first : first + one.size] = NAN

        def wait() -> None:
            waits.append(True)
            for x, truth in zip(near, (k, v), strict=True):
                x.copy_(truth)

        arriving = Arriving(late.to(DEVICE), wait)
    pair = (k, v) if late is None else near
    out, lse = resident_attention_gpu(
        q, *pair, slots, counts, block_size=one.size, kv_lengths=lengths, bias=bias, kv_tokens_read=read,
        arriving=arriving, launch=launch,
    )  # fmt: skip
    assert len(waits) == (late is not None)
    assert not arrival_counters(1, DEVICE).any()
    return out.cpu(), lse.cpu(), read.cpu()


def check(one: Case, found: Found) -> None:
    """Compare with the definition in float64."""
    wide = [x.nan_to_num(0.0).double() for x in one[:3]]
    read = torch.zeros(len(one.q), dtype=torch.int64)
    bias = None if one.bias is None else one.bias.double()
    out, lse = naive.resident_attention(
        *wide, one.slots, one.counts, block_size=one.size, kv_lengths=one.lengths, bias=bias, kv_tokens_read=read
    )
    tolerance = TOLERANCE[one.q.dtype]
    torch.testing.assert_close(found[0].double(), out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(found[1].double(), lse, atol=1e-4, rtol=1e-4)
    assert found[2].equal(read)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("size", "share", "splits"),
    [(16, 1024, 1), (16, 96, 2), (16, 32, 5), (24, 64, 4), (7, 16, 5), (64, 32, 20)],
    ids=["whole", "halves", "blocks", "straddling", "small blocks", "parts of blocks"],
)
def test_no_bit_depends_on_what_is_late(
    rng: torch.Generator, size: int, share: int, splits: int, dtype: torch.dtype
) -> None:
    """Lists that are full, short, of one block, empty; nothing late, some, everything but the tail."""
    launch = ResidentLaunch(16, 16, share, 4, 2)
    one = case(rng, [[10, 4], [0, 1], [7, 9]], 10, size, 3, 20, dtype, biased=bool(splits % 2))
    assert launch.splits(10 * size) == splits
    whole = run(one, None, launch)
    check(one, whole)
    for rate in (0.0, 0.3, 1.0):
        found = run(one, drawn(rng, one, rate), launch)
        assert all(got.equal(want) for got, want in zip(found, whole, strict=True))


def test_many_query_heads_take_several_row_tiles(rng: torch.Generator) -> None:
    one = case(rng, [[6, 5], [2, 6], [6, 0]], 6, 16, 20, 16, torch.float32)
    launch = ResidentLaunch(16, 16, 32, 4, 2)
    whole, parted = run(one, None, launch), run(one, drawn(rng, one, 0.4), launch)
    check(one, whole)
    assert all(got.equal(want) for got, want in zip(parted, whole, strict=True))


def test_the_rule_splits_lists_where_parts_can_be_counted_and_joined() -> None:
    meta = torch.device("meta")
    nosa = choose_launch(60, 16, 128, 4096, torch.bfloat16, meta)
    assert nosa.share == SHARE_TOKENS == 4 * 64 and nosa.splits(4096) == 16 and nosa.rows == 16
    assert choose_launch(60, 16, 128, 128, torch.bfloat16, meta).splits(128) == 1
    for most in (1, 100_000, 1 << 20):
        assert choose_launch(8, 4, 64, most, torch.bfloat16, meta).splits(most) <= 128
    assert choose_launch(COUNTERS + 1, 16, 128, 4096, torch.bfloat16, meta).splits(4096) == 1
    for dtype, dim in ((torch.float32, 128), (torch.float16, 256), (torch.bfloat16, 32)):
        chosen = choose_launch(60, 16, dim, 4096, dtype, meta)
        assert chosen.share % chosen.tokens == 0
    with pytest.raises(ValueError, match="whole steps of 64"):
        ResidentLaunch(16, 64, 96, 4, 2)


def test_naive_waits_and_reads(rng: torch.Generator) -> None:
    one, waits = case(rng, [[3]], 3, 4, 2, 8, torch.float64), []
    arriving = Arriving(drawn(rng, one, 1.0), lambda: waits.append(True))
    given = {"block_size": 4, "kv_lengths": one.lengths, "bias": one.bias}
    k, v = one.k.nan_to_num(0.0), one.v.nan_to_num(0.0)
    found = naive.resident_attention(one.q, k, v, one.slots, one.counts, **given, arriving=arriving)
    want = naive.resident_attention(one.q, k, v, one.slots, one.counts, **given)
    assert waits == [True] and found[0].equal(want[0])


def test_refuses_what_it_cannot_read(rng: torch.Generator) -> None:
    one = case(rng, [[3, 2]], 3, 16, 2, 16, torch.float32, biased=False)
    given = {"block_size": 16, "kv_lengths": one.lengths}
    with pytest.raises(ValueError, match="2 query rows"):
        resident_attention_gpu(one.q.expand(-1, -1, 2, -1), *one[1:5], **given)
    with pytest.raises(ValueError, match="of one dtype"):
        resident_attention_gpu(one.q.half(), *one[1:5], **given)
    late = torch.zeros(1, 2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"contiguous bool \[1, 2, 3\] is needed"):
        resident_attention_gpu(*one[:5], **given, arriving=Arriving(late, lambda: None))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("share", [128, 256, 512, 8192])
def test_overlaps_a_copy_in_a_graph(seed: int, dtype: torch.dtype, share: int) -> None:
    """NOSA's shape: late blocks come on another stream, from a graph that is replayed with other late blocks."""
    rng = torch.Generator().manual_seed(seed)
    one = case(rng, [[64, 64], [64, 3], [64, 30], [0, 64]], 64, 64, 16, 128, dtype)
    q, k, v, slots, counts, lengths, bias = (x.to(DEVICE) for x in one[:7] if x is not None)
    launch = ResidentLaunch(16, 64 if dtype == torch.bfloat16 else 16, share, 4, 2)
    whole = run(one, None, launch)
    check(one, whole)
    late, poison = torch.zeros_like(slots, dtype=torch.bool), torch.zeros(k.shape[:3], dtype=torch.bool, device=DEVICE)
    near, side = [k.clone(), v.clone()], torch.cuda.Stream()

    def step() -> tuple[Tensor, Tensor]:
        main = torch.cuda.current_stream()
        for x in near:
            x.masked_fill_(poison[..., None], NAN)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for x, truth in zip(near, (k, v), strict=True):
                x.copy_(truth)
        return resident_attention_gpu(
            q, *near, slots, counts, block_size=64, kv_lengths=lengths, bias=bias, launch=launch,
            arriving=Arriving(late, lambda: torch.cuda.current_stream().wait_stream(side)),
        )  # fmt: skip

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for rate in (0.0, 0.03, 0.3, 1.0):
        chosen = drawn(rng, one, rate)
        late.copy_(chosen)
        held = torch.zeros(*k.shape[:2], k.shape[2] // 64 + 1, dtype=torch.bool)
        held.scatter_(2, torch.where(chosen, one.slots, held.shape[2] - 1), True)
        poison.copy_(held[..., :-1].repeat_interleave(64, dim=2))
        graph.replay()
        torch.cuda.synchronize()
        assert found[0].cpu().equal(whole[0]) and found[1].cpu().equal(whole[1])
        assert not arrival_counters(1, DEVICE).any()
