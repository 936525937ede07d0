"""Unseen pages against sets, merged windows against softmax over a union, and Triton against plain torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

from kernel_inputs import DEVICE, on_device, poison_past, rotation
from longdecode.kernels.page_minmax.naive import PageBounds, build_page_minmax, rebuild_page_minmax
from longdecode.kernels.page_minmax.rebuild_gpu import rebuild_page_minmax_gpu
from longdecode.kernels.window_correction import naive
from longdecode.kernels.window_correction.gpu import attend_window_gpu
from longdecode.kernels.window_correction.gpu_append import append_window_gpu
from longdecode.kernels.window_correction.gpu_pages import unseen_pages_gpu

BATCH, HEADS, PAGES = 2, 3, 300


def lists(rng: Generator, width: int) -> tuple[Tensor, Tensor]:
    """Distinct pages in ascending order, of ragged number, junk past it."""
    indices = torch.rand(BATCH, HEADS, PAGES, generator=rng).argsort(dim=-1)[..., :width].sort(dim=-1).values
    counts = torch.randint(1, width + 1, (BATCH, HEADS), generator=rng)
    past = torch.arange(width) >= counts[..., None]
    return torch.where(past, torch.randint(0, PAGES, indices.shape, generator=rng), indices), counts


@pytest.mark.parametrize("window", [2, 5])
def test_unseen_pages_are_the_set_difference(rng: Generator, window: int) -> None:
    loaded = torch.full((BATCH, HEADS, PAGES), -1, dtype=torch.int32)
    on_device, first = loaded.clone().to(DEVICE), torch.tensor([40, 7])
    history: list[list[list[set[int]]]] = []
    for step in range(12):
        indices, counts = lists(rng, 270 if step % 4 == 0 else 30)
        positions = first[:, None] + step + torch.arange(1 - window, 1)
        got = naive.unseen_pages(loaded, indices, counts, positions)
        fast = unseen_pages_gpu(on_device, *(x.to(DEVICE) for x in (indices, counts, positions)))
        assert fast.cpu().equal(got) and on_device.cpu().equal(loaded)
        now = [[set(indices[b, h, : counts[b, h]].tolist()) for h in range(HEADS)] for b in range(BATCH)]
        for b in range(BATCH):
            for h in range(HEADS):
                for t in range(window):
                    since = step - window + 1 + t
                    if since < 0:
                        continue  # no token yet: its row is not read
                    seen = set().union(*(past[b][h] for past in history[since:])) if t < window - 1 else set()
                    entries = got[b, h, t].nonzero()[:, 0].tolist()
                    assert {int(indices[b, h, n]) for n in entries} == now[b][h] - seen
        history.append(now)


@pytest.mark.parametrize(("heads", "rows", "dim"), [(4, 2, 32), (3, 7, 48)])
def test_merging_is_attention_over_the_union(rng: Generator, heads: int, rows: int, dim: int) -> None:
    """Four steps; a row that kept nothing, one that reads nothing now, and one that has neither."""
    held: list[list[list[Tensor]]] = [[[] for _ in range(heads)] for _ in range(rows - 1)]
    kept, kept_lse = torch.zeros(1, heads, rows - 1, dim), torch.full((1, heads, rows - 1), -torch.inf)
    for step in range(4):
        out, lse = torch.zeros(1, heads, rows, dim), torch.full((1, heads, rows), -torch.inf)
        held.append([[] for _ in range(heads)])
        for t in range(rows):
            for h in range(heads):
                if t < rows - 1 and (step + t + h) % 3 == 0:
                    continue
                score, value = 4 * torch.randn(5, generator=rng), torch.randn(5, dim, generator=rng)
                held[t][h].append(torch.cat((score[:, None], value), dim=1).double())
                out[0, h, t], lse[0, h, t] = score.softmax(0) @ value, score.logsumexp(0)
        got = naive.merge_window(out, lse, kept, kept_lse)
        for t in range(rows):
            for h in range(heads):
                seen = torch.cat(held[t][h]) if held[t][h] else torch.zeros(1, dim + 1).double()
                want = seen[:, 0].softmax(0) @ seen[:, 1:]
                torch.testing.assert_close(got[0, h, t].double(), want, atol=1e-5, rtol=0)
        held.pop(0)


@pytest.mark.parametrize(("width", "page"), [(2, 16), (20, 16), (3, 8)])
def test_touched_pages_get_the_bounds_of_what_is_stored(rng: Generator, width: int, page: int) -> None:
    size = 53
    k = torch.randn(3, 2, size, 32, generator=rng)
    lengths = torch.tensor([53, width - 1, 33])
    starts = lengths - width
    poison_past(lengths, k)
    bounds = build_page_minmax(k, lengths, page)
    for b, (start, n) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        k[b, :, max(0, start) : n] *= 0.1
    want = build_page_minmax(k, lengths, page)
    fast = type(bounds)(*(part.clone().to(DEVICE) for part in bounds))
    rebuild_page_minmax_gpu(fast, *(x.to(DEVICE) for x in (k, lengths, starts)), width, page)
    rebuild_page_minmax(bounds, k, lengths, starts, width, page)
    for plain, quick, right in zip(bounds, fast, want, strict=True):
        assert plain.equal(right) and quick.cpu().equal(right)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "window", "dim", "page", "width", "dtype"),
    [
        (4, 2, 2, 32, 1, 150, torch.float32),
        (6, 2, 7, 40, 8, 9, torch.bfloat16),  # 21 rows in a tile of 32
        (3, 1, 26, 32, 12, 9, torch.float16),  # 78 rows in two tiles, pages across tiles
    ],
)
def test_a_window_attends_as_in_plain_torch(
    rng: Generator, heads: int, kv_heads: int, window: int, dim: int, page: int, width: int, dtype: torch.dtype
) -> None:
    """Four steps over one state: ragged lists, rows that are no tokens yet, a row of the batch shorter than a page."""
    first = torch.tensor([150, page // 2])
    kept, kept_lse = torch.zeros(2, heads, window - 1, dim, dtype=dtype), torch.zeros(2, heads, window - 1)
    kept_lse -= torch.inf
    loaded = torch.full((2, kv_heads, -(-160 // page)), -1, dtype=torch.int32)
    read = torch.zeros(2, dtype=torch.int64)
    kept_there, lse_there, loaded_there, read_there = on_device(kept, kept_lse, loaded, read)
    for step in range(4):
        positions = first[:, None] + step + torch.arange(1 - window, 1)
        limits = torch.where(positions >= first[:, None], positions + 1, 0)
        k, v = (torch.randn(2, kv_heads, 160, dim, generator=rng).to(dtype) for _ in range(2))
        poison_past(positions[:, -1] + 1, k, v)
        used = positions[:, -1] // page + 1
        pages = [[torch.randperm(int(n), generator=rng)[:width].sort().values for _ in range(kv_heads)] for n in used]
        counts = torch.tensor([[len(some) for some in row] for row in pages])
        indices = torch.full((2, kv_heads, width), 10**6)
        for b, row in enumerate(pages):
            for h, some in enumerate(row):
                indices[b, h, : len(some)] = some
        q = torch.randn(2, window, heads, dim, generator=rng).to(dtype).transpose(1, 2)
        fixed = (q, k, v, indices, counts)
        state = (loaded, positions, limits, kept, kept_lse)
        want = naive.attend_window(*fixed, *state, block_size=page, kv_tokens_read=read)
        q, k, v, *_ = given = on_device(*fixed)
        state_there = (loaded_there, *on_device(positions, limits), kept_there, lse_there)
        got = attend_window_gpu(*given, *state_there, block_size=page, kv_tokens_read=read_there)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(got.cpu(), want, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(kept_there.cpu(), kept, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(lse_there.cpu(), kept_lse, atol=tolerance, rtol=tolerance)
        assert loaded_there.cpu().equal(loaded) and read_there.cpu().equal(read)
    assert bool((kept_lse > -torch.inf).any()) and bool((kept != 0).any())


@pytest.mark.parametrize(
    ("window", "dim", "page", "normed", "dtype"),
    [(2, 32, 16, False, torch.bfloat16), (7, 20, 16, True, torch.float32), (20, 32, 12, False, torch.float16)],
)
def test_a_window_is_stored_and_bounded_as_in_plain_torch(
    rng: Generator, window: int, dim: int, page: int, normed: bool, dtype: torch.dtype
) -> None:
    """Spans across pages, rows with tokens that are not stored, with none that is, and with fewer than the window."""
    batch, heads, kv_heads, size = 4, 3, 2, 61
    lengths = torch.tensor([size, 50, page + 1, window - 1])
    slots = lengths[:, None] - window + torch.arange(window)
    slots[1, : window // 2] = -1
    slots[2] = -1
    fused = torch.randn(batch, window, heads + 2 * kv_heads, dim, generator=rng).to(dtype)
    _, cos, sin = rotation(rng, batch, window, dim)
    norms = {"q_norm": None, "k_norm": None}
    if normed:
        norms = {name: torch.randn(dim, generator=rng).to(dtype) for name in norms}
    caches = [torch.randn(batch, kv_heads, size, dim, generator=rng).to(dtype) for _ in range(2)]
    bounds = build_page_minmax(caches[0], lengths - 1, page)
    poison_past(lengths, *caches)
    there, bounds_there = on_device(*caches), type(bounds)(*on_device(*bounds))

    def append(op: Callable[..., Tensor], at: torch.device, caches: list[Tensor], bounds: PageBounds) -> Tensor:
        q, k, v = fused.to(at).transpose(1, 2).split((heads, kv_heads, kv_heads), dim=1)
        weights = {name: None if weight is None else weight.to(at) for name, weight in norms.items()}
        return op(
            q, k, v, cos.to(at), sin.to(at), *caches, slots.to(at), bounds, page, lengths.to(at), eps=1e-5, **weights
        )

    want = append(naive.append_window, torch.device("cpu"), caches, bounds)
    got = append(append_window_gpu, DEVICE, there, bounds_there)
    tolerance = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    for plain, fast in zip((want, *caches, *bounds), (got, *there, *bounds_there), strict=True):
        torch.testing.assert_close(fast.cpu(), plain, atol=tolerance, rtol=tolerance, equal_nan=True)
    # Bounds are those of the stored keys to the bit, whatever rounding made of these.
    right = build_page_minmax(there[0].cpu(), lengths, page)
    used = (torch.arange(right.minimum.shape[2]) * page < lengths[:, None])[:, None].expand(-1, kv_heads, -1)
    for made, bound in zip(right, bounds_there, strict=True):
        assert made[used].equal(bound.cpu()[used])
