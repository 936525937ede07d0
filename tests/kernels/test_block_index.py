"""Pooled keys, importances and block scores: appended equals built, Triton equals torch, both equal plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator

from kernel_inputs import DEVICE, NAN
from longdecode.kernels import block_score, importance, pooled_keys
from longdecode.kernels.block_score.gpu import block_scores_gpu
from longdecode.kernels.block_score.naive import block_scores, normaliser
from longdecode.kernels.importance.gpu import append_importance_gpu
from longdecode.kernels.pooled_keys.gpu import append_pooled_key_gpu
from longdecode.kernels.pooled_keys.naive import Pooling
from longdecode.kernels.sparse_prefill_attention import sparse_prefill_attention

SHAPES = [(64, Pooling(32, 16)), (16, Pooling(8, 4)), (8, Pooling(8, 2)), (4, Pooling(2, 1)), (12, Pooling(6, 6))]


@pytest.mark.parametrize("fast", [False, True], ids=["torch", "triton"])
@pytest.mark.parametrize(("block", "pooling"), SHAPES)
def test_appending_equals_building(rng: Generator, fast: bool, block: int, pooling: Pooling) -> None:
    """Rows of lengths before, at and after a window's end; the whole text at once is the reference."""
    heads, dim, size, steps = 2, 24, 280, min(block, 40) + 3
    k, v = (torch.randn(3, heads, size, dim, generator=rng) for _ in range(2))
    starts = torch.tensor([1, 3 * block - 1, size - steps - 1])
    form = importance.FORMS[SHAPES.index((block, pooling)) % 3]
    delta, scale = torch.randn(heads, heads * dim, generator=rng), torch.tensor([0.2, -0.3])
    weights = importance.ImportanceWeights(delta, scale, form)
    tokens = importance.token_importance(v, weights)
    poisoned = torch.where(torch.arange(k.shape[2])[:, None] >= starts[:, None, None, None], NAN, k)
    index = pooled_keys.build_pooled_keys(poisoned, starts, pooling, size)
    known = tokens.contiguous().clone()
    known[torch.arange(size).expand(3, heads, size) >= starts.view(3, 1, 1)] = NAN
    kept = importance.Importance(known, importance.block_importance(known, starts, pooling, block))
    index = pooled_keys.PooledKeys(*(x.to(DEVICE) for x in index))
    kept = importance.Importance(*(x.to(DEVICE) for x in kept))
    append_key = append_pooled_key_gpu if fast else pooled_keys.naive.append_pooled_key
    append_value = append_importance_gpu if fast else importance.naive.append_importance
    weights = importance.ImportanceWeights(delta.to(DEVICE), scale.to(DEVICE), form)
    for step in range(steps):
        slots = (starts + step).to(DEVICE)
        newest = v.gather(2, (starts + step).view(3, 1, 1, 1).expand(3, heads, 1, dim)).to(DEVICE)
        append_key(index, k.to(DEVICE), slots, slots + 1, pooling)
        append_value(kept, newest, weights, slots + 1, pooling, block)
    for row, length in enumerate((starts + steps).tolist()):
        firsts = range(0, length - pooling.window + 1, pooling.stride)
        for place, first in enumerate(firsts):
            span = slice(first, first + pooling.window)
            torch.testing.assert_close(index.means[row, :, place].cpu(), k[row, :, span].mean(1), atol=2e-6, rtol=0)
        torch.testing.assert_close(kept.tokens[row, :, :length].cpu(), tokens[row, :, :length], atol=2e-5, rtol=2e-6)
        for number in range(-(-length // block)):
            touching = [f for f in firsts if f < (number + 1) * block and f + pooling.window > number * block]
            for head in range(heads):
                means = [float(tokens[row, head, f : f + pooling.window].mean()) for f in touching]
                want = max(means, default=-math.inf)
                assert float(kept.blocks[row, head, number]) == pytest.approx(want, abs=2e-5, rel=2e-6)


@pytest.mark.parametrize(("block", "pooling"), SHAPES)
def test_block_scores(rng: Generator, block: int, pooling: Pooling) -> None:
    """Both paths against loops; a row without a window scores 0, and junk past the windows is never looked at."""
    size, kv_heads, group = 300, 2, 3
    lengths = torch.tensor([size, block + 1, pooling.window - 1])
    windows, blocks = pooling.complete(lengths), -(-lengths // block)
    logits = 3 * torch.randn(3, kv_heads * group, pooling.room(size), generator=rng)
    logits = torch.where(torch.arange(logits.shape[2]) < windows[:, None, None], logits, -math.inf)
    lse, room = normaliser(logits, windows, pooling, "exact"), -(-size // block)
    plain = block_scores(logits, lse, blocks, kv_heads, pooling, block, room)
    given = (logits.to(DEVICE), lse.to(DEVICE), blocks.to(DEVICE), kv_heads, pooling, block, room)
    torch.testing.assert_close(block_scores_gpu(*given).cpu(), plain, atol=1e-6, rtol=0)
    for row in range(3):
        for head in range(kv_heads):
            mine = logits[row, head * group : (head + 1) * group, : int(windows[row])].softmax(-1).sum(0).tolist()
            for entry in range(room):
                number = int(blocks[row]) - 1 - entry
                inside = range(number * block, number * block + block)
                starts = range(0, len(mine) * pooling.stride, pooling.stride)
                touching = [bool({*inside} & {*range(at, at + pooling.window)}) for at in starts]
                found = [value for value, touches in zip(mine, touching, strict=True) if touches]
                want = max(found, default=0.0) if number >= 0 else 0.0
                assert float(plain[row, head, entry]) == pytest.approx(want, abs=1e-6)


def test_coarse_normaliser(rng: Generator) -> None:
    """It is that of keys pooled over four windows at four times the stride; short rows keep the exact one."""
    pooling, dim = Pooling(8, 4), 16
    q, k = torch.randn(2, 1, dim, generator=rng), torch.randn(2, 1, 100, dim, generator=rng)
    windows = pooling.complete(torch.tensor([100, 31]))
    fine = (pooled_keys.pool_means(k, pooling, pooling.room(100)) @ q[..., None])[..., 0]
    fine = torch.where(torch.arange(fine.shape[-1]) < windows[:, None, None], fine, -math.inf)
    got = block_score.normaliser(fine, windows, pooling, "coarse")
    coarse = torch.stack([k[0, 0, at : at + 32].mean(0) @ q[0, 0] for at in range(0, 100 - 31, 16)])
    assert float(got[0, 0]) == pytest.approx(float(coarse.logsumexp(0)), abs=1e-5)
    assert float(got[1, 0]) == pytest.approx(float(fine[1, 0, : int(windows[1])].logsumexp(0)), abs=1e-5)


@pytest.mark.parametrize("block", [1, 8])
def test_prefill_reads_each_rows_own_blocks(rng: Generator, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Through torch and through the kernel, against masked softmax; tiles are cut short and rows lie apart."""
    rows, heads, kv_heads, queries, start, dim = 2, 4, 2, 21, 30, 16
    stop, q = start + queries, torch.randn(rows, heads, queries, dim, generator=rng)
    k, v = (torch.randn(rows, kv_heads, stop + 9, dim, generator=rng) for _ in range(2))
    k[:, :, stop:], v[:, :, stop:] = NAN, NAN
    bias = torch.randn(rows, kv_heads, stop + 9, generator=rng)
    read = torch.rand(rows, kv_heads, queries, -(-stop // block), generator=rng) < 0.3
    read[..., 0] = True
    got = sparse_prefill_attention(q, k, v, start, read, block, bias)
    seen = read.repeat_interleave(block, dim=3)[..., :stop]
    seen = seen & (torch.arange(stop) <= torch.arange(start, stop)[:, None])
    logits = torch.einsum("rhgtd,rhsd->rhgts", q.unflatten(1, (kv_heads, -1)), k[:, :, :stop]) * dim**-0.5
    logits = (logits + bias[:, :, None, None, :stop]).masked_fill(~seen[:, :, None], -math.inf)
    want = (logits.softmax(-1) @ v[:, :, None, :stop]).flatten(1, 2)
    torch.testing.assert_close(got, want, atol=2e-6, rtol=0)
    monkeypatch.setattr("longdecode.kernels.dispatch.kernel_path", lambda *given: "triton")
    fast = sparse_prefill_attention(*(x.to(DEVICE) for x in (q, k, v)), start, read.to(DEVICE), block, bias.to(DEVICE))
    torch.testing.assert_close(fast.cpu(), want, atol=2e-5, rtol=0)
