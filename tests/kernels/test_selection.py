"""Page bounds, page and token scores, group reduction and top-k against loops in float64."""

from __future__ import annotations

import math

import pytest
import torch

from longdecode.kernels.group_reduce import GROUP_REDUCTIONS, group_reduce
from longdecode.kernels.page_minmax import PageBounds, build_page_minmax
from longdecode.kernels.page_minmax.naive import update_page_minmax
from longdecode.kernels.page_score import page_score
from longdecode.kernels.token_score import token_logits, token_probabilities
from longdecode.kernels.topk_select import topk_select

NAN = float("nan")
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def poisoned_keys(rng: torch.Generator, batch: int, kv: int, size: int, dim: int, dtype: torch.dtype):
    k = torch.randn(batch, kv, size, dim, generator=rng).to(dtype)
    lengths = torch.randint(1, size + 1, (batch,), generator=rng)
    lengths[0] = size
    for b, n in enumerate(lengths.tolist()):
        k[b, :, n:] = NAN
    return k, lengths


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 15, 63, 1000])
@pytest.mark.parametrize("page", [4, 16])
def test_build_page_minmax(rng: torch.Generator, size: int, page: int, dtype: torch.dtype) -> None:
    k, lengths = poisoned_keys(rng, 3, 2, size, 32, dtype)
    bounds = build_page_minmax(k, lengths, page)
    pages = math.ceil(size / page)
    assert bounds.minimum.shape == bounds.maximum.shape == (3, 2, pages, 32) and bounds.minimum.dtype == dtype
    for b, n in enumerate(lengths.tolist()):
        for j in range(pages):
            inside = k[b, :, j * page : min((j + 1) * page, n)]
            if inside.shape[1] == 0:
                assert bounds.minimum[b, :, j].eq(0).all() and bounds.maximum[b, :, j].eq(0).all()
                continue
            assert bounds.minimum[b, :, j].equal(inside.min(dim=1).values)
            assert bounds.maximum[b, :, j].equal(inside.max(dim=1).values)


def test_appending_equals_building_anew(rng: torch.Generator) -> None:
    """Rows of different lengths grow across page borders; pages not yet begun hold NaN."""
    size, page = 70, 16
    k = torch.randn(3, 2, size, 32, generator=rng)
    lengths = torch.tensor([1, 16, 30])
    bounds = build_page_minmax(k, lengths, page)
    for b, n in enumerate(lengths.tolist()):
        bounds.minimum[b, :, math.ceil(n / page) :] = NAN
        bounds.maximum[b, :, math.ceil(n / page) :] = NAN
    for _ in range(40):
        new = k.gather(2, lengths[:, None, None, None].expand(3, 2, 1, 32))
        update_page_minmax(bounds, new, lengths[:, None, None].expand(3, 2, 1), page)
        lengths = lengths + 1
        want = build_page_minmax(k, lengths, page)
        for b, n in enumerate(lengths.tolist()):
            used = math.ceil(n / page)
            assert bounds.minimum[b, :, :used].equal(want.minimum[b, :, :used])
            assert bounds.maximum[b, :, :used].equal(want.maximum[b, :, :used])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [1, 2, 7, 16])
@pytest.mark.parametrize("how", [None, *GROUP_REDUCTIONS])
def test_page_score(rng: torch.Generator, group: int, how: str | None, dtype: torch.dtype) -> None:
    kv, pages, dim = 2, 9, 32
    q = torch.randn(2, kv * group, 1, dim, generator=rng).to(dtype)
    low = torch.randn(2, kv, pages, dim, generator=rng)
    bounds = PageBounds(low.to(dtype), (low + torch.rand(low.shape, generator=rng)).to(dtype))
    used = torch.tensor([9, 4])
    bounds.minimum[1, :, 4:] = NAN
    bounds.maximum[1, :, 4:] = NAN
    got = page_score(q, bounds, used, group=how)
    assert got.dtype == torch.float32 and got.shape == (2, kv if how else kv * group, pages)
    for b in range(2):
        assert got[b, :, int(used[b]) :].eq(float("-inf")).all()
        for j in range(int(used[b])):
            for c in range(kv):
                heads = []
                for h in range(c * group, (c + 1) * group):
                    bound = torch.maximum(
                        q[b, h, 0].double() * bounds.minimum[b, c, j].double(),
                        q[b, h, 0].double() * bounds.maximum[b, c, j].double(),
                    )
                    heads.append(bound.sum().item())
                if how is None:
                    assert got[b, c * group : (c + 1) * group, j].tolist() == pytest.approx(heads, abs=1e-3)
                else:
                    want = {"max": max(heads), "sum": sum(heads), "mean": sum(heads) / group}[how]
                    assert got[b, c, j].item() == pytest.approx(want, abs=1e-3)


def test_page_score_bounds_every_key(rng: torch.Generator) -> None:
    k, lengths = poisoned_keys(rng, 2, 2, 50, 32, torch.float32)
    q = torch.randn(2, 4, 1, 32, generator=rng)
    scores = page_score(q, build_page_minmax(k, lengths, 16), -(-lengths // 16))
    logits = token_logits(q, k, lengths, scale=1.0)
    for i in range(50):
        visible = logits[:, :, i].isfinite()
        assert (logits[:, :, i] <= scores[:, :, i // 16] + 1e-4)[visible].all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 15, 63, 1000])
@pytest.mark.parametrize("group", [1, 4])
def test_token_scores(rng: torch.Generator, size: int, group: int, dtype: torch.dtype) -> None:
    k, lengths = poisoned_keys(rng, 3, 2, size, 64, dtype)
    q = torch.randn(3, 2 * group, 1, 64, generator=rng).to(dtype)
    logits, probabilities = token_logits(q, k, lengths), token_probabilities(q, k, lengths)
    for b, n in enumerate(lengths.tolist()):
        assert logits[b, :, n:].eq(float("-inf")).all() and probabilities[b, :, n:].eq(0).all()
        for h in range(2 * group):
            want = k[b, h // group, :n].double() @ q[b, h, 0].double() / 8
            torch.testing.assert_close(logits[b, h, :n].double(), want, atol=1e-4, rtol=1e-4)
            weights = (want - want.max()).exp()
            torch.testing.assert_close(
                probabilities[b, h, :n].double(), weights / weights.sum(), atol=1e-5, rtol=1e-4
            )  # fmt: skip


def test_group_reduce_refuses_an_unknown_reduction() -> None:
    with pytest.raises(ValueError, match="median"):
        group_reduce(torch.zeros(1, 2, 3), 1, "median")


def brute_topk(row: list[float], k: int, valid: list[bool]) -> list[int]:
    ranked = sorted((i for i in range(len(row)) if valid[i]), key=lambda i: (-row[i], i))
    return sorted(ranked[:k])


@pytest.mark.parametrize("size", [1, 15, 63, 1000])
@pytest.mark.parametrize("k", [1, 8, 64])
@pytest.mark.parametrize("levels", [3, 10_000], ids=["ties", "distinct"])
def test_topk_select(rng: torch.Generator, size: int, k: int, levels: int) -> None:
    scores = torch.randint(0, levels, (3, 2, size), generator=rng).float()
    lengths = torch.randint(1, size + 1, (3,), generator=rng)
    lengths[0] = size
    for b, n in enumerate(lengths.tolist()):
        scores[b, :, n:] = NAN
    indices, counts = topk_select(scores, k, lengths)
    assert indices.shape == (3, 2, min(k, size)) and indices.dtype == torch.int64
    for b, n in enumerate(lengths.tolist()):
        for h in range(2):
            want = brute_topk(scores[b, h].tolist(), k, [i < n for i in range(size)])
            assert counts[b, h].item() == len(want)
            assert indices[b, h, : len(want)].tolist() == want
            assert indices[b, h, len(want) :].eq(0).all()


@pytest.mark.parametrize(("k", "first", "last"), [(4, 0, 1), (9, 4, 5), (20, 3, 2)])
@pytest.mark.parametrize("levels", [2, 10_000], ids=["ties", "distinct"])
def test_topk_select_keeps_its_ends(rng: torch.Generator, k: int, first: int, last: int, levels: int) -> None:
    """The best of what is left fill the rest; rows shorter than the ends are taken whole."""
    scores = torch.randint(0, levels, (4, 2, 40), generator=rng).float()
    scores[0, 0, 20] = float("inf")
    lengths = torch.tensor([40, 25, first + last - 1, 0])
    for b, n in enumerate(lengths.tolist()):
        scores[b, :, n:] = NAN
    indices, counts = topk_select(scores, k, lengths, keep_first=first, keep_last=last)
    for b, n in enumerate(lengths.tolist()):
        kept = [i < min(first, n) or n - last <= i < n for i in range(40)]
        for h in range(2):
            rest = [i < n and not kept[i] for i in range(40)]
            best = brute_topk(scores[b, h].tolist(), k - sum(kept), rest)
            want = sorted([i for i in range(40) if kept[i]] + best)
            assert indices[b, h, : counts[b, h]].tolist() == want
            assert indices[b, h, len(want) :].eq(0).all()


def test_topk_select_takes_infinite_scores_first() -> None:
    scores = torch.tensor([[[1.0, float("inf"), 3.0, float("-inf"), 2.0]]])
    indices, counts = topk_select(scores, 2, torch.tensor([5]))
    assert indices.tolist() == [[[1, 2]]] and counts.tolist() == [[2]]
    indices, counts = topk_select(scores, 5, torch.tensor([4]))
    assert indices.tolist() == [[[0, 1, 2, 3, 0]]] and counts.tolist() == [[4]]


def test_topk_select_does_not_depend_on_the_batch(rng: torch.Generator) -> None:
    scores = torch.randint(0, 5, (4, 2, 100), generator=rng).float()
    lengths = torch.tensor([100, 3, 57, 88])
    indices, counts = topk_select(scores, 16, lengths)
    for b in range(4):
        alone, count = topk_select(scores[b : b + 1], 16, lengths[b : b + 1])
        assert alone[0].equal(indices[b]) and count[0].equal(counts[b])


def test_topk_select_refuses_zero() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        topk_select(torch.zeros(1, 1, 4), 0, torch.tensor([4]))
    with pytest.raises(ValueError, match="k = 3"):
        topk_select(torch.zeros(1, 1, 4), 3, torch.tensor([4]), keep_first=2, keep_last=2)
