"""Unseen pages against sets, merged windows against softmax over a union, and both in Triton against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from longdecode.kernels.page_minmax import build_page_minmax
from longdecode.kernels.page_minmax.rebuild import rebuild_page_minmax
from longdecode.kernels.page_minmax.rebuild_gpu import rebuild_page_minmax_gpu
from longdecode.kernels.window_correction import naive
from longdecode.kernels.window_correction.gpu import merge_window_gpu, unseen_pages_gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, HEADS, PAGES = 2, 3, 300


def lists(rng: torch.Generator, width: int) -> tuple[Tensor, Tensor]:
    """Distinct pages in ascending order, of ragged number, junk past it."""
    indices = torch.rand(BATCH, HEADS, PAGES, generator=rng).argsort(dim=-1)[..., :width].sort(dim=-1).values
    counts = torch.randint(1, width + 1, (BATCH, HEADS), generator=rng)
    past = torch.arange(width) >= counts[..., None]
    return torch.where(past, torch.randint(0, PAGES, indices.shape, generator=rng), indices), counts


@pytest.mark.parametrize("window", [2, 5])
def test_unseen_pages_are_the_set_difference(rng: torch.Generator, window: int) -> None:
    loaded = torch.full((BATCH, HEADS, PAGES), -1, dtype=torch.int32)
    on_device = loaded.clone().to(DEVICE)
    first = torch.tensor([40, 7])
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
def test_merging_is_attention_over_the_union(rng: torch.Generator, heads: int, rows: int, dim: int) -> None:
    """Four steps; a row that kept nothing, one that reads nothing now, and one that has neither."""
    held: list[list[list[Tensor]]] = [[[] for _ in range(heads)] for _ in range(rows - 1)]
    kept, kept_lse = torch.zeros(1, heads, rows - 1, dim), torch.full((1, heads, rows - 1), -torch.inf)
    fast, fast_lse = kept.clone().to(DEVICE), kept_lse.clone().to(DEVICE)
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
        in_triton = merge_window_gpu(out.to(DEVICE), lse.to(DEVICE), fast, fast_lse)
        torch.testing.assert_close(in_triton.cpu(), got, atol=1e-5, rtol=0)
        torch.testing.assert_close(fast.cpu(), kept, atol=1e-5, rtol=0)
        torch.testing.assert_close(fast_lse.cpu(), kept_lse, atol=1e-5, rtol=0)
        for t in range(rows):
            for h in range(heads):
                seen = torch.cat(held[t][h]) if held[t][h] else torch.zeros(1, dim + 1).double()
                want = seen[:, 0].softmax(0) @ seen[:, 1:]
                torch.testing.assert_close(got[0, h, t].double(), want, atol=1e-5, rtol=0)
        held.pop(0)


@pytest.mark.parametrize(("width", "page"), [(2, 16), (20, 16), (3, 8)])
def test_touched_pages_get_the_bounds_of_what_is_stored(rng: torch.Generator, width: int, page: int) -> None:
    size = 53
    k = torch.randn(3, 2, size, 32, generator=rng)
    lengths = torch.tensor([53, width - 1, 33])
    starts = lengths - width
    for b, n in enumerate(lengths.tolist()):
        k[b, :, n:] = float("nan")
    bounds = build_page_minmax(k, lengths, page)
    for b, (start, n) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        k[b, :, max(0, start) : n] *= 0.1
    want = build_page_minmax(k, lengths, page)
    fast = type(bounds)(*(part.clone().to(DEVICE) for part in bounds))
    rebuild_page_minmax_gpu(fast, *(x.to(DEVICE) for x in (k, lengths, starts)), width, page)
    rebuild_page_minmax(bounds, k, lengths, starts, width, page)
    for plain, quick, right in zip(bounds, fast, want, strict=True):
        assert plain.equal(right) and quick.cpu().equal(right)
