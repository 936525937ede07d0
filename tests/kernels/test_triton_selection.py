"""Top-k selection in Triton against a stable sort: in Triton's interpreter without a GPU, on the device with one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longdecode.kernels.topk_select import naive
from longdecode.kernels.topk_select.gpu import TopkLaunch, topk_select_gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAN, INFINITY = float("nan"), float("inf")
WHOLE, WIDE = TopkLaunch(4, 1024), TopkLaunch(8, 512)
SIEVE = TopkLaunch(4, 512, groups=512)
WAYS = {"whole": WHOLE, "sieve": SIEVE}


def by_sort(scores: Tensor, k: int, valid: int, first: int = 0, last: int = 0) -> list[int]:
    """The chosen entries of one list, from a stable sort that takes those kept always first."""
    kept = [i for i in range(valid) if i < first or i >= valid - last]
    values = scores.tolist()
    rivals = sorted(set(range(valid)) - set(kept), key=lambda i: (-values[i], i))
    return sorted(kept + rivals[: min(k, scores.numel()) - len(kept)])


def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what the kernels are given to write, and their workspace, with junk."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **how: empty(*shape, **how).fill_(-7))


def check(scores: Tensor, k: int, valid: Tensor, launch: TopkLaunch | None, first: int = 0, last: int = 0) -> None:
    where = {"keep_first": first, "keep_last": last}
    indices, counts = topk_select_gpu(scores.to(DEVICE), k, valid.to(DEVICE), launch=launch, **where)
    indices, counts = indices.cpu(), counts.cpu()
    batch, heads, size = scores.shape
    assert indices.shape == (batch, heads, min(k, size)) and indices.dtype == counts.dtype == torch.int64
    for b, number in enumerate(valid.tolist()):
        for h in range(heads):
            want = by_sort(scores[b, h], k, number, first, last)
            assert counts[b, h].item() == len(want)
            assert indices[b, h, : len(want)].tolist() == want
            assert indices[b, h, len(want) :].eq(0).all()


def some(
    rng: torch.Generator, lists: tuple[int, int], size: int, kind: str, between: tuple[int, ...] = ()
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
    for b, number in enumerate(valid.tolist()):
        scores[b, :, number:] = NAN
    return scores, valid


KINDS = ["normal", "ties", "equal", "zeros", "infinite", "tiny"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("launch", WAYS.values(), ids=WAYS)
def test_every_kind_of_scores(
    rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, kind: str, launch: TopkLaunch
) -> None:
    scores, valid = some(rng, (3, 2 if launch == WHOLE else 1), 1000, kind)
    poison(monkeypatch)
    for k in (1, 37, 999) if launch == WHOLE else (37,):
        check(scores, k, valid, launch)


@pytest.mark.parametrize("size", [1, 2, 15, 63, 129, 2047])
@pytest.mark.parametrize("launch", [WHOLE, WIDE, SIEVE], ids=str)
def test_odd_sizes(rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, size: int, launch: TopkLaunch) -> None:
    scores, valid = some(rng, (2, 1), size, "normal", (size // 2,))
    poison(monkeypatch)
    for k in (size // 3 + 1, size + 5):
        check(scores, k, valid, launch)


@pytest.mark.parametrize("size", [8192, 10_001])
def test_shapes_of_long_contexts(rng: torch.Generator, size: int) -> None:
    """As many entries to take as leave fewer groups than that, and lists that fill a fraction of their capacity."""
    scores, valid = some(rng, (3, 1), size, "normal", (300,))
    for k, launch in ((256, None), (4000, TopkLaunch(8, 4096)), (256, TopkLaunch(8, 2048, groups=512))):
        check(scores, k, valid, launch)


@pytest.mark.parametrize("launch", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("kind", ["normal", "ties"])
@pytest.mark.parametrize(("k", "first", "last"), [(8, 0, 1), (8, 4, 4), (40, 3, 30), (300, 130, 140), (1, 1, 0)])
def test_entries_kept_always(
    rng: torch.Generator, launch: TopkLaunch, kind: str, k: int, first: int, last: int
) -> None:
    scores, valid = some(rng, (6, 1), 300, kind, (1, 5, first + last, 150))
    check(scores, k, valid, launch, first, last)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("launch", WAYS.values(), ids=WAYS)
def test_half_precision_and_strides(rng: torch.Generator, launch: TopkLaunch, dtype: torch.dtype) -> None:
    scores = torch.randn(2, 300, 3, generator=rng).to(dtype).transpose(1, 2)
    check(scores, 20, torch.tensor([300, 77]), launch)


def test_launches_agree(rng: torch.Generator) -> None:
    """Every launch gives the same lists as the naive op."""
    for size in (200, 9000):
        scores, valid = some(rng, (2, 1), size, "ties")
        want = naive.topk_select(scores, 100, valid, keep_first=2, keep_last=1)
        for launch in (WHOLE, WIDE, SIEVE) if size == 200 else (TopkLaunch(8, 2048), TopkLaunch(16, 4096, groups=2048)):
            got = topk_select_gpu(
                scores.to(DEVICE), 100, valid.to(DEVICE), keep_first=2, keep_last=1, launch=launch
            )  # fmt: skip
            assert got[0].cpu().equal(want[0]) and got[1].cpu().equal(want[1])


@pytest.mark.parametrize("launch", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("kind", ["normal", "ties"])
def test_rows_that_want_numbers_of_their_own(
    rng: torch.Generator, monkeypatch: pytest.MonkeyPatch, launch: TopkLaunch, kind: str
) -> None:
    scores, valid = some(rng, (5, 1), 700, kind, (40, 300, 650))
    row_k = torch.tensor([2, 60, 31, 90, 7])  # 60 are more than the row has, 90 more than the lists hold
    poison(monkeypatch)
    got = topk_select_gpu(scores.to(DEVICE), 80, valid.to(DEVICE), keep_last=1, row_k=row_k.to(DEVICE), launch=launch)
    plain = naive.topk_select(scores, 80, valid, keep_last=1, row_k=row_k)
    assert got[0].cpu().equal(plain[0]) and got[1].cpu().equal(plain[1])
    for b, (number, own) in enumerate(zip(valid.tolist(), row_k.tolist(), strict=True)):
        want = by_sort(scores[b, 0], min(own, 80), number, 0, 1)
        assert plain[1][b, 0].item() == len(want) and plain[0][b, 0].tolist() == want + [0] * (80 - len(want))


def test_refuses_what_does_not_fit() -> None:
    scores, valid = torch.zeros(1, 1, 4), torch.tensor([4])
    for k, first, last in ((0, 0, 0), (3, 2, 2), (3, -1, 0)):
        for select in (naive.topk_select, topk_select_gpu):
            with pytest.raises(ValueError, match=f"k = {k}"):
                select(scores, k, valid, keep_first=first, keep_last=last)
    for select in (naive.topk_select, topk_select_gpu):
        with pytest.raises(ValueError, match="one a row"):
            select(scores, 1, torch.ones(1, 1, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="40000 entries"):
        topk_select_gpu(torch.zeros(1, 1, 40_000), 3, valid, launch=WHOLE)


def on_the_device(seed: int, batch: int, heads: int, size: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator("cuda").manual_seed(seed)
    scores = torch.randn(batch, heads, size, generator=rng, device="cuda")
    return scores, torch.randint(0, size + 1, (batch,), generator=rng, device="cuda").index_fill_(
        0, torch.zeros(1, dtype=torch.int64, device="cuda"), size
    )


@pytest.mark.gpu
@pytest.mark.parametrize("levels", [5, 0], ids=["ties", "distinct"])
@pytest.mark.parametrize(
    ("size", "k"), [(1, 1), (63, 7), (2047, 256), (8192, 256), (32_768, 3277), (131_072, 4096), (524_288, 52_429)]
)
def test_equals_naive_on_the_device_and_in_a_graph(seed: int, size: int, k: int, levels: int) -> None:
    scores, valid = on_the_device(seed, 4, 8, size)
    if levels:
        scores = (scores * levels).round()
    for launch in (None, *((WHOLE,) if size <= 32_768 else ()), *((SIEVE,) if size > 8192 and k <= 256 else ())):
        got = topk_select_gpu(scores, k, valid, keep_last=1, launch=launch)
        want = naive.topk_select(scores, k, valid, keep_last=1)
        assert got[0].equal(want[0]) and got[1].equal(want[1]), launch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = topk_select_gpu(scores, k, valid, keep_last=1)
    scores.copy_(scores.flip(-1)), valid.clamp_(max=size // 2 + 1)
    graph.replay()
    want = naive.topk_select(scores, k, valid, keep_last=1)
    assert captured[0].equal(want[0]) and captured[1].equal(want[1])
