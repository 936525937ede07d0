"""Inputs of kernels, poisoned where nothing may be read, and attention over named tokens in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from longdecode.kernels.block_residency import BlockQueue
from longdecode.kernels.sparse_decode_attention import EVERYTHING

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Device of the kernels: without a GPU Triton's interpreter runs them."""
NAN, INFINITY = float("nan"), float("inf")
ATTENTION_TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
HALF_AND_SINGLE = [torch.float32, torch.float16, torch.bfloat16]
FAR_AWAY = 1 << 40
"""Entry of a list past its count: far outside any cache."""
UNTOUCHED = -7
Cache = tuple[Tensor, Tensor, Tensor, Tensor]
"""Queries ``[B, Hq, T, D]``, keys and values ``[B, Hkv, S, D]`` with NaN past the lengths ``[B]`` or ``[B, Hkv]``."""


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    """Compare with a float64 reference on the CPU."""
    torch.testing.assert_close(got.cpu().double(), want.cpu().double(), atol=tolerance, rtol=tolerance, equal_nan=True)


def same(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    """Compare bit for bit."""
    for mine, theirs in zip(got, want, strict=True):
        assert mine.cpu().equal(theirs.cpu())


def on_device(*tensors: Any) -> list[Any]:
    """Copies on the device, so that what is changed in place is changed twice; what is no tensor stays as it is."""
    return [x.to(DEVICE, copy=True) if isinstance(x, Tensor) else x for x in tensors]


def random_on_device(seed: int, *shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """Random tensors made on a CUDA device."""
    rng = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(shape, generator=rng, device="cuda").to(dtype) for shape in shapes]


def whole(values: object) -> Tensor:
    """Integers on the device."""
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


def new_queue(entries: int) -> BlockQueue:
    """A queue full of junk."""
    return BlockQueue(whole([UNTOUCHED] * (entries + 1)), whole([UNTOUCHED] * (entries + 1)), whole([0]))


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of a step that has run before, and the step's outputs in it."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = step()
    return graph, outputs


def rotation(rng: torch.Generator, batch: int, tokens: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Angles of each pair in float64, their cosines and sines as the engine stores them."""
    turns = 100 * torch.rand(batch, tokens, dim // 2, generator=rng, dtype=torch.float64)
    cos, sin = (torch.cat((f(turns), f(turns)), dim=-1).float() for f in (torch.cos, torch.sin))
    return turns, cos, sin


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Each pair as a complex number, multiplied by its unit phase."""
    first, second = x.double().chunk(2, dim=-1)
    product = torch.complex(first, second) * torch.polar(torch.ones_like(turns), turns)[:, None]
    return torch.cat((product.real, product.imag), dim=-1)


def normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMS norm in float64, where there is a weight."""
    x = x.double()
    return x if weight is None else weight.double() * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def poison_past(lengths: Tensor, *tensors: Tensor) -> None:
    """Fill ``[B, Hkv, S, ...]`` with NaN past lengths ``[B]`` or ``[B, Hkv]``."""
    for x in tensors:
        past = torch.arange(x.shape[2], device=x.device) >= lengths.view(len(lengths), -1, 1)
        x[past.expand(x.shape[:3])] = NAN


def ragged(
    rng: torch.Generator, batch: int, kv: int, group: int, dim: int, size: int, rows: int = 1, *,
    dtype: torch.dtype = torch.float32, fewest: int = 0, per_head: bool = False, sharpness: float = 3.0,
) -> Cache:  # fmt: skip
    """Random queries and a ragged cache on the generator's device: one row full, the last with the fewest tokens.

    ``sharpness`` multiplies the queries: outputs of plain random ones are averages near zero, which any tolerance
    forgives.
    """
    options: dict[str, Any] = {"generator": rng, "device": rng.device}
    q = (sharpness * torch.randn(batch, kv * group, rows, dim, **options)).to(dtype)
    k, v = (torch.randn(batch, kv, size, dim, **options).to(dtype) for _ in range(2))
    lengths = torch.randint(max(1, fewest), size + 1, (batch, kv) if per_head else (batch,), **options)
    lengths.view(-1)[0] = size
    if lengths.numel() > 1:
        lengths.view(-1)[-1] = fewest
    poison_past(lengths, k, v)
    return q, k, v, lengths


def lists_of_blocks(
    rng: torch.Generator, batch: int, lists: int, blocks: int, width: int, counts: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Distinct random blocks in random order, entries past each count far outside; the first counts may be given."""
    order = torch.rand(batch, lists, blocks, generator=rng).argsort(-1)[..., :width].contiguous()
    number = torch.randint(0, width + 1, (batch, lists), generator=rng)
    number.view(-1)[: len(counts)] = torch.tensor(counts, dtype=torch.int64)
    order[torch.arange(width) >= number[..., None]] = FAR_AWAY
    return order, number


def draft_tree(rng: torch.Generator, rows: int) -> Tensor:
    """The mask of a random draft tree: each node sees itself and the ancestors of a parent before it."""
    mask = torch.eye(rows, dtype=torch.bool)
    for row in range(1, rows):
        parent = int(torch.randint(-1, row, (), generator=rng))
        if parent >= 0:
            mask[row] |= mask[parent]
    return mask


def attend(
    q: Tensor, k: Tensor, v: Tensor, tokens: Sequence[int], scale: float | None = None, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of rows ``[..., D]`` over the named tokens of one KV head, and its log-sum-exp, in float64."""
    if not len(tokens):
        return torch.zeros(q.shape, dtype=torch.float64), torch.full(q.shape[:-1], -INFINITY, dtype=torch.float64)
    named = list(tokens)
    scores = (scale or q.shape[-1] ** -0.5) * q.double() @ k[named].double().T
    if bias is not None:
        scores = scores + bias[named].double()
    return scores.softmax(-1) @ v[named].double(), scores.logsumexp(-1)


def listed_tokens(
    cache: Cache, indices: Tensor, counts: Tensor, block: int
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Entry and token of all that each list names within its row's length, by row and list."""
    found = {}
    for row, length in enumerate(cache[3].tolist()):
        for one, number in enumerate(counts[row].tolist()):
            blocks = range(-(-length // block)) if number == EVERYTHING else indices[row, one, :number].tolist()
            spans = [range(at * block, min((at + 1) * block, length)) for at in blocks]
            found[row, one] = [(entry, token) for entry, span in enumerate(spans) for token in span]
    return found


def check_sparse(
    op: Callable[..., tuple[Tensor, Tensor]], cache: Cache, indices: Tensor, counts: Tensor, block: int, *,
    limits: Tensor | None = None, row_mask: Tensor | None = None, bias: Tensor | None = None,
    scale: float | None = None, score_rows: Sequence[int] | None = None, score_block: int = 1,
    where: torch.device = DEVICE,
) -> None:  # fmt: skip
    """Compare outputs, log-sum-exp, tokens read and scores left by sparse attention with sums over explicit tokens."""
    q, k, v, lengths = cache
    (batch, heads, rows, _), (kv, size), lists = q.shape, k.shape[1:3], indices.shape[1]
    served, tolerance = heads // lists, ATTENTION_TOLERANCE[q.dtype]
    given: dict[str, Any] = {"kv_lengths": lengths if limits is None else limits, "row_mask": row_mask, "bias": bias}
    given["kv_tokens_read"] = torch.arange(batch)
    if score_rows is not None:
        given["scores"] = torch.full((batch, -(-size // score_block), max(score_rows) + 2), 1e6).transpose(1, 2)
        given["score_rows"] = torch.tensor(score_rows)
    moved = {name: None if x is None else x.to(where) for name, x in given.items()}
    plan = moved if score_rows is None else moved | {"score_block": score_block}
    out, lse = op(*(x.to(where) for x in (q, k, v, indices, counts)), block_size=block, scale=scale, **plan)
    assert out.dtype == q.dtype and out.shape == q.shape and lse.shape == q.shape[:-1]
    read = list(range(batch))
    for (b, one), entries in listed_tokens(cache, indices, counts, block).items():
        read[b] += len(entries)
        group, head = slice(one * served, (one + 1) * served), one * served * kv // heads
        for t in {0, rows // 2, rows - 1}:
            seen = [
                token
                for entry, token in entries
                if (limits is None or token < int(limits[b, t]))
                and (row_mask is None or counts[b, one] == EVERYTHING or bool(row_mask[b, one, t, entry]))
            ]
            own_bias = None if bias is None else bias[b, one]
            want, want_lse = attend(q[b, group, t], k[b, head], v[b, head], seen, scale, own_bias)
            close(out[b, group, t], want, tolerance)
            close(lse[b, group, t], want_lse, 1e-4)
        if score_rows is not None and score_rows[one] >= 0 and counts[b, one] == EVERYTHING:
            length, got = int(lengths[b]), moved["scores"][b, score_rows[one]]
            logits = (scale or q.shape[-1] ** -0.5) * k[b, head, :length].double() @ q[b, group, 0].double().mean(0)
            best = [part.max() for part in logits.split(score_block)] if length else []
            left = got[: len(best)].cpu().double()
            torch.testing.assert_close(left, torch.tensor(best).double(), atol=1e-4, rtol=tolerance)
            assert got[len(best) :].eq(1e6).all()
            got.fill_(1e6)
    assert score_rows is None or moved["scores"].eq(1e6).all()
    assert moved["kv_tokens_read"].tolist() == read
