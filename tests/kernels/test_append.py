"""The fused steps around attention against float64 and against the separate ops, in torch and in Triton."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from longdecode.kernels.add_rms_norm import add_rms_norm
from longdecode.kernels.add_rms_norm import naive as norm_naive
from longdecode.kernels.add_rms_norm.gpu import add_rms_norm_gpu
from longdecode.kernels.page_minmax import PageBounds, build_page_minmax
from longdecode.kernels.rope_append import naive as append_naive
from longdecode.kernels.rope_append import rope_append
from longdecode.kernels.rope_append.gpu import Launch, rope_append_gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}
NAN = float("nan")
EPS = 1e-2
PATHS = {"naive": (rope_append, torch.device("cpu")), "triton": (rope_append_gpu, DEVICE)}


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.cpu().double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMS norm in float64, where there is a weight."""
    x = x.double()
    return x if weight is None else weight.double() * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 256), (3, 15), (16, 1, 1000)], ids=str)
@pytest.mark.parametrize("path", ["naive", "triton"])
def test_add_rms_norm(rng: torch.Generator, path: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """The residual a view of a wider buffer; with a delta and without."""
    delta, wide = (torch.randn(*shape[:-1], shape[-1] + 5, generator=rng).to(dtype) for _ in range(2))
    delta, residual, weight = delta[..., 5:], wide[..., :-5], torch.randn(shape[-1], generator=rng).to(dtype)
    where = DEVICE if path == "triton" else torch.device("cpu")
    op = add_rms_norm_gpu if path == "triton" else add_rms_norm
    for given in (delta, None):
        got, total = op(None if given is None else given.to(where), residual.to(where), weight.to(where), EPS)
        want = residual.double() if given is None else residual.double() + given.double()
        assert got.dtype == total.dtype == dtype and got.shape == total.shape == residual.shape
        close(total, want, dtype)
        close(got, normed(want, weight, EPS), dtype)


@pytest.mark.parametrize(
    ("delta", "weight"), [(None, torch.ones(4)), (torch.ones(2, 4), torch.ones(8)), (None, torch.ones(8).half())]
)
def test_add_rms_norm_refuses_what_does_not_fit(delta: Tensor | None, weight: Tensor) -> None:
    with pytest.raises(ValueError, match="cannot take"):
        add_rms_norm_gpu(delta, torch.ones(2, 8), weight, EPS)


def token(
    rng: torch.Generator, batch: int, heads: int, kv: int, dim: int, dtype: torch.dtype, rows: int = 1
) -> tuple[tuple[Tensor, ...], Tensor]:
    """``(q, k, v, cos, sin)`` of a block as the engine has them, views of one projection; and the angles."""
    fused = torch.randn(batch, rows, heads + 2 * kv, dim, generator=rng).to(dtype)
    turns = 100 * torch.rand(batch, rows, dim // 2, generator=rng, dtype=torch.float64)
    cos, sin = (torch.cat((f(turns), f(turns)), dim=-1).float() for f in (torch.cos, torch.sin))
    return (*(x.transpose(1, 2) for x in fused.split((heads, kv, kv), dim=2)), cos, sin), turns


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Each pair as a complex number, multiplied by its unit phase."""
    first, second = x.double().chunk(2, dim=-1)
    product = torch.complex(first, second) * torch.polar(torch.ones_like(turns), turns)[:, None]
    return torch.cat((product.real, product.imag), dim=-1)


def caches(batch: int, kv: int, size: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer out of two, all NaN: what the op leaves alone stays so."""
    both = torch.full((2, 2, batch, kv, size, dim), NAN, dtype=dtype)
    return both[0, 1], both[1, 1]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("heads", "kv", "dim"), [(4, 1, 128), (9, 3, 20), (2, 2, 32)])
def test_rope_append(
    rng: torch.Generator, heads: int, kv: int, dim: int, norm: bool, dtype: torch.dtype, path: str
) -> None:
    """Ragged slots, one of them past the end, which stores nothing; nothing but the slots is written."""
    op, where = PATHS[path]
    (q, k, v, cos, sin), turns = token(rng, 3, heads, kv, dim, dtype)
    q_norm, k_norm = (torch.randn(dim, generator=rng).to(dtype) if norm else None for _ in range(2))
    k_cache, v_cache = (x.to(where) for x in caches(3, kv, 9, dim, dtype))
    options = {"q_norm": q_norm, "k_norm": k_norm}
    on = {name: None if x is None else x.to(where) for name, x in options.items()}
    slots = torch.tensor([4, 0, 11])
    inputs = (x.to(where) for x in (q, k, v, cos, sin))
    got = op(*inputs, k_cache, v_cache, slots.to(where), **on, eps=EPS)
    assert got.dtype == dtype and got.shape == q.shape
    close(got, turned(normed(q, q_norm, EPS), turns), dtype)
    want_k, want_v = (torch.full(k_cache.shape, NAN, dtype=torch.float64) for _ in range(2))
    for row, slot in enumerate((4, 0)):
        want_k[row, :, slot] = turned(normed(k, k_norm, EPS), turns)[row, :, 0]
        want_v[row, :, slot] = v[row, :, 0].double()
    for cache, want in ((k_cache, want_k), (v_cache, want_v)):
        torch.testing.assert_close(
            cache.cpu().double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], equal_nan=True
        )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("page", "size"), [(4, 10), (3, 9), (1, 5)])
def test_bounds_follow_the_stored_keys(rng: torch.Generator, page: int, size: int, path: str) -> None:
    """Token after token, into an empty row and one that holds two: bounds of what is stored, other pages untouched."""
    op, where = PATHS[path]
    k_cache, v_cache = (x.to(where) for x in caches(2, 2, size, 32, torch.float16))
    k_cache[1, :, :2] = torch.randn(2, 2, 32, generator=rng).half()
    lengths = torch.tensor([0, 2])
    pages = -(-size // page)
    bounds = PageBounds(*(torch.full((2, 2, pages, 32), NAN, device=where).half() for _ in range(2)))
    held = -(-2 // page)
    for stored, extreme in zip(bounds, build_page_minmax(k_cache.cpu(), lengths, page), strict=True):
        stored[1, :, :held] = extreme[1, :, :held].to(where)
    for _ in range(size - 2):
        inputs = (x.to(where) for x in token(rng, 2, 4, 2, 32, torch.float16)[0])
        op(*inputs, k_cache, v_cache, lengths.to(where), bounds=bounds, page_size=page)
        lengths += 1
        for stored, extreme in zip(bounds, build_page_minmax(k_cache.cpu(), lengths, page), strict=True):
            for row, length in enumerate(lengths.tolist()):
                used = -(-length // page)
                assert torch.equal(stored[row, :, :used].cpu(), extreme[row, :, :used])
                assert stored[row, :, used:].isnan().all()


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])
def test_rounds_as_the_separate_ops(rng: torch.Generator, norm: bool) -> None:
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


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("per_head", [False, True], ids=["row", "head"])
@pytest.mark.parametrize(("rows", "dtype"), [(2, torch.float32), (3, torch.bfloat16), (41, torch.float16)], ids=str)
def test_a_block_of_tokens(rng: torch.Generator, rows: int, dtype: torch.dtype, per_head: bool, path: str) -> None:
    """Slots in any order, other ones for each KV head, some tokens without a slot and one row without any."""
    op, where = PATHS[path]
    inputs, turns = token(rng, 2, 4, 2, 32, dtype, rows)
    size = rows + 6
    order = torch.rand(2, 2, size, generator=rng).argsort(-1)[..., :rows]
    order[0, :, rows // 2], order[1] = -1, size if rows == 3 else -1
    slots = order if per_head else order[:, 0]
    k_cache, v_cache = (x.to(where) for x in caches(2, 2, size, 32, dtype))
    got = op(*(x.to(where) for x in inputs), k_cache, v_cache, slots.to(where))
    close(got, turned(inputs[0], turns), dtype)
    for cache, new in ((k_cache, turned(inputs[1], turns)), (v_cache, inputs[2].double())):
        want = torch.full(cache.shape, NAN, dtype=torch.float64)
        for row, head, step in itertools.product(range(2), range(2), range(rows)):
            slot = int(order[row, head if per_head else 0, step])
            if 0 <= slot < size:
                want[row, head, slot] = new[row, head, step]
        torch.testing.assert_close(
            cache.cpu().double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], equal_nan=True
        )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("page", "rows"), [(4, 3), (3, 8), (1, 2), (16, 21)])
def test_bounds_follow_blocks_of_keys(rng: torch.Generator, page: int, rows: int, path: str) -> None:
    """Block after block into rows of other lengths, one of which stands still: several tokens and firsts of a page."""
    op, where = PATHS[path]
    size = 2 * rows + 5
    pages = -(-size // page)
    k_cache, v_cache = (x.to(where) for x in caches(3, 2, size, 32, torch.float16))
    bounds = PageBounds(*(torch.full((3, 2, pages, 32), NAN, device=where).half() for _ in range(2)))
    lengths = torch.tensor([0, 5, 0])
    first, _ = token(rng, 3, 2, 2, 32, torch.float16, 5)
    slots = torch.full((3, 5), -1)
    slots[1] = torch.arange(5)
    op(*(x.to(where) for x in first), k_cache, v_cache, slots.to(where), bounds=bounds, page_size=page)
    for _ in range(2):
        slots = lengths[:, None] + torch.arange(rows)
        slots[2] = -1
        inputs, _ = token(rng, 3, 2, 2, 32, torch.float16, rows)
        op(*(x.to(where) for x in inputs), k_cache, v_cache, slots.to(where), bounds=bounds, page_size=page)
        lengths[:2] += rows
        for stored, extreme in zip(bounds, build_page_minmax(k_cache.cpu(), lengths, page), strict=True):
            for row, length in enumerate(lengths.tolist()):
                used = -(-length // page)
                assert torch.equal(stored[row, :, :used].cpu(), extreme[row, :, :used])
                assert stored[row, :, used:].isnan().all()


@pytest.mark.parametrize("path", PATHS)
def test_slots_of_another_shape_are_refused(rng: torch.Generator, path: str) -> None:
    op, where = PATHS[path]
    inputs, _ = token(rng, 2, 2, 1, 32, torch.float32, 3)
    cache = torch.zeros(2, 1, 9, 32, device=where)
    with pytest.raises(ValueError, match="slot_mapping"):
        op(*(x.to(where) for x in inputs), cache, cache, torch.zeros(2, dtype=torch.int64, device=where))


def test_one_row_of_angles_serves_all_and_meta_runs(rng: torch.Generator) -> None:
    (q, k, v, cos, sin), turns = token(rng, 1, 2, 1, 32, torch.float32)
    q, k, v = (x.repeat(3, 1, 1, 1) for x in (q, k, v))
    k_cache, v_cache = (x.to(DEVICE) for x in caches(3, 1, 4, 32, torch.float32))
    slots = torch.zeros(3, dtype=torch.int64)
    got = rope_append_gpu(*(x.to(DEVICE) for x in (q, k, v, cos, sin)), k_cache, v_cache, slots.to(DEVICE))
    close(got, turned(q, turns), torch.float32)
    meta = [x.to("meta") for x in (q, k, v, cos, sin, k_cache, v_cache, slots)]
    assert rope_append(*meta).shape == q.shape


@pytest.mark.parametrize(
    ("change", "says"),
    [({"page_size": 0}, "page size"), ({"q_norm": torch.ones(32).half()}, "one dtype")],
    ids=["page size", "dtype"],
)
def test_rope_append_refuses_what_does_not_fit(rng: torch.Generator, change: dict[str, Any], says: str) -> None:
    inputs, _ = token(rng, 1, 2, 1, 32, torch.float32)
    cache = torch.zeros(1, 1, 4, 32)
    options = {"bounds": PageBounds(cache, cache), "page_size": 1} | change
    with pytest.raises(ValueError, match=says):
        rope_append_gpu(*inputs, cache, cache, torch.tensor([0]), **options)


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
def test_replays_in_a_graph(seed: int, pdl: bool) -> None:
    """One capture, then a token after another: slots and keys are read at each replay."""
    rng = torch.Generator().manual_seed(seed)
    device = torch.device("cuda")
    inputs = [x.to(device) for x in token(rng, 4, 32, 8, 128, torch.bfloat16)[0]]
    weights = [torch.randn(128, generator=rng).to(device, torch.bfloat16) for _ in range(2)]
    stores = [[torch.zeros(4, 8, 100, 128, device=device).bfloat16() for _ in range(2)] for _ in range(2)]
    pages = [PageBounds(*(torch.zeros(4, 8, 7, 128, device=device).bfloat16() for _ in range(2))) for _ in range(2)]
    slots = torch.tensor([0, 15, 98, 50], device=device)
    options: dict[str, Any] = {"q_norm": weights[0], "k_norm": weights[1], "eps": EPS, "page_size": 16}
    fast = {"launch": Launch(launch_pdl=pdl), "bounds": pages[0]}
    rope_append_gpu(*inputs, *stores[0], slots, **options, **fast)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = rope_append_gpu(*inputs, *stores[0], slots, **options, **fast)
    append_naive.rope_append(*inputs, *stores[1], slots, **options, bounds=pages[1])
    for _ in range(5):
        for tensor, fresh in zip(inputs, token(rng, 4, 32, 8, 128, torch.bfloat16)[0], strict=True):
            tensor.copy_(fresh)
        slots += 1
        graph.replay()
        want = append_naive.rope_append(*inputs, *stores[1], slots, **options, bounds=pages[1])
        for got, expected in zip((captured, *stores[0], *pages[0]), (want, *stores[1], *pages[1]), strict=True):
            torch.testing.assert_close(got, expected, atol=2e-2, rtol=2e-2)
