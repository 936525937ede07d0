"""Cases of the kernel bench in which the KV heads of a layer differ: some read everything, the others a list."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.errors import GateError, UnsupportedCellError
from longdecode.evals.throughput.attention_cases import cache_elements, cache_set
from longdecode.evals.throughput.kernel_case import (
    COLD_BYTES,
    Case,
    Inputs,
    Size,
    is_close,
    require_close,
    rotated_blocks,
)
from longdecode.kernels.dispatch import naive_kernels
from longdecode.kernels.sparse_decode_attention import EVERYTHING, sparse_decode_attention
from longdecode.kernels.topk_select import topk_select_into
from longdecode.kernels.topk_select.naive import topk_select as naive_topk_select

BLOCK = 64
"""Tokens a block, as LycheeDecode times its kernel."""
_SCORE_BYTES = 4
_INDEX_BYTES = 8
_SINK_BLOCKS, _RECENT_BLOCKS = 2, 5
"""Blocks always kept: 128 tokens of sink, and 256 recent ones beside the block that the current token is in."""
_DENSE_PEERS = ("torch_flash", "torch_cudnn", "flashinfer", "longdecode_dense")


def hybrid_case(size: Size, *, scored: bool = False, random_lengths: bool = False) -> Case:
    """Time one launch over a layer whose ``full_heads`` KV heads read everything and whose others read blocks of 64.

    Heads that read everything are spread over the layer; nothing is permuted. A budget in tokens is that of the others.
    Peers are dense: they read all heads whole, and are held against ours where ours does.

    Args:
        scored: the heads that read everything also leave the scores of their blocks, in the same pass.
        random_lengths: rows of a length below the context, drawn evenly, instead of filled ones. A list has the same
            number of blocks then, or all that its row has.

    Raises:
        UnsupportedCellError: nothing is left to select at this budget, or no head is there to score.
    """
    heads, full = size.config.num_kv_heads, _full_heads(size)
    blocks, picked = _blocks(size)
    if scored and not full:
        raise UnsupportedCellError("no KV head reads everything, so that none can be scored")
    lengths = _random_lengths(size) if random_lengths else [size.context] * size.batch
    token = 2 * size.config.head_dim * size.dtype.itemsize
    listed = sum(min(length, picked * BLOCK) for length in lengths)
    scores = size.batch * len(full) * blocks * _SCORE_BYTES if scored else 0
    dense = sum(lengths) * heads * token
    lists = size.batch * (heads - len(full)) * picked * _INDEX_BYTES
    read = (len(full) * sum(lengths) + (heads - len(full)) * listed) * token + lists + scores
    cache = 2 * cache_elements(size) * size.dtype.itemsize
    # Sets may share caches where each of them reads other blocks; a head that reads everything would find it warm.
    shares = not full and not random_lengths
    caches = max(1, math.ceil(COLD_BYTES / cache)) if size.device.type == "cuda" else 1

    def make_sets(count: int) -> list[Inputs]:
        stores = [cache_set(size) for _ in range(min(caches, count) if shares else count)]
        return [
            stores[turn % len(stores)]
            | _lists(size, lengths, full, picked, turn // len(stores))
            | (_score_buffers(size, full, blocks) if scored else {})
            for turn in range(count)
        ]

    def check(x: Inputs, got: Any) -> None:
        fresh = x | ({"scores": torch.empty_like(x["scores"])} if scored else {})
        with naive_kernels():
            out, truth = attend(fresh)
        require_close([got[0]], [out], size.dtype, "hybrid_attention")
        if truth is not None:
            used = torch.arange(blocks, device=size.device) < _used_blocks(x["lengths"])[:, None, None]
            found, wanted = (torch.where(used, scores, 0.0) for scores in (got[1], truth))
            require_close([found], [wanted], size.dtype, "hybrid_attention: scores")

    def same(peer: Tensor, mine: tuple[Tensor, Tensor | None]) -> bool:
        rows = [slice(head * size.config.group_size, (head + 1) * size.config.group_size) for head in full]
        return all(is_close(peer[:, row], mine[0][:, row], size.dtype) for row in rows)

    return Case(
        _subject(scored, random_lengths), size, make_sets, attend, check, read,
        lists + scores if shares else cache + lists + scores, cache * caches if shares else 0, same=same,
        params={"block": BLOCK, "blocks": picked}, peer_bytes=dict.fromkeys(_DENSE_PEERS, dense),
    )  # fmt: skip


def attend(x: Inputs, scores: bool = True) -> tuple[Tensor, Tensor | None]:
    """Launch over a set of ``hybrid_case``: the output, and the scores where the set has room for them.

    Args:
        scores: leave them out although there is room.
    """
    wanted = scores and "scores" in x
    scoring = {name: x[name] for name in ("scores", "score_rows")} | {"score_block": BLOCK} if wanted else {}
    # Where all heads read everything, a launch with scores takes their lists for long ones by itself.
    uneven = bool(x["full"]) and not (wanted and len(x["full"]) == x["k"].shape[1])
    out, _ = sparse_decode_attention(
        x["q"], x["k"], x["v"], x["indices"], x["counts"], block_size=BLOCK, kv_lengths=x["lengths"], uneven=uneven,
        **scoring,
    )  # fmt: skip
    return out, x["scores"] if wanted else None


def topk_into_case(size: Size) -> Case:
    """Time the choice of the retrieving heads' best blocks, written into a layer's lists; the others' lists stay.

    Raises:
        UnsupportedCellError: nothing is left to select at this budget, or no head retrieves.
    """
    heads, full = size.config.num_kv_heads, _full_heads(size)
    if not full:
        raise UnsupportedCellError("no KV head reads everything, so that none selects")
    blocks, picked = _blocks(size)
    first, last = (_SINK_BLOCKS, _RECENT_BLOCKS) if picked > _SINK_BLOCKS + _RECENT_BLOCKS else (0, 1)

    def make_sets(count: int) -> list[Inputs]:
        return [
            {
                "scores": torch.randn(size.batch, len(full), blocks, device=size.device),
                "valid": size.whole(size.batch, value=blocks),
                "indices": size.whole(size.batch, heads, picked, value=EVERYTHING),
                "heads": torch.tensor(full, device=size.device),
                "k": picked,
            }
            for _ in range(count)
        ]

    def ours(x: Inputs) -> Tensor:
        topk_select_into(
            x["scores"], x["k"], x["valid"], x["indices"], x["heads"], keep_first=first, keep_last=last
        )  # fmt: skip
        written: Tensor = x["indices"]
        return written

    def check(x: Inputs, got: Any) -> None:
        want = torch.full_like(got, EVERYTHING)
        chosen, _ = naive_topk_select(x["scores"], picked, x["valid"], keep_first=first, keep_last=last)
        want[:, full] = chosen
        if not torch.equal(got, want):
            raise GateError("topk_select_into: other lists than its definition")

    rows = size.batch * len(full)
    moved = rows * (blocks * _SCORE_BYTES + picked * _INDEX_BYTES)
    held = rows * blocks * _SCORE_BYTES + size.batch * heads * picked * _INDEX_BYTES
    return Case(
        "topk_select_into", size, make_sets, ours, check, moved, held, params={"k": picked, "entries": blocks},
    )  # fmt: skip


def _subject(scored: bool, random_lengths: bool) -> str:
    return "hybrid_attention" + ("_scored" if scored else "") + ("_random" if random_lengths else "")


def _full_heads(size: Size) -> list[int]:
    """Return the KV heads that read everything, spread evenly over the layer."""
    heads, count = size.config.num_kv_heads, size.op_sizes.get("full_heads", 0)
    return [head for head in range(heads) if (head + 1) * count // heads > head * count // heads]


def _blocks(size: Size) -> tuple[int, int]:
    """Return blocks of a row, and how many of them a list has.

    Raises:
        UnsupportedCellError: the budget is under one block or covers the context.
    """
    picked = (size.budget_tokens or 0) // BLOCK
    if picked < 1 or picked * BLOCK >= size.context:
        raise UnsupportedCellError(
            f"a budget of {size.budget_tokens} tokens is no list of blocks of {BLOCK} out of {size.context} tokens"
        )
    return -(-size.context // BLOCK), picked


def _random_lengths(size: Size) -> list[int]:
    """Return a length from 1 to the context, itself left out, for each row."""
    draw = random.Random(f"lengths {size.context} {size.batch}")
    return [draw.randrange(1, size.context) for _ in range(size.batch)]


def _used_blocks(lengths: Tensor) -> Tensor:
    return (lengths + BLOCK - 1) // BLOCK


def _lists(size: Size, lengths: list[int], full: list[int], picked: int, turn: int) -> Inputs:
    """Return lengths and lists of a set; lists of full rows turn through the cache, those of shorter rows need not."""
    blocks, heads = -(-size.context // BLOCK), size.config.num_kv_heads
    stored = torch.tensor(lengths, device=size.device)
    used = _used_blocks(stored)[:, None]
    if set(lengths) == {size.context}:
        indices = rotated_blocks(size, blocks, picked, turn)
    else:
        draw = torch.rand(size.batch, heads, blocks, device=size.device)
        draw += (torch.arange(blocks, device=size.device) >= used)[:, None]  # blocks past the row come last
        indices = draw.argsort(dim=-1)[..., :picked].sort(dim=-1).values
    counts = used.clamp(max=picked).expand(-1, heads).contiguous()
    counts[:, full] = EVERYTHING
    return {"lengths": stored, "indices": indices, "counts": counts, "full": full}


def _score_buffers(size: Size, full: list[int], blocks: int) -> Inputs:
    rows = torch.full((size.config.num_kv_heads,), -1, device=size.device)
    rows[full] = torch.arange(len(full), device=size.device)
    return {"scores": torch.empty(size.batch, len(full), blocks, device=size.device), "score_rows": rows}
