"""Dense attention of rows over a ragged cache, its weights, prefill and merging, against sums in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import kernel_inputs
from longdecode.kernels.attention_weights import naive as weights_naive
from longdecode.kernels.attention_weights.gpu import attention_weights_gpu
from longdecode.kernels.decode_attention import decode_attention, naive
from longdecode.kernels.decode_attention.gpu import decode_attention_gpu
from longdecode.kernels.decode_attention.launch import DecodeLaunch
from longdecode.kernels.merge_attention import merge_attention
from longdecode.kernels.prefill_attention import prefill_attention
from longdecode.kernels.split_kv import COUNTERS, arrival_counters

PATHS: dict[str, tuple[Callable[..., Any], torch.device]] = {
    "naive": (naive.decode_attention, kernel_inputs.CPU),
    "entrance": (decode_attention, kernel_inputs.DEVICE),
    "triton": (decode_attention_gpu, kernel_inputs.DEVICE),
}
BY_PATH = pytest.mark.parametrize("path", PATHS)
# batch, KV heads, group, head dimension, capacity, rows
SHAPES = [
    (1, 1, 1, 32, 1, 1), (2, 2, 3, 64, 15, 2), (2, 1, 4, 128, 63, 3), (2, 2, 4, 32, 1000, 8), (1, 1, 16, 48, 130, 41),
    (1, 1, 2, 32, 2047, 41),
]  # fmt: skip


def seen_by(length: int, rows: int, row: int, mask: Tensor | None) -> Sequence[int]:
    """Slots that a row of the block reads."""
    first = length - rows
    allowed = [u for u in range(rows) if (u <= row if mask is None else bool(mask[row, u]))]
    return [*range(first), *(first + u for u in allowed if first + u >= 0)] if length else []


def check_dense(
    path: str, cache: kernel_inputs.Cache, *, mask: Tensor | None = None, scale: float | None = None, **how: Any
) -> None:
    """Outputs, log-sum-exp and tokens read, at the ends and in the middle of heads and rows."""
    op, where = PATHS[path]
    q, k, v, lengths = cache
    (batch, heads, rows, _), kv, tolerance = q.shape, k.shape[1], kernel_inputs.ATTENTION_TOLERANCE[q.dtype]
    read, moved = torch.arange(batch, device=where), [x.to(where) for x in cache]
    on_mask = None if mask is None else mask.to(where)
    out, lse = op(*moved, mask=on_mask, scale=scale, kv_tokens_read=read, **how)
    assert out.dtype == q.dtype and out.shape == q.shape and lse.shape == q.shape[:-1]
    each = lengths.view(batch, -1).expand(batch, kv)
    assert read.cpu().equal(torch.arange(batch) + each.sum(1))
    for b in range(batch):
        for h in {0, heads // 2, heads - 1}:
            head = h * kv // heads
            for t in {0, rows // 2, max(0, rows - 2), rows - 1}:
                seen = seen_by(int(each[b, head]), rows, t, mask)
                want, want_lse = kernel_inputs.attend(q[b, h, t], k[b, head], v[b, head], seen, scale)
                kernel_inputs.close(out[b, h, t], want, tolerance)
                kernel_inputs.close(lse[b, h, t], want_lse, 1e-4)


@pytest.mark.parametrize("masked", [False, True], ids=["causal", "tree"])
@pytest.mark.parametrize("per_head", [False, True], ids=["row", "head"])
@pytest.mark.parametrize("dtype", kernel_inputs.ATTENTION_TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("path", ["naive", "entrance"])
def test_rows_read_what_they_may(
    rng: Generator, path: str, shape: tuple[int, ...], dtype: torch.dtype, per_head: bool, masked: bool
) -> None:
    """Causal at the default scale, trees at another; a head may hold nothing, or no more than the block."""
    rows = shape[-1]
    fewest = 0 if per_head and rows == 1 else rows
    cache = kernel_inputs.ragged(rng, *shape, dtype=dtype, per_head=per_head, fewest=fewest)
    mask, scale = (kernel_inputs.draft_tree(rng, rows), 0.3) if masked else (None, None)
    check_dense(path, cache, mask=mask, scale=scale)


ONE_ROW = [
    (2, 2, 2, 64, 15, 1), (3, 1, 4, 128, 63, 1), (2, 2, 8, 32, 257, 1), (1, 1, 1, 128, 257, 1), (2, 1, 7, 80, 130, 1),
    (1, 2, 16, 20, 200, 1),
]  # fmt: skip
# The rule's choice at odd sizes; fused or separate merge, splits without a tile, tiles that end in the block, two tiles
# of rows.
TRITON = [
    *((shape, dtype, None) for shape in ONE_ROW for dtype in kernel_inputs.HALF_AND_SINGLE),
    ((1, 1, 1, 32, 1, 1), torch.float32, None),
    ((2, 2, 2, 32, 40, 1), torch.float32, None),
    ((2, 2, 3, 64, 15, 2), torch.float32, None),
    ((1, 1, 4, 128, 63, 3), torch.bfloat16, None),
    ((1, 2, 4, 32, 70, 8), torch.float16, DecodeLaunch(32, 32, 4, 3, 3, fused_merge=False)),
    ((2, 1, 4, 32, 90, 25), torch.float32, DecodeLaunch(64, 32, 4, 2, 2)),
    ((1, 1, 4, 48, 80, 41), torch.float32, DecodeLaunch(128, 16, 8, 2, 2, fused_merge=False)),
    ((1, 1, 2, 32, 60, 5), torch.float32, DecodeLaunch(16, 16, 4, 2, 9)),
    ((1, 1, 16, 32, 40, 4), torch.float32, DecodeLaunch(16, 16, 4, 2, 1, fused_merge=False)),
]


@pytest.mark.parametrize(("number", "shape", "dtype", "launch"), [(n, *case) for n, case in enumerate(TRITON)], ids=str)
def test_rows_in_triton(
    rng: Generator, number: int, shape: tuple[int, ...], dtype: torch.dtype, launch: DecodeLaunch | None
) -> None:
    """With a tree, lengths by head, of which one is smaller than the block; the rule's choices in turn."""
    rows = shape[-1]
    for masked in (False, True) if rows > 1 else (number % 2 == 0,):
        fewest = min(2, rows - 1) if masked else rows
        cache = kernel_inputs.ragged(rng, *shape, dtype=dtype, per_head=masked, fewest=fewest)
        check_dense("triton", cache, mask=kernel_inputs.draft_tree(rng, rows) if masked else None, launch=launch)


@pytest.mark.parametrize("fused", [False, True])
def test_launches_leave_no_trace_for_the_next(rng: Generator, fused: bool) -> None:
    """Counters are zero again after each launch, whatever the number of lists and parts of the one before."""
    for splits in (3, 2):
        cache, launch = kernel_inputs.ragged(rng, 2, 2, 1, 16, 70), DecodeLaunch(16, 16, 4, 2, splits, fused)
        check_dense("triton", cache, launch=launch)
    assert not arrival_counters(1, kernel_inputs.DEVICE).any()
    with pytest.raises(ValueError, match=f"has {COUNTERS} arrival counters, {COUNTERS + 1} are needed"):
        arrival_counters(COUNTERS + 1, kernel_inputs.DEVICE)


@BY_PATH
def test_any_strides(rng: Generator, path: str) -> None:
    q, k, v, lengths = kernel_inputs.ragged(rng, 2, 2, 2, 32, 40)
    apart = q.transpose(1, 2).contiguous().transpose(1, 2), k.transpose(2, 3).contiguous().transpose(2, 3)
    check_dense(path, (*apart, v.transpose(1, 2).contiguous().transpose(1, 2), lengths))


@BY_PATH
def test_a_nan_within_the_length_reaches_the_output(rng: Generator, path: str) -> None:
    op, where = PATHS[path]
    q, k, v, lengths = kernel_inputs.ragged(rng, 2, 1, 2, 32, 20, fewest=20)
    k[0, 0, 3] = kernel_inputs.NAN
    out, lse = op(*(x.to(where) for x in (q, k, v, lengths)))
    assert out[0].isnan().all() and lse[0].isnan().all() and out[1].isfinite().all()


@pytest.mark.parametrize("lengths", [[[9, 9], [9, 0]], [9, 0]], ids=["head", "row"])
@BY_PATH
def test_nothing_stored_gives_zeros(rng: Generator, path: str, lengths: list[Any]) -> None:
    op, where = PATHS[path]
    q, k, v, _ = kernel_inputs.ragged(rng, 2, 2, 2, 32, 9, 3, fewest=9)
    held = torch.tensor(lengths)
    kernel_inputs.poison_past(held, k, v)
    out, lse = op(*(x.to(where) for x in (q, k, v, held)))
    assert out[1, 2:].eq(0).all() and lse[1, 2:].eq(-kernel_inputs.INFINITY).all() and out[0].isfinite().all()


def test_what_cannot_be_meant_is_refused(rng: Generator) -> None:
    q, k, v, lengths = kernel_inputs.ragged(rng, 1, 1, 2, 32, 9, 3)
    for op, _ in PATHS.values():
        for mask in (torch.ones(2, 2, dtype=torch.bool), torch.ones(3, 3)):
            with pytest.raises(ValueError, match="mask"):
                op(q, k, v, lengths, mask=mask)
    for scale in (0.0, -1.0):
        with pytest.raises(ValueError, match="scale"):
            decode_attention_gpu(q, k, v, lengths, scale=scale)
    with pytest.raises(ValueError, match="one dtype"):
        decode_attention_gpu(q.half(), k, v, lengths)
    with pytest.raises(ValueError, match=r"5\.\.9"):
        prefill_attention(torch.randn(1, 1, 4, 32), *[torch.randn(1, 1, 8, 32)] * 2, 5)


@pytest.mark.parametrize("group", ["sum", "mean", "max"])
@pytest.mark.parametrize(("per_head", "given"), [(False, True), (True, False)], ids=["row, lse", "head"])
@pytest.mark.parametrize("shape", [*SHAPES[:3], (1, 2, 3, 32, 150, 8), (1, 1, 4, 48, 70, 41)], ids=str)
@pytest.mark.parametrize("path", ["naive", "triton"])
def test_weights(rng: Generator, path: str, shape: tuple[int, ...], per_head: bool, given: bool, group: str) -> None:
    batch, kv, heads, dim, size, rows = shape
    q, k, v, lengths = kernel_inputs.ragged(rng, *shape, per_head=per_head, fewest=rows)
    mask = kernel_inputs.draft_tree(rng, rows) if per_head else None
    lse = naive.decode_attention(q, k, v, lengths, mask=mask)[1] if given else None
    weigh = partial(weights_naive.attention_weights, q, k, lengths, mask=mask, lse=lse)
    if path == "triton":
        on_q, on_k, on_lengths, on_mask, on_lse = kernel_inputs.on_device(q, k, lengths, mask, lse)
        weigh = partial(attention_weights_gpu, on_q, on_k, on_lengths, mask=on_mask, lse=on_lse)
    got = weigh(group=group)
    assert got.shape == (batch, kv, size)
    each = lengths.view(batch, -1).expand(batch, kv)
    for b in range(batch):
        for h in range(kv):
            summed = torch.zeros(heads, size, dtype=torch.float64)
            for t in range(rows):
                slots = seen_by(int(each[b, h]), rows, t, mask)
                logits = q[b, h * heads : (h + 1) * heads, t].double() @ k[b, h, slots].double().T * dim**-0.5
                summed[:, slots] += logits.softmax(-1)
            want = {"sum": summed.sum(0), "mean": summed.mean(0), "max": summed.amax(0)}[group]
            torch.testing.assert_close(got[b, h].cpu().double(), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", kernel_inputs.HALF_AND_SINGLE, ids=str)
@pytest.mark.parametrize(("start", "rows", "spare"), [(0, 1, 0), (0, 15, 3), (7, 8, 2), (60, 3, 5), (200, 40, 0)])
@pytest.mark.parametrize("group", [1, 2, 8])
def test_prefill(rng: Generator, start: int, rows: int, spare: int, group: int, dtype: torch.dtype) -> None:
    q, k, v, _ = kernel_inputs.ragged(
        rng, 2, 2, group, 32, start + rows + spare, rows, dtype=dtype, fewest=start + rows + spare
    )
    kernel_inputs.poison_past(torch.tensor([start + rows] * 2), k, v)
    out = prefill_attention(*(x.to(kernel_inputs.DEVICE) for x in (q, k, v)), start)
    for t in {0, rows // 2, rows - 1}:
        for h in {0, 2 * group - 1}:
            want, _ = kernel_inputs.attend(q[1, h, t], k[1, h // group], v[1, h // group], range(start + t + 1))
            kernel_inputs.close(out[1, h, t], want, kernel_inputs.ATTENTION_TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", kernel_inputs.HALF_AND_SINGLE, ids=str)
@pytest.mark.parametrize("cut", [0, 1, 15, 40])
def test_merging_two_halves_equals_attention_over_both(rng: Generator, cut: int, dtype: torch.dtype) -> None:
    q, k, v, _ = kernel_inputs.ragged(rng, 2, 2, 2, 32, 40, dtype=dtype, fewest=40, sharpness=1.0)
    parts = [decode_attention(q, k[:, :, part], v[:, :, part], torch.tensor([size] * 2))
             for part, size in ((slice(cut), cut), (slice(cut, 40), 40 - cut))]  # fmt: skip
    out, lse = merge_attention(*parts[0], *parts[1])
    for b, h in ((0, 0), (1, 3)):
        want, want_lse = kernel_inputs.attend(q[b, h, 0], k[b, h // 2], v[b, h // 2], range(40))
        kernel_inputs.close(out[b, h, 0], want, kernel_inputs.ATTENTION_TOLERANCE[dtype])
        kernel_inputs.close(lse[b, h, 0], want_lse, 1e-4)
    nothing = torch.zeros_like(out), torch.full_like(lse, -kernel_inputs.INFINITY)
    assert merge_attention(*nothing, *nothing)[0].eq(0).all()
