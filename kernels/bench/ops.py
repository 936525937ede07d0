"""The ops of the bench at a size: what goes in, our call, the bytes it must move, how results compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.dispatch import naive_kernels
from longdecode.kernels.linear import gated_linear, linear
from longdecode.kernels.page_minmax import PageBounds
from longdecode.kernels.page_score import page_score
from longdecode.kernels.sparse_decode_attention import EVERYTHING, sparse_decode_attention
from longdecode.kernels.topk_select import topk_select

PAGE, HYBRID_BLOCK = 16, 64
"""Tokens a page, and a block of hybrid layers as LycheeDecode times its kernel."""
_BLOCKS = {"sparse_decode_attention": PAGE, "sparse_decode_attention_tokens": 1, "hybrid_attention": HYBRID_BLOCK}
_SCORE_BYTES, _INDEX_BYTES = 4, 8
_TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 5e-3, torch.float32: 2e-4}
"""Largest error allowed, as a share of the largest value; by dtype of the inputs."""
Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """Hold the sizes of an op: of the model's layer, then the op's own.

    ``context`` is 0 for ops that do not depend on it. ``mask`` ``[rows, rows]`` bool is a draft tree's; causal without.
    ``mixed``: the rows of a batch have different lengths.
    """

    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    ffn: int
    vocab: int
    context: int
    batch: int
    budget_tokens: int | None
    device: torch.device
    dtype: torch.dtype
    full_heads: int = 0
    rows: int = 1
    mask: Tensor | None = None
    mixed: bool = False

    @property
    def lengths(self) -> list[int]:
        """Return the keys of each row: the context, or whole pages spread evenly from an eighth of it to all."""
        if not self.mixed:
            return [self.context] * self.batch
        eighths = torch.linspace(1, 8, self.batch, dtype=torch.float64)
        return (eighths * self.context / 8 // PAGE * PAGE).long().tolist()

    def normal(self, *shape: int) -> Tensor:
        """Return random normal values in the size's dtype."""
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    def whole(self, *shape: int, value: int) -> Tensor:
        """Return int64 values, all alike."""
        return torch.full(shape, value, device=self.device, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Op:
    """An op at a size.

    Args:
        draw: makes one set of inputs.
        ours: the op as methods call it.
        read_bytes: bytes that one call must move at least.
        params: what records say of it.
        view: the part of a result that a peer computes too.
        peer_bytes: bytes that peers must move where it is something else.
    """

    draw: Callable[[], Inputs]
    ours: Callable[[Inputs], Any]
    read_bytes: int
    params: dict[str, Any] = field(default_factory=dict)
    view: Callable[[Tensor], Tensor] = lambda result: result
    peer_bytes: int | None = None

    def gate(self, dtype: torch.dtype) -> None:
        """Hold ours against the definition on fresh random inputs.

        Raises:
            AssertionError: they differ by more than rounding.
        """
        inputs = self.draw()
        got = self.ours(inputs)
        with naive_kernels():
            want = self.ours(inputs)
        require_close(got, want, _TOLERANCE[dtype], "differs from its definition")

    def require_same(self, peer: Tensor, mine: Tensor, dtype: torch.dtype) -> None:
        """Hold a peer's result against ours, to twice the tolerance, since both sides round.

        Raises:
            AssertionError: they differ.
        """
        found, want = self.view(peer.view(mine.shape)), self.view(mine)
        require_close(found, want, 2 * _TOLERANCE[dtype], "gives another result than ours on the same inputs")


def require_close(got: Tensor, want: Tensor, tolerance: float, says: str) -> None:
    """Hold a result to a share of the largest finite value; whole numbers, and what is not finite, must be the same.

    Raises:
        AssertionError: it differs; the message begins with ``says``.
    """
    largest = max(float(want.nan_to_num(0.0, 0.0, 0.0).abs().max()), 1e-6) if want.numel() else 0.0
    allowed = tolerance * largest if want.is_floating_point() else 0.0
    torch.testing.assert_close(
        got, want, rtol=0.0, atol=allowed, equal_nan=True, check_dtype=False, msg=f"{says}: {{}}".format
    )


def make_op(name: str, size: Size) -> Op:
    """Make an op of ``peers.PEERS`` at a size.

    Raises:
        NotImplementedError: nothing is left to select at this budget.
    """
    if name in _BLOCKS:
        return _listed(size, _BLOCKS[name])
    if name.startswith("decode_attention"):
        return _attention(size)
    makers = {"page_score": _page_score, "topk_select": _topk_select}
    return makers[name](size) if name in makers else _projection(size, name)


def _attention(size: Size) -> Op:
    """Dense attention of the last rows over the whole context, causal or in a tree; the cache is read once for all."""

    def ours(x: Inputs) -> Tensor:
        return decode_attention(x["q"], x["k"], x["v"], x["lengths"], mask=size.mask)[0]

    return Op(lambda: _cache(size), ours, _cache_bytes(size))


def _listed(size: Size, block: int) -> Op:
    """Attention over ``budget`` tokens per KV head, in blocks, indices given; ``full_heads`` heads read everything.

    Those heads are spread over the layer. A row of fewer blocks than the budget lists all that it has. Peers of a
    hybrid layer read all heads whole, and are held against ours where ours does.
    """
    heads, count, picked = size.kv_heads, size.full_heads, _budget(size, block) // block
    full = [head for head in range(heads) if (head + 1) * count // heads > head * count // heads]
    stored = [-(-length // block) for length in size.lengths]
    listed = (heads - len(full)) * sum(min(blocks, picked) for blocks in stored)
    token = 2 * size.head_dim * size.dtype.itemsize
    read = len(full) * sum(size.lengths) * token + listed * (block * token + _INDEX_BYTES)

    def draw() -> Inputs:
        blocks = torch.tensor(stored, device=size.device)[:, None].repeat(1, heads)
        order = torch.rand(size.batch, heads, max(stored), device=size.device)
        # Blocks past a row's end come last in order of preference and of index: the row's count leaves them out.
        order.masked_fill_(torch.arange(max(stored), device=size.device) >= blocks[..., None], -1.0)
        indices, counts = order.topk(picked, dim=-1).indices.sort(dim=-1).values, blocks.clamp(max=picked)
        counts[:, full] = EVERYTHING
        return _cache(size) | {"indices": indices, "counts": counts, "block": block}

    def ours(x: Inputs) -> Tensor:
        return sparse_decode_attention(
            x["q"], x["k"], x["v"], x["indices"], x["counts"], block_size=block, kv_lengths=x["lengths"],
            uneven=bool(full),
        )[0]  # fmt: skip

    op = Op(draw, ours, read, {"block": block, "blocks": picked})
    if block != HYBRID_BLOCK:
        return op
    return replace(op, view=lambda result: result.unflatten(1, (heads, -1))[:, full], peer_bytes=_cache_bytes(size))


def _page_score(size: Size) -> Op:
    """Upper bounds of every page's scores, the largest over a KV head's queries."""
    pages = -(-size.context // PAGE)
    shape = (size.batch, size.kv_heads, pages, size.head_dim)

    def draw() -> Inputs:
        low, query = size.normal(*shape), size.normal(size.batch, size.heads, 1, size.head_dim)
        bounds = PageBounds(low, low + size.normal(*shape).abs())
        return {"q": query, "bounds": bounds, "pages": size.whole(size.batch, value=pages)}

    moved = size.batch * size.kv_heads * pages * (2 * size.head_dim * size.dtype.itemsize + _SCORE_BYTES)
    return Op(draw, lambda x: page_score(x["q"], x["bounds"], x["pages"], group="max"), moved)


def _topk_select(size: Size) -> Op:
    """The choice of the best pages, one score each; the budget in pages of 16."""
    heads, pages, picked = size.kv_heads, -(-size.context // PAGE), _budget(size, PAGE) // PAGE

    def draw() -> Inputs:
        # float32 whatever the dtype, as scores are: narrower ones would tie, and peers break ties as they like.
        scores = torch.randn(size.batch, heads, pages, device=size.device)
        return {"scores": scores, "valid": size.whole(size.batch, value=pages), "k": picked}

    moved = size.batch * heads * (pages * _SCORE_BYTES + picked * _INDEX_BYTES)
    return Op(
        draw, lambda x: topk_select(x["scores"], picked, x["valid"])[0], moved, {"k": picked, "entries": pages},
        lambda result: result.long().sort(dim=-1).values,
    )  # fmt: skip


def _projection(size: Size, name: str) -> Op:
    """A projection of one token a row by a weight ``[rows, columns]``."""
    gated = name == "gated_linear"
    rows, columns = {
        "linear_qkv": ((size.heads + 2 * size.kv_heads) * size.head_dim, size.hidden),
        "linear_o": (size.hidden, size.heads * size.head_dim),
        "linear_down": (size.hidden, size.ffn),
        "linear_lm_head": (size.vocab, size.hidden),
        "gated_linear": (2 * size.ffn, size.hidden),
    }[name]
    moved = (rows * columns + size.batch * (columns + (rows // 2 if gated else rows))) * size.dtype.itemsize
    return Op(
        lambda: {"x": size.normal(size.batch, 1, columns), "weight": size.normal(rows, columns) * columns**-0.5},
        lambda x: (gated_linear if gated else linear)(x["x"], x["weight"]), moved, {"rows": rows, "columns": columns},
    )  # fmt: skip


def _cache_bytes(size: Size) -> int:
    """Return bytes of the keys and values of one layer, of each row as many as it has."""
    return 2 * size.kv_heads * sum(size.lengths) * size.head_dim * size.dtype.itemsize


def _cache(size: Size) -> Inputs:
    """Return one layer's queries, cache and lengths."""
    stored = {name: size.normal(size.batch, size.kv_heads, size.context, size.head_dim) for name in ("k", "v")}
    query = size.normal(size.batch, size.heads, size.rows, size.head_dim)
    return stored | {"q": query, "lengths": torch.tensor(size.lengths, device=size.device)}


def _budget(size: Size, block: int) -> int:
    """Return the budget in tokens, whole blocks.

    Raises:
        NotImplementedError: it is under one block or covers the context, so that nothing is selected.
    """
    budget = (size.budget_tokens or 0) // block * block
    if budget < block or budget >= size.context:
        raise NotImplementedError(
            f"a budget of {size.budget_tokens} tokens leaves nothing to select of {size.context} in blocks of {block}"
        )
    return budget


def whole_mask(size: Size) -> Tensor:
    """Return which of all stored keys the last rows see, causally or in a tree, ``[T, S]`` bool."""
    own = size.whole(size.rows, size.rows, value=1).bool().tril() if size.mask is None else size.mask
    return torch.cat((own.new_ones(size.rows, size.context - size.rows), own), dim=1)
