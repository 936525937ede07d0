"""Top-k selection, naive and in Triton, into new lists and into given ones, against a stable sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from kernel_inputs import DEVICE, INFINITY, NAN, UNTOUCHED, captured, on_device, same
from longdecode.kernels.topk_select import naive, topk_select
from longdecode.kernels.topk_select.gpu import TopkLaunch, topk_select_gpu, topk_select_into_gpu

WHOLE, WIDE, SIEVE = TopkLaunch(4, 1024), TopkLaunch(8, 512), TopkLaunch(4, 512, groups=512)
WAYS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "naive": naive.topk_select, "whole": partial(topk_select_gpu, launch=WHOLE),
    "wide": partial(topk_select_gpu, launch=WIDE), "sieve": partial(topk_select_gpu, launch=SIEVE),
}  # fmt: skip
INTO: dict[str, Callable[..., None]] = {
    "naive": naive.topk_select_into,
    "whole": partial(topk_select_into_gpu, launch=TopkLaunch(4, 512)),
    "sieve": partial(topk_select_into_gpu, launch=SIEVE),
}


@pytest.fixture(autouse=True)
def _junk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what the kernels are given to write, and their workspace, with junk."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **how: empty(*shape, **how).fill_(UNTOUCHED))


def by_sort(scores: Tensor, k: int, valid: int, first: int = 0, last: int = 0) -> list[int]:
    """The chosen entries of one list, from a stable sort that takes those kept always first."""
    kept = [i for i in range(valid) if i < first or i >= valid - last]
    values = scores.tolist()
    rivals = sorted(set(range(valid)) - set(kept), key=lambda i: (-values[i], i))
    return sorted(kept + rivals[: min(k, scores.numel()) - len(kept)])


def check(
    select: Callable[..., tuple[Tensor, Tensor]], scores: Tensor, k: int, valid: Tensor, first: int = 0, last: int = 0,
    row_k: Tensor | None = None,
) -> None:  # fmt: skip
    more = {} if row_k is None else {"row_k": row_k.to(DEVICE)}
    found = select(scores.to(DEVICE), k, valid.to(DEVICE), keep_first=first, keep_last=last, **more)
    indices, counts = (x.cpu() for x in found)
    batch, heads, size = scores.shape
    assert indices.shape == (batch, heads, min(k, size)) and indices.dtype == counts.dtype == torch.int64
    for b, number in enumerate(valid.tolist()):
        for h in range(heads):
            want = by_sort(scores[b, h], k if row_k is None else min(k, int(row_k[b])), number, first, last)
            assert counts[b, h].item() == len(want)
            assert indices[b, h].tolist() == want + [0] * (indices.shape[2] - len(want))


def some(
    rng: Generator, lists: tuple[int, int], size: int, kind: str, between: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Scores with NaN past ragged lengths: one list full, the last one empty."""
    shape = (*lists, size)
    scores = {
        "normal": lambda: torch.randn(shape, generator=rng),
        "ties": lambda: torch.randint(-1, 2, shape, generator=rng) * -0.5,
        "equal": lambda: torch.full(shape, 3.0),
        "zeros": lambda: torch.where(torch.rand(shape, generator=rng) < 0.5, 0.0, -0.0),
        "infinite": lambda: torch.randn(shape, generator=rng) / torch.randint(0, 2, shape, generator=rng),
        "tiny": lambda: torch.randn(shape, generator=rng).sign() * 1e-45,
    }[kind]().float()
    valid = torch.randint(0, size + 1, lists[:1], generator=rng)
    valid[0], valid[-1] = size, 0 if lists[0] > 1 else size
    valid[1 : 1 + len(between)] = torch.tensor(between, dtype=torch.int64)
    scores[(torch.arange(size) >= valid[:, None, None]).expand(shape)] = NAN
    return scores, valid


@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "zeros", "infinite", "tiny"])
@pytest.mark.parametrize("way", ["naive", "whole", "sieve"])
def test_every_kind_of_scores(rng: Generator, kind: str, way: str) -> None:
    scores, valid = some(rng, (3, 1 if way == "sieve" else 2), 1000, kind)
    for k in (37,) if way == "sieve" else (1, 37, 999):
        check(WAYS[way], scores, k, valid)


@pytest.mark.parametrize("size", [1, 2, 15, 63, 129, 2047])
@pytest.mark.parametrize("way", WAYS)
def test_odd_sizes(rng: Generator, size: int, way: str) -> None:
    scores, valid = some(rng, (2, 1), size, "normal", (size // 2,))
    for k in (size // 3 + 1, size + 5):
        check(WAYS[way], scores, k, valid)


@pytest.mark.parametrize("size", [8192, 10_001])
def test_shapes_of_long_contexts(rng: Generator, size: int) -> None:
    """As many entries to take as leave fewer groups than that, and lists that fill a fraction of their capacity."""
    scores, valid = some(rng, (3, 1), size, "normal", (300,))
    for k, launch in ((256, None), (4000, TopkLaunch(8, 4096)), (256, TopkLaunch(8, 2048, groups=512))):
        check(partial(topk_select_gpu, launch=launch), scores, k, valid)


@pytest.mark.parametrize("way", ["naive", "whole", "sieve"])
@pytest.mark.parametrize("kind", ["normal", "ties"])
@pytest.mark.parametrize(("k", "first", "last"), [(8, 0, 1), (8, 4, 4), (40, 3, 30), (300, 130, 140), (1, 1, 0)])
def test_entries_kept_always(rng: Generator, way: str, kind: str, k: int, first: int, last: int) -> None:
    """Those at the ends before the best of the rest, though it be infinite; short rows are taken whole."""
    scores, valid = some(rng, (6, 1), 300, kind, (1, 5, first + last, 150))
    scores[0, 0, 200] = INFINITY
    check(WAYS[way], scores, k, valid, first, last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", ["naive", "whole", "sieve"])
def test_half_precision_and_strides(rng: Generator, way: str, dtype: torch.dtype) -> None:
    scores = torch.randn(2, 300, 3, generator=rng).to(dtype).transpose(1, 2)
    check(WAYS[way], scores, 20, torch.tensor([300, 77]))


def test_large_launches_agree_with_the_naive_op(rng: Generator) -> None:
    scores, valid = some(rng, (2, 1), 9000, "ties")
    want = naive.topk_select(scores, 100, valid, keep_first=2, keep_last=1)
    for launch in (TopkLaunch(8, 2048), TopkLaunch(16, 4096, groups=2048)):
        same(topk_select_gpu(*on_device(scores, 100, valid), keep_first=2, keep_last=1, launch=launch), want)


@pytest.mark.parametrize("way", ["naive", "whole", "sieve"])
@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_rows_that_want_numbers_of_their_own(rng: Generator, way: str, kind: str) -> None:
    """60 are more than the row has, 90 more than the lists hold."""
    scores, valid = some(rng, (5, 1), 700, kind, (40, 300, 650))
    check(WAYS[way], scores, 80, valid, last=1, row_k=torch.tensor([2, 60, 31, 90, 7]))


@pytest.mark.parametrize("way", INTO)
@pytest.mark.parametrize(
    ("size", "k", "first", "last"),
    [(1, 3, 0, 0), (3, 1, 0, 1), (63, 6, 2, 4), (63, 16, 2, 5), (700, 40, 0, 1)],  # in two nothing is left to choose
)
def test_lists_land_where_they_belong(rng: Generator, way: str, size: int, k: int, first: int, last: int) -> None:
    """Two of four lists are written, in another order, in a buffer wider than needed; all else stays."""
    scores, valid = some(rng, (3, 2), size, "ties")
    heads, width = torch.tensor([3, 1]), min(k, size)
    buffer = torch.full((3, 4, width + 2), UNTOUCHED, device=DEVICE)
    INTO[way](*on_device(scores, k, valid), buffer, heads.to(DEVICE), keep_first=first, keep_last=last)
    for b, number in enumerate(valid.tolist()):
        for r, head in enumerate(heads.tolist()):
            want = by_sort(scores[b, r], k, number, first, last)
            assert buffer[b, head].tolist() == want + [0] * (width - len(want)) + [UNTOUCHED] * 2
        assert buffer[b, [0, 2]].eq(UNTOUCHED).all()


@pytest.mark.parametrize("way", ["whole", "naive"])
def test_strided_buffers(rng: Generator, way: str) -> None:
    """A layer's part of a larger buffer, with rows of scores that lie apart."""
    scores = torch.randn(2, 90, 3, generator=rng).transpose(1, 2)
    valid, heads = torch.tensor([90, 33]), torch.tensor([0, 2, 1])
    buffer = torch.full((2, 5, 3, 12), UNTOUCHED, device=DEVICE)
    INTO[way](*on_device(scores, 12, valid), buffer[:, 1], heads.to(DEVICE))
    same([buffer[:, 1][:, heads]], topk_select(scores, 12, valid)[:1])
    assert buffer[:, [0, 2, 3, 4]].eq(UNTOUCHED).all()


def test_refuses_what_does_not_fit() -> None:
    scores, valid, heads = torch.zeros(2, 2, 9), torch.tensor([9, 9]), torch.tensor([0, 1])
    for select in (naive.topk_select, topk_select_gpu):
        for k, first, last in ((0, 0, 0), (3, 2, 2), (3, -1, 0)):
            with pytest.raises(ValueError, match=f"k = {k}"):
                select(scores, k, valid, keep_first=first, keep_last=last)
        with pytest.raises(ValueError, match="one a row"):
            select(scores, 1, torch.ones(2, 1, 9, dtype=torch.bool))
    with pytest.raises(ValueError, match="40000 entries"):
        topk_select_gpu(torch.zeros(1, 1, 40_000), 3, valid[:1], launch=WHOLE)
    room = torch.zeros(2, 2, 4, dtype=torch.int64)
    bad: list[tuple[str, Tensor, Tensor, dict[str, Any]]] = [
        *(("indices", indices, heads, {}) for indices in (room[:1], room[:, :1], room[..., :3], room[0])),
        ("heads", room, heads[:1], {}),
        ("int64", room.int(), heads, {}),
        ("k = 4", room, heads, {"keep_first": 3, "keep_last": 2}),
    ]
    for into in (naive.topk_select_into, topk_select_into_gpu):
        for message, indices, listed, keep in bad:
            with pytest.raises(ValueError, match=message):
                into(scores, 4, valid, indices, listed, **keep)
    with pytest.raises(ValueError, match="contiguous"):
        topk_select_into_gpu(scores, 2, valid, room.transpose(1, 2), heads)


@pytest.mark.gpu
@pytest.mark.parametrize("levels", [5, 0], ids=["ties", "distinct"])
@pytest.mark.parametrize(
    ("size", "k"), [(1, 1), (63, 7), (2047, 256), (8192, 256), (32_768, 3277), (131_072, 4096), (524_288, 52_429)]
)
def test_equals_naive_on_the_device_and_in_a_graph(seed: int, size: int, k: int, levels: int) -> None:
    rng = Generator("cuda").manual_seed(seed)
    scores = torch.randn(4, 8, size, generator=rng, device="cuda")
    valid = torch.randint(0, size + 1, (4,), generator=rng, device="cuda")
    valid[0] = size
    if levels:
        scores = (scores * levels).round()
    for launch in (None, *((WHOLE,) if size <= 32_768 else ()), *((SIEVE,) if size > 8192 and k <= 256 else ())):
        got = topk_select_gpu(scores, k, valid, keep_last=1, launch=launch)
        same(got, naive.topk_select(scores, k, valid, keep_last=1))
    graph, found = captured(lambda: topk_select_gpu(scores, k, valid, keep_last=1))
    scores.copy_(scores.flip(-1)), valid.clamp_(max=size // 2 + 1)
    graph.replay()
    same(found, naive.topk_select(scores, k, valid, keep_last=1))
