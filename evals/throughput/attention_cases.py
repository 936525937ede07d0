"""Cases of the kernel bench that read the cache or its metadata."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.errors import GateError, UnsupportedCellError
from longdecode.evals.throughput.kernel_case import (
    COLD_BYTES,
    Case,
    Inputs,
    Size,
    is_close,
    random_tree,
    require_close,
    rotated_blocks,
)
from longdecode.evals.throughput.spec import ROWS_OP
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.dispatch import naive_kernels
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.page_score import page_score
from longdecode.kernels.sparse_decode_attention import sparse_decode_attention
from longdecode.kernels.token_score import token_logits
from longdecode.kernels.topk_select import topk_select
from longdecode.kernels.topk_select.naive import topk_select as naive_topk_select

PAGE = 16
_SCORE_BYTES = 4
_INDEX_BYTES = 8


def decode_attention_case(size: Size) -> Case:
    """Time dense attention of one query over the whole context."""

    def ours(x: Inputs) -> Tensor:
        return decode_attention(x["q"], x["k"], x["v"], x["lengths"])[0]

    kv = 2 * cache_elements(size) * size.dtype.itemsize
    return _case("decode_attention", size, lambda count: [cache_set(size) for _ in range(count)], ours, kv, kv)


def rows_subject(rows: int, tree: bool) -> str:
    """Name dense attention of several rows as a subject: ``decode_attention_rows41_tree``."""
    return f"{ROWS_OP}{rows}" + ("_tree" if tree else "")


def rows_of(subject: str) -> tuple[int, bool] | None:
    """Return the rows of such a subject and whether their mask is a tree; ``None`` for any other subject."""
    found = re.fullmatch(rf"{ROWS_OP}(\d+)(_tree)?", subject)
    return (int(found[1]), found[2] is not None) if found else None


def rows_case(size: Size, rows: int, tree: bool) -> Case:
    """Time dense attention of the last ``rows`` tokens over the whole context, causal or under a random tree's mask.

    The cache is read once for all rows. A peer of one row is held against the last row, where that reads everything.
    """
    kv = 2 * cache_elements(size) * size.dtype.itemsize
    mask = random_tree(rows, size.device)[0] if tree else None
    shape = (size.batch, size.config.num_heads, rows, size.config.head_dim)

    def make_sets(count: int) -> list[Inputs]:
        return [cache_set(size) | {"q": size.normal(*shape), "mask": mask} for _ in range(count)]

    def ours(x: Inputs) -> Tensor:
        return decode_attention(x["q"], x["k"], x["v"], x["lengths"], mask=x["mask"])[0]

    def same(peer: Tensor, mine: Tensor) -> bool:
        if peer.shape[2] == rows:
            return is_close(peer, mine, size.dtype)
        return tree or is_close(peer, mine[:, :, -1:], size.dtype)

    params = {"rows": rows, "mask": "tree" if tree else "causal"}
    case = _case(rows_subject(rows, tree), size, make_sets, ours, kv, kv, params=params)
    return replace(case, same=same)


def whole_mask(x: Inputs) -> Tensor:
    """Return which of all stored keys the rows of ``rows_case`` see, ``[T, S]`` bool."""
    rows, tokens = x["q"].shape[2], x["k"].shape[2]
    own = x["q"].new_ones(rows, rows, dtype=torch.bool).tril() if x["mask"] is None else x["mask"]
    return torch.cat((own.new_ones(rows, tokens - rows), own), dim=1)


def sparse_case(size: Size, block: int) -> Case:
    """Time attention over ``budget`` tokens per KV head, in blocks of ``block`` tokens, indices given.

    Sets share caches: consecutive calls read blocks that none of the others did, until a whole cache larger than the
    last-level cache was read.
    """
    budget = _budget(size)
    blocks, picked = -(-size.context // block), budget // block
    read = 2 * size.batch * size.config.num_kv_heads * picked * block * size.config.head_dim * size.dtype.itemsize
    lists = size.batch * size.config.num_kv_heads * picked * _INDEX_BYTES
    cache = 2 * cache_elements(size) * size.dtype.itemsize
    caches = max(1, math.ceil(COLD_BYTES / cache)) if size.device.type == "cuda" else 1

    def make_sets(count: int) -> list[Inputs]:
        stores = [cache_set(size) for _ in range(min(caches, count))]
        return [
            stores[turn % len(stores)]
            | {
                "indices": rotated_blocks(size, blocks, picked, turn // len(stores)),
                "counts": size.whole(size.batch, size.config.num_kv_heads, value=picked),
                "block": block,
            }
            for turn in range(count)
        ]

    def ours(x: Inputs) -> Tensor:
        return sparse_decode_attention(
            x["q"], x["k"], x["v"], x["indices"], x["counts"], block_size=block, kv_lengths=x["lengths"]
        )[0]

    subject = "sparse_decode_attention" if block > 1 else "sparse_decode_attention_tokens"
    return _case(
        subject, size, make_sets, ours, read + lists, lists, cache * caches, {"block": block, "blocks": picked}
    )


def token_logits_case(size: Size) -> Case:
    """Time logits of every token, averaged over a KV head's queries."""

    def ours(x: Inputs) -> Tensor:
        return token_logits(x["q"], x["k"], x["lengths"], group="mean")

    keys = cache_elements(size) * size.dtype.itemsize
    scores = size.batch * size.config.num_kv_heads * size.context * _SCORE_BYTES
    return _case(
        "token_logits", size, lambda count: [cache_set(size) for _ in range(count)], ours, keys + scores,
        2 * keys + scores,
    )  # fmt: skip


def page_score_case(size: Size) -> Case:
    """Time upper bounds of every page's scores, the largest over a KV head's queries."""
    bounds, scores = _page_bytes(size)
    return _case("page_score", size, lambda count: _page_sets(size, count), _scores, bounds + scores, bounds + scores)


def topk_case(size: Size) -> Case:
    """Time the choice of the best pages, one score each; the budget in pages of 16."""
    pages, picked = -(-size.context // PAGE), _budget(size) // PAGE
    lists = size.batch * size.config.num_kv_heads

    def make_sets(count: int) -> list[Inputs]:
        return [
            {
                # float32 whatever the dtype, as scores are: narrower ones would tie, and peers break ties as they like.
                "scores": torch.randn(size.batch, size.config.num_kv_heads, pages, device=size.device),
                "valid": size.whole(size.batch, value=pages),
                "k": picked,
            }
            for _ in range(count)
        ]

    def ours(x: Inputs) -> tuple[Tensor, Tensor]:
        return topk_select(x["scores"], picked, x["valid"])

    def check(x: Inputs, got: Any) -> None:
        _require_selection(got, naive_topk_select(x["scores"], picked, x["valid"]), "topk_select")

    moved = lists * (pages * _SCORE_BYTES + picked * _INDEX_BYTES)
    return Case(
        "topk_select", size, make_sets, ours, check, moved, moved,
        same=lambda peer, mine: _same_entries(peer, mine[0]), params={"k": picked, "entries": pages},
    )  # fmt: skip


def selection_case(size: Size) -> Case:
    """Time selection whole: page scores, then the best pages, the first and the current one always among them."""
    bounds, scores = _page_bytes(size)
    picked = _budget(size) // PAGE
    lists = size.batch * size.config.num_kv_heads

    def ours(x: Inputs) -> tuple[Tensor, Tensor, Tensor]:
        scored = page_score(x["q"], x["bounds"], x["pages"], group="max")
        return (scored, *topk_select(scored, picked, x["pages"], keep_last=1))

    def check(x: Inputs, got: Any) -> None:
        with naive_kernels():
            require_close([got[0]], [_scores(x)], size.dtype, "selection: scores")
        _require_selection(got[1:], naive_topk_select(got[0], picked, x["pages"], keep_last=1), "selection")

    return Case(
        "selection", size, lambda count: _page_sets(size, count, picked), ours, check,
        bounds + lists * picked * _INDEX_BYTES, bounds + scores, params={"page": PAGE, "k": picked},
    )  # fmt: skip


def _case(
    subject: str,
    size: Size,
    make_sets: Callable[[int], list[Inputs]],
    ours: Callable[[Inputs], Tensor],
    read: int,
    one_set: int,
    base: int = 0,
    params: dict[str, Any] | None = None,
) -> Case:
    """Return a case whose result is one float tensor."""

    def check(x: Inputs, got: Any) -> None:
        with naive_kernels():
            require_close([got], [ours(x)], size.dtype, subject)

    return Case(
        subject, size, make_sets, ours, check, read, one_set, base,
        same=lambda peer, mine: is_close(peer, mine, size.dtype), params=params or {},
    )  # fmt: skip


def _scores(x: Inputs) -> Tensor:
    return page_score(x["q"], x["bounds"], x["pages"], group="max")


def cache_elements(size: Size) -> int:
    """Return elements of the keys, or of the values, of one layer's cache."""
    return size.batch * size.config.num_kv_heads * size.context * size.config.head_dim


def cache_set(size: Size) -> Inputs:
    """Return one layer's queries, cache and lengths; every row is filled."""
    config = size.config
    return {
        "q": size.normal(size.batch, config.num_heads, 1, config.head_dim),
        "k": size.normal(size.batch, config.num_kv_heads, size.context, config.head_dim),
        "v": size.normal(size.batch, config.num_kv_heads, size.context, config.head_dim),
        "lengths": size.whole(size.batch, value=size.context),
    }


def _page_bytes(size: Size) -> tuple[int, int]:
    """Return bytes of the bounds and of the scores of all pages."""
    entries = size.batch * size.config.num_kv_heads * -(-size.context // PAGE)
    return 2 * entries * size.config.head_dim * size.dtype.itemsize, entries * _SCORE_BYTES


def _page_sets(size: Size, count: int, picked: int = 0) -> list[Inputs]:
    config, pages = size.config, -(-size.context // PAGE)
    sets = []
    for _ in range(count):
        low = size.normal(size.batch, config.num_kv_heads, pages, config.head_dim)
        sets.append(
            {
                "q": size.normal(size.batch, config.num_heads, 1, config.head_dim),
                "bounds": PageBounds(low, low + size.normal(*low.shape).abs()),
                "pages": size.whole(size.batch, value=pages),
                "k": picked,
            }
        )
    return sets


def _budget(size: Size) -> int:
    """Return the budget in tokens, whole pages.

    Raises:
        UnsupportedCellError: it covers the context, so that nothing is selected.
    """
    budget = (size.budget_tokens or 0) // PAGE * PAGE
    if budget < PAGE or budget >= size.context:
        raise UnsupportedCellError(
            f"a budget of {size.budget_tokens} tokens leaves nothing to select of {size.context}"
        )
    return budget


def _require_selection(got: Any, want: tuple[Tensor, Tensor], what: str) -> None:
    """Raise unless indices and counts are equal, entries past a count left out."""
    if not bool((got[1] == want[1]).all()):
        raise GateError(f"{what}: other counts than its definition")
    listed = torch.arange(want[0].shape[-1], device=want[0].device) < want[1][..., None]
    if not bool(((got[0] == want[0]) | ~listed).all()):
        raise GateError(f"{what}: other indices than its definition")


def _same_entries(peer: Tensor, mine: Tensor) -> bool:
    """Return whether two full index lists name the same entries, in whatever order."""
    return bool((peer.reshape(mine.shape).sort(dim=-1).values == mine.sort(dim=-1).values).all())
