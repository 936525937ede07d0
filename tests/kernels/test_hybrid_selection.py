"""Top-k written straight to the lists it is for, against a stable sort."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longdecode.kernels.topk_select import naive, topk_select_into
from longdecode.kernels.topk_select.gpu import TopkLaunch, topk_select_gpu, topk_select_into_gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WAYS = {
    "whole": TopkLaunch(4, 512),
    "sieve": TopkLaunch(4, 512, groups=512),
    "naive": None,
}
UNTOUCHED = -7


def best(scores: list[float], k: int, first: int, last: int) -> list[int]:
    """The chosen entries of one list, all of them valid."""
    n = len(scores)
    kept = [i for i in range(n) if i < first or i >= n - last]
    rivals = sorted(set(range(n)) - set(kept), key=lambda i: (-scores[i], i))
    return sorted(kept + rivals[: min(k, n) - len(kept)])


def into(way: str, scores: Tensor, k: int, valid: Tensor, indices: Tensor, heads: Tensor, **keep: int) -> Tensor:
    """One call on the device, in the given way."""
    moved = [x.to(DEVICE) for x in (valid, indices, heads)]
    if way == "naive":
        naive.topk_select_into(scores.to(DEVICE), k, *moved, **keep)
    else:
        topk_select_into_gpu(scores.to(DEVICE), k, *moved, **keep, launch=WAYS[way])
    return moved[1].cpu()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("size", "k", "first", "last"),
    [(1, 3, 0, 0), (3, 1, 0, 1), (63, 6, 2, 4), (63, 16, 2, 5), (700, 40, 0, 1)],  # in two nothing is left to choose
)
def test_lists_land_where_they_belong(rng: torch.Generator, way: str, size: int, k: int, first: int, last: int) -> None:
    """Two of four lists are written, in another order, in a buffer wider than needed; all else stays."""
    scores = torch.randint(-3, 4, (3, 2, size), generator=rng).float()
    valid = torch.tensor([size, int(torch.randint(0, size + 1, (), generator=rng)), 0])
    for b, number in enumerate(valid.tolist()):
        scores[b, :, number:] = float("nan")
    heads = torch.tensor([3, 1])
    width = min(k, size)
    buffer = torch.full((3, 4, width + 2), UNTOUCHED)
    got = into(way, scores, k, valid, buffer, heads, keep_first=first, keep_last=last)
    for b, number in enumerate(valid.tolist()):
        for r, head in enumerate(heads.tolist()):
            want = best(scores[b, r, :number].tolist(), k, first, last)
            assert got[b, head].tolist() == want + [0] * (width - len(want)) + [UNTOUCHED] * 2
        assert got[b, [0, 2]].eq(UNTOUCHED).all()


@pytest.mark.parametrize("way", ["whole", "naive"])
def test_strided_buffers(rng: torch.Generator, way: str) -> None:
    """A layer's part of a larger buffer, with rows of scores that lie apart."""
    scores = torch.randn(2, 90, 3, generator=rng).transpose(1, 2)
    valid, heads = torch.tensor([90, 33]), torch.tensor([0, 2, 1])
    buffer = torch.full((2, 5, 3, 12), UNTOUCHED)
    want, _ = topk_select_gpu(scores.to(DEVICE), 12, valid.to(DEVICE))
    got = into(way, scores, 12, valid, buffer[:, 1], heads)
    assert got[:, heads].equal(want.cpu())


def test_the_entrance_writes_on_a_cpu(rng: torch.Generator) -> None:
    scores, buffer = torch.randn(1, 1, 8, generator=rng), torch.full((1, 2, 3), UNTOUCHED)
    topk_select_into(scores, 3, torch.tensor([8]), buffer, torch.tensor([1]), keep_last=1)
    assert buffer.tolist() == [[[UNTOUCHED] * 3, best(scores[0, 0].tolist(), 3, 0, 1)]]


def test_refuses_what_does_not_fit() -> None:
    scores, valid, heads = torch.zeros(2, 2, 9), torch.tensor([9, 9]), torch.tensor([0, 1])
    room = torch.zeros(2, 2, 4, dtype=torch.int64)
    for select in (naive.topk_select_into, topk_select_into_gpu):
        for bad in (room[:1], room[:, :1], room[..., :3], room[0]):
            with pytest.raises(ValueError, match="indices"):
                select(scores, 4, valid, bad, heads)
        with pytest.raises(ValueError, match="heads"):
            select(scores, 4, valid, room, heads[:1])
        with pytest.raises(ValueError, match="int64"):
            select(scores, 4, valid, room.int(), heads)
        with pytest.raises(ValueError, match="k = 4"):
            select(scores, 4, valid, room, heads, keep_first=3, keep_last=2)
    with pytest.raises(ValueError, match="contiguous"):
        topk_select_into_gpu(scores, 2, valid, room.transpose(1, 2), heads)
