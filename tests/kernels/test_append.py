"""The fused steps around attention against float64 and against the separate ops, in torch and in Triton."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from kernel_inputs import CPU, DEVICE, HALF_AND_SINGLE, NAN, captured, close, normed, rotated, rotation
from longdecode.kernels.page_minmax import PageBounds, build_page_minmax
from longdecode.kernels.rms_norm import add_rms_norm
from longdecode.kernels.rms_norm import naive as norm_naive
from longdecode.kernels.rms_norm.add_gpu import add_rms_norm_gpu
from longdecode.kernels.rope import naive as append_naive
from longdecode.kernels.rope import rope_append
from longdecode.kernels.rope.append_gpu import Launch, rope_append_gpu

TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}
EPS = 1e-2
PATHS = {"naive": (rope_append, CPU), "triton": (rope_append_gpu, DEVICE)}
BY_PATH = pytest.mark.parametrize("path", PATHS)


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 256), (3, 15), (16, 1, 1000)], ids=str)
@pytest.mark.parametrize("path", ["naive", "triton"])
def test_add_rms_norm(rng: Generator, path: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """The residual a view of a wider buffer; with a delta and without."""
    delta, wide = (torch.randn(*shape[:-1], shape[-1] + 5, generator=rng).to(dtype) for _ in range(2))
    delta, residual, weight = delta[..., 5:], wide[..., :-5], torch.randn(shape[-1], generator=rng).to(dtype)
    op, where = (add_rms_norm_gpu, DEVICE) if path == "triton" else (add_rms_norm, CPU)
    for given in (delta, None):
        got, total = op(None if given is None else given.to(where), residual.to(where), weight.to(where), EPS)
        want = residual.double() if given is None else residual.double() + given.double()
        assert got.dtype == total.dtype == dtype and got.shape == total.shape == residual.shape
        close(total, want, TOLERANCE[dtype])
        close(got, normed(want, weight, EPS), TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("delta", "weight"), [(None, torch.ones(4)), (torch.ones(2, 4), torch.ones(8)), (None, torch.ones(8).half())]
)
def test_add_rms_norm_refuses_what_does_not_fit(delta: Tensor | None, weight: Tensor) -> None:
    with pytest.raises(ValueError, match="cannot take"):
        add_rms_norm_gpu(delta, torch.ones(2, 8), weight, EPS)


def token(
    rng: Generator, batch: int, heads: int, kv: int, dim: int, dtype: torch.dtype, rows: int = 1
) -> tuple[tuple[Tensor, ...], Tensor]:
    """``(q, k, v, cos, sin)`` of a block as the engine has them, views of one projection; and the angles."""
    fused = torch.randn(batch, rows, heads + 2 * kv, dim, generator=rng).to(dtype)
    turns, cos, sin = rotation(rng, batch, rows, dim)
    return (*(x.transpose(1, 2) for x in fused.split((heads, kv, kv), dim=2)), cos, sin), turns


def caches(batch: int, kv: int, size: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer out of two, all NaN: what the op leaves alone stays so."""
    both = torch.full((2, 2, batch, kv, size, dim), NAN, dtype=dtype)
    return both[0, 1], both[1, 1]


@BY_PATH
@pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("heads", "kv", "dim"), [(4, 1, 128), (9, 3, 20), (2, 2, 32)])
def test_rope_append(rng: Generator, heads: int, kv: int, dim: int, norm: bool, dtype: torch.dtype, path: str) -> None:
    """Ragged slots, one of them past the end, which stores nothing; nothing but the slots is written."""
    op, where = PATHS[path]
    (q, k, v, cos, sin), turns = token(rng, 3, heads, kv, dim, dtype)
    q_norm, k_norm = (torch.randn(dim, generator=rng).to(dtype) if norm else None for _ in range(2))
    k_cache, v_cache = (x.to(where) for x in caches(3, kv, 9, dim, dtype))
    on = {name: None if x is None else x.to(where) for name, x in {"q_norm": q_norm, "k_norm": k_norm}.items()}
    slots = torch.tensor([4, 0, 11])
    inputs = (x.to(where) for x in (q, k, v, cos, sin))
    got = op(*inputs, k_cache, v_cache, slots.to(where), **on, eps=EPS)
    assert got.dtype == dtype and got.shape == q.shape
    close(got, rotated(normed(q, q_norm, EPS), turns), TOLERANCE[dtype])
    want_k, want_v = (torch.full(k_cache.shape, NAN, dtype=torch.float64) for _ in range(2))
    for row, slot in enumerate((4, 0)):
        want_k[row, :, slot] = rotated(normed(k, k_norm, EPS), turns)[row, :, 0]
        want_v[row, :, slot] = v[row, :, 0].double()
    for cache, want in ((k_cache, want_k), (v_cache, want_v)):
        close(cache, want, TOLERANCE[dtype])


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])
def test_rounds_as_the_separate_ops(rng: Generator, norm: bool) -> None:
    """In float16, which Triton's interpreter rounds rightly: a bit moves where a float32 sum was near a tie, no more.

    On a device products are fused, which may move more of them, by a bit each.
    """
    inputs, _ = token(rng, 3, 6, 2, 64, torch.float16)
    weights = [torch.randn(64, generator=rng).half() if norm else None for _ in range(2)]
    pages = [torch.randn(3, 2, 4, 64, generator=rng).half() for _ in range(2)]
    delta, residual, weight = (torch.randn(3, 1, 640, generator=rng).half() for _ in range(3))
    got: list[list[Tensor]] = []
    for op, add, where in (
        (append_naive.rope_append, norm_naive.add_rms_norm, torch.device("cpu")),
        (rope_append_gpu, add_rms_norm_gpu, DEVICE),
    ):
        stored = [torch.zeros(3, 2, 30, 64, device=where).half() for _ in range(2)]
        bounds = PageBounds(*(x.clone().to(where) for x in pages))
        q_norm, k_norm = (None if x is None else x.to(where) for x in weights)
        slots = torch.tensor([0, 13, 40], device=where)
        on = [x.to(where) for x in inputs]
        call: Callable[..., Tensor] = op
        out = call(*on, *stored, slots, q_norm=q_norm, k_norm=k_norm, eps=EPS, bounds=bounds, page_size=8)
        sums = add(delta.to(where), residual.to(where), weight[0, 0].to(where), EPS)
        got.append([x.cpu() for x in (out, *stored, *bounds, *sums)])
    same = 0.99 if DEVICE.type == "cpu" else 0.0
    for fused, separate in zip(*got, strict=True):
        torch.testing.assert_close(fused, separate, atol=2e-3, rtol=2e-3)
        assert (fused == separate).double().mean() >= same


@BY_PATH
@pytest.mark.parametrize("per_head", [False, True], ids=["row", "head"])
@pytest.mark.parametrize(("rows", "dtype"), [(2, torch.float32), (3, torch.bfloat16), (41, torch.float16)], ids=str)
def test_a_block_of_tokens(rng: Generator, rows: int, dtype: torch.dtype, per_head: bool, path: str) -> None:
    """Slots in any order, other ones for each KV head, some tokens without a slot and one row without any."""
    op, where = PATHS[path]
    inputs, turns = token(rng, 2, 4, 2, 32, dtype, rows)
    size = rows + 6
    order = torch.rand(2, 2, size, generator=rng).argsort(-1)[..., :rows]
    order[0, :, rows // 2], order[1] = -1, size if rows == 3 else -1
    slots = order if per_head else order[:, 0]
    k_cache, v_cache = (x.to(where) for x in caches(2, 2, size, 32, dtype))
    got = op(*(x.to(where) for x in inputs), k_cache, v_cache, slots.to(where))
    close(got, rotated(inputs[0], turns), TOLERANCE[dtype])
    for cache, new in ((k_cache, rotated(inputs[1], turns)), (v_cache, inputs[2].double())):
        want = torch.full(cache.shape, NAN, dtype=torch.float64)
        for row, head, step in itertools.product(range(2), range(2), range(rows)):
            slot = int(order[row, head if per_head else 0, step])
            if 0 <= slot < size:
                want[row, head, slot] = new[row, head, step]
        close(cache, want, TOLERANCE[dtype])


@BY_PATH
@pytest.mark.parametrize(
    ("page", "rows", "times"), [(4, 1, 8), (3, 1, 7), (1, 1, 3), (4, 3, 2), (3, 8, 2), (16, 21, 2)]
)
def test_bounds_follow_the_stored_keys(rng: Generator, page: int, rows: int, times: int, path: str) -> None:
    """Token after token and block after block: an empty row, one that holds five, one that stands still.

    Bounds are those of what is stored, other pages stay untouched.
    """
    op, where = PATHS[path]
    size = times * rows + 5
    k_cache, v_cache = (x.to(where) for x in caches(3, 2, size, 32, torch.float16))
    bounds = PageBounds(*(torch.full((3, 2, -(-size // page), 32), NAN, device=where).half() for _ in range(2)))
    lengths, many = torch.tensor([0, 5, 0]), 5
    slots = torch.full((3, 5), -1)
    slots[1] = torch.arange(5)
    for time in range(times + 1):
        inputs = (x.to(where) for x in token(rng, 3, 4, 2, 32, torch.float16, many)[0])
        given = slots if many > 1 or rows > 1 else slots[:, 0]
        op(*inputs, k_cache, v_cache, given.to(where), bounds=bounds, page_size=page)
        lengths[:2] += rows if time else 0
        for stored, extreme in zip(bounds, build_page_minmax(k_cache.cpu(), lengths, page), strict=True):
            for row, used in enumerate((-(-lengths // page)).tolist()):
                assert torch.equal(stored[row, :, :used].cpu(), extreme[row, :, :used])
                assert stored[row, :, used:].isnan().all()
        slots, many = lengths[:, None] + torch.arange(rows), rows
        slots[2] = -1 if rows > 1 else size


def test_one_row_of_angles_serves_all_and_meta_runs(rng: Generator) -> None:
    (q, k, v, cos, sin), turns = token(rng, 1, 2, 1, 32, torch.float32)
    q, k, v = (x.repeat(3, 1, 1, 1) for x in (q, k, v))
    k_cache, v_cache = (x.to(DEVICE) for x in caches(3, 1, 4, 32, torch.float32))
    slots = torch.zeros(3, dtype=torch.int64)
    got = rope_append_gpu(*(x.to(DEVICE) for x in (q, k, v, cos, sin)), k_cache, v_cache, slots.to(DEVICE))
    close(got, rotated(q, turns), TOLERANCE[torch.float32])
    assert rope_append(*(x.to("meta") for x in (q, k, v, cos, sin, k_cache, v_cache, slots))).shape == q.shape


def test_rope_append_refuses_what_does_not_fit(rng: Generator) -> None:
    inputs, _ = token(rng, 2, 2, 1, 32, torch.float32, 3)
    cache, slots = torch.zeros(2, 1, 9, 32), torch.zeros(2, 3, dtype=torch.int64)
    bounds = PageBounds(cache, cache)
    for op, at, options, message in (
        (rope_append, slots[:, 0], {}, "slot_mapping"),
        (rope_append_gpu, slots[:, 0], {}, "slot_mapping"),
        (rope_append_gpu, slots, {"bounds": bounds, "page_size": 0}, "page size"),
        (rope_append_gpu, slots, {"bounds": bounds, "page_size": 1, "q_norm": torch.ones(32).half()}, "one dtype"),
    ):
        call: Callable[..., Tensor] = op
        with pytest.raises(ValueError, match=message):
            call(*inputs, cache, cache, at, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
def test_replays_in_a_graph(rng: Generator, pdl: bool) -> None:
    """One capture, then a token after another: slots and keys are read at each replay."""
    device = torch.device("cuda")
    inputs = [x.to(device) for x in token(rng, 4, 32, 8, 128, torch.bfloat16)[0]]
    weights = [torch.randn(128, generator=rng).to(device, torch.bfloat16) for _ in range(2)]
    stores = [[torch.zeros(4, 8, 100, 128, device=device).bfloat16() for _ in range(2)] for _ in range(2)]
    pages = [PageBounds(*(torch.zeros(4, 8, 7, 128, device=device).bfloat16() for _ in range(2))) for _ in range(2)]
    slots = torch.tensor([0, 15, 98, 50], device=device)
    options: dict[str, Any] = {"q_norm": weights[0], "k_norm": weights[1], "eps": EPS, "page_size": 16}
    fast = {"launch": Launch(launch_pdl=pdl), "bounds": pages[0]}
    graph, found = captured(lambda: rope_append_gpu(*inputs, *stores[0], slots, **options, **fast))
    append_naive.rope_append(*inputs, *stores[1], slots, **options, bounds=pages[1])
    for _ in range(5):
        for tensor, fresh in zip(inputs, token(rng, 4, 32, 8, 128, torch.bfloat16)[0], strict=True):
            tensor.copy_(fresh)
        slots += 1
        graph.replay()
        want = append_naive.rope_append(*inputs, *stores[1], slots, **options, bounds=pages[1])
        for got, expected in zip((found, *stores[0], *pages[0]), (want, *stores[1], *pages[1]), strict=True):
            torch.testing.assert_close(got, expected, atol=2e-2, rtol=2e-2)
