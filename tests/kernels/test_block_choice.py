"""The fused choice of blocks against plain loops in float64: ties, short rows, poison, every grid."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernel_inputs import DEVICE, NAN, poison_past
from longdecode.kernels.block_choice import BlockShares, gpu, naive
from longdecode.kernels.block_choice.gpu import choose_blocks_gpu
from longdecode.kernels.pooled_keys.naive import Pooling

CLOSE = 1e-5
"""Scores nearer than this may rank either way: sums of float32 run in another order."""
Choose = Callable[..., tuple[Tensor, Tensor]]
PAPER = BlockShares(1, 16, 16, 31)


def best(scores: list[float], many: int, taken: set[int]) -> tuple[set[int], float]:
    """The ``many`` largest not yet taken, of equal ones the newest; and how clearly they lead, as a share."""
    order = sorted((block for block in range(len(scores)) if block not in taken), key=lambda b: (-scores[b], -b))
    if not 0 < many < len(order):
        return set(order[:many]), math.inf
    last, next_ = scores[order[many - 1]], scores[order[many]]
    return set(order[:many]), math.inf if last == next_ else (last - next_) / max(abs(last), abs(next_))


def wanted(
    q: Tensor, means: Tensor, n: int, importance: Tensor | None, shares: BlockShares, pooling: Pooling, size: int
) -> tuple[list[int], float]:
    """One list by the rule of the paper: blocks, the newest first, and how clearly the query's choice leads."""
    blocks = -(-n // size)
    windows = max(0, (n - pooling.window) // pooling.stride + 1)
    summed = [0.0] * windows
    for head in q.double():
        logits = [float(key @ head) * q.shape[-1] ** -0.5 for key in means[:windows].double()]
        total = sum(map(math.exp, logits))
        summed = [have + math.exp(logit) / total for have, logit in zip(summed, logits, strict=True)]
    scores = []
    for block in range(blocks):
        tokens = set(range(block * size, (block + 1) * size))
        spans = ((value, m * pooling.stride) for m, value in enumerate(summed))
        touching = [value for value, at in spans if tokens & set(range(at, at + pooling.window))]
        scores.append(max(touching, default=0.0))
    taken = {block for block in range(blocks) if block < shares.sink or block >= blocks - shares.window}
    by_query, lead = best(scores, min(shares.by_query, blocks - len(taken)), taken)
    taken |= by_query
    if importance is not None:
        short = importance[:blocks].bfloat16().tolist()
        taken |= best(short, min(sum(shares) - len(taken), blocks - len(taken)), taken)[0]
    return sorted(taken, reverse=True), lead


def check(
    choose: Choose, q: Tensor, means: Tensor, lengths: Tensor, importance: Tensor | None, shares: BlockShares,
    pooling: Pooling, size: int, room: int,
) -> int:  # fmt: skip
    """Compare every list that is clear with ``wanted``, and say how many were not."""
    in_use, windows, unclear = -(-lengths // size), pooling.complete(lengths), 0
    moved = tuple(None if x is None else x.to(DEVICE) for x in (q, means, windows, in_use, importance))
    blocks, counts = (x.cpu() for x in choose(*moved, shares, pooling, size, room))
    group = q.shape[1] // means.shape[1]
    for row, n in enumerate(lengths.tolist()):
        for head in range(means.shape[1]):
            own = None if importance is None else importance[row, head]
            queries = q[row, head * group : (head + 1) * group, 0]
            want, lead = wanted(queries, means[row, head], n, own, shares, pooling, size)
            got, count = blocks[row, head].tolist(), int(counts[row, head])
            assert count == len(want) and got[:count] == sorted(set(got[:count]), reverse=True)
            assert got[count:] == [got[0]] * (len(got) - count)
            unclear += lead < CLOSE
            assert lead < CLOSE or got[:count] == want
    return unclear


CASES = [
    (PAPER, 64, Pooling(32, 16), 16, 64, 5003),
    (PAPER, 16, Pooling(8, 4), 4, 32, 1311),
    (BlockShares(1, 17, 46, 0), 8, Pooling(4, 2), 3, 20, 701),
    (BlockShares(1, 2, 2, 5), 4, Pooling(2, 1), 1, 16, 333),
    (BlockShares(2, 3, 1, 6), 12, Pooling(6, 6), 5, 24, 301),
]


@pytest.mark.parametrize("choose", [naive.choose_blocks, choose_blocks_gpu], ids=["chain", "triton"])
@pytest.mark.parametrize(("shares", "size", "pooling", "group", "dim", "capacity"), CASES)
def test_the_choice_is_the_papers(
    rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, choose: Choose, shares: BlockShares, size: int,
    pooling: Pooling, group: int, dim: int, capacity: int,
) -> None:  # fmt: skip
    """Ragged rows: whole, odd, one block over the budget, below it, without a window; junk past every length."""
    monkeypatch.setattr(gpu, "_PARTS", 4)
    budget, room = sum(shares), -(-capacity // size)
    lengths = torch.tensor([capacity, capacity * 2 // 3, budget * size + 1, budget * size // 2, pooling.window - 1])
    q = 2 * torch.randn(5, 2 * group, 1, dim, generator=rng)
    means = torch.randn(5, 2, pooling.room(capacity), dim, generator=rng)
    poison_past(pooling.complete(lengths), means)
    importance = None
    if shares.by_importance:
        importance = torch.randn(5, 2, room, generator=rng)
        place, last = torch.arange(room), -(-lengths // size) - 1
        importance = torch.where((place == last[:, None])[:, None], -math.inf, importance)
        importance = torch.where((place > last[:, None])[:, None], NAN, importance)
    assert check(choose, q, means, lengths, importance, shares, pooling, size, room) <= 1


@pytest.mark.parametrize("kind", ["equal", "few", "by_importance"])
def test_of_equal_scores_the_newer_block_wins(rng: torch.Generator, kind: str) -> None:
    """All logits equal; few distinct keys; importances that are equal in bfloat16 alone, of both signs and zeros."""
    shares, size, pooling, capacity = BlockShares(1, 4, 5, 9), 4, Pooling(4, 2), 503
    lengths, room = torch.tensor([503, 301, 77, 76, 75]), 126
    q = torch.zeros(5, 4, 1, 16) if kind == "equal" else torch.randint(-2, 3, (5, 4, 1, 16), generator=rng).float()
    few = torch.randint(-1, 2, (3, 16), generator=rng).float()
    means = few[torch.randint(0, 3, (5, 2, pooling.room(capacity)), generator=rng)]
    levels = torch.tensor([-1.5, -0.0, 0.0, 1.5])[torch.randint(0, 4, (5, 2, room), generator=rng)]
    if kind == "by_importance":
        levels *= 1 + 4e-3 * (torch.rand(5, 2, room, generator=rng) - 0.5)
    assert check(choose_blocks_gpu, q, means, lengths, levels, shares, pooling, size, room) == 0


def test_a_row_alone_is_chosen_as_in_a_batch(rng: torch.Generator) -> None:
    """Strided inputs, bfloat16; near ties must fall the same way whatever shares the launch."""
    shares, size, pooling, room = BlockShares(1, 4, 6, 9), 8, Pooling(4, 2), 90
    q = torch.randn(3, 1, 8, 32, generator=rng).bfloat16().transpose(1, 2).to(DEVICE)
    means = 0.01 * torch.randn(3, pooling.room(room * size), 2, 32, generator=rng)
    means = means.bfloat16().transpose(1, 2).to(DEVICE)
    lengths = torch.tensor([720, 333, 511], device=DEVICE)
    windows, in_use = pooling.complete(lengths), -(-lengths // size)
    importance = torch.randn(room, 3, 2, generator=rng).permute(1, 2, 0).to(DEVICE)
    given = (q, means, windows, in_use, importance)
    blocks, counts = choose_blocks_gpu(*given, shares, pooling, size, room)
    for row in range(3):
        alone = choose_blocks_gpu(*(x[row : row + 1] for x in given), shares, pooling, size, room)
        assert alone[0].equal(blocks[row : row + 1]) and alone[1].equal(counts[row : row + 1])


def test_a_misfit_is_refused() -> None:
    shares, pooling, whole = BlockShares(1, 2, 2, 5), Pooling(2, 1), torch.ones(1, dtype=torch.int64)
    q, means = torch.zeros(1, 4, 1, 16), torch.zeros(1, 2, 40, 16)
    importance = torch.zeros(1, 2, 11)
    for given, room, message in (
        ((q, means, whole, whole, importance[..., :7]), 11, "importances"),
        ((q, means.bfloat16(), whole, whole, importance), 11, "one dtype"),
        ((q, means, whole, whole, None), gpu.MAX_ROOM + 1, "at most 8192"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_blocks_gpu(*given, shares, pooling, 4, room)
