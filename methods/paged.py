"""Pages by the upper bound of their keys' scores: what the methods that select like Quest share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.kv_cache import KVCache, WholeCache
from longdecode.engine.token_block import BlockHeads
from longdecode.kernels.page_minmax import PageBounds, build_page_minmax, rebuild_page_minmax
from longdecode.kernels.page_score import page_score
from longdecode.kernels.topk_select import topk_select
from longdecode.methods.budgeted import Share, StoringMethod


@dataclass(frozen=True, slots=True)
class PageParams:
    """Knobs that the methods of pages share."""

    group_score: Literal["max", "sum", "mean"] = "max"
    page_size: Annotated[int, Field(ge=1)] = 16
    dense_layers: Annotated[int, Field(ge=0)] = 2
    share: Share = None


@dataclass(slots=True)
class Pages:
    """The pages of a generation: bounds by sparse layer, pages in use and pages to read of each row.

    ``used`` ``[B]`` int64. ``row_k`` ``[B]`` int64 where the budget grows, ``None`` where it is fixed. ``width`` pages
    fit the longest list that the cache can come to.
    """

    bounds: dict[int, PageBounds]
    used: Tensor
    width: int
    row_k: Tensor | None = None


class PagedMethod(StoringMethod):
    """Methods whose ``Params`` are ``PageParams`` and more, and whose state has ``pages``.

    The current page is always read, with the best others by ``sum_i max(q_i m_i, q_i M_i)``, one list per KV head.
    """

    @classmethod
    def minimum_budget(cls, params: Any) -> tuple[int, str]:
        """Return two pages: the current one and one that is chosen."""
        return 2 * params.page_size, f"2 pages of {params.page_size}"

    @property
    def block_tokens(self) -> int:
        """Return the tokens of a page."""
        return int(self.params.page_size)

    @abstractmethod
    def pages_of(self, state: DecodeState) -> Pages:
        """Return the pages among what the method keeps."""

    def sparse_layers(self) -> tuple[int, ...]:
        """Return the layers that choose."""
        return tuple(n for n in range(self.config.num_layers) if n not in self.dense_layers())

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return selected pages, of which the current one is part full, and the bounds of every page."""
        read = self.listed_tokens(context_tokens)
        return self.layered_traffic(context_tokens, read, self.bounds_bytes(context_tokens, bytes_per_element),
                                    bytes_per_element)  # fmt: skip

    def listed_tokens(self, context_tokens: int) -> int:
        """Return the tokens of one list: whole pages and the current one."""
        page = self.params.page_size
        used, listed = -(-context_tokens // page), self.budget_at(context_tokens) // page
        return context_tokens - max(0, used - listed) * page

    def bounds_bytes(self, context_tokens: int, bytes_per_element: int) -> int:
        """Return the bytes of every page's bounds in the sparse layers, which a step scores, and of scales."""
        pages = -(-context_tokens // self.params.page_size)
        sizes = [self.element_bytes(layer, bytes_per_element) for layer in self.sparse_layers()]
        return pages * self.token_bytes(sum(sizes)) + self.scale_bytes

    def make_pages(self, cache: KVCache) -> Pages:
        """Compute the bounds of every page in each sparse layer, of the keys as they are stored."""
        cache, page = cast(WholeCache, cache), self.params.page_size
        bounds = {n: build_page_minmax(cache.keys(n), cache.lengths, page) for n in self.sparse_layers()}
        return Pages(bounds, cache.lengths, self.budget_at(cache.capacity) // page)

    def before_step(self, state: DecodeState) -> None:
        """Count the pages in use, the current token's among them, and those that a growing budget reads."""
        pages, size = self.pages_of(state), self.params.page_size
        pages.used = -(-state.kv_lengths // size)
        pages.row_k = None if self.growth is None else self.growth.of(state.kv_lengths) // size

    def append(self, layer: int, heads: BlockHeads, state: DecodeState) -> Tensor:
        """Store the tokens and widen their pages' bounds by the new keys."""
        return state.cache.append(layer, heads, self.pages_of(state).bounds.get(layer), self.params.page_size)

    def after_rewrite(self, state: DecodeState, starts: Tensor, width: int) -> None:
        """Compute the bounds of the touched pages anew."""
        for layer in self.pages_of(state).bounds:
            self.rebuild_bounds(layer, state, state.dense.lengths, starts, width)

    def rebuild_bounds(self, layer: int, state: DecodeState, lengths: Tensor, starts: Tensor, width: int) -> None:
        """Compute the bounds of the pages that ``width`` slots from ``starts`` ``[B]`` on touch anew, in one layer."""
        bounds, keys = self.pages_of(state).bounds[layer], state.dense.keys(layer)
        rebuild_page_minmax(bounds, keys, lengths, starts, width, self.params.page_size)

    def choose(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Return the top pages for the queries ``[B, Hq, 1, D]``; ``None`` in dense layers."""
        pages = self.pages_of(state)
        if layer not in pages.bounds:
            return None
        scores = self.page_scores(layer, q, state, self.params.group_score)
        indices, counts = topk_select(scores, pages.width, pages.used, keep_last=1, row_k=pages.row_k)
        return Selection(indices, counts, block_size=self.params.page_size)

    def page_scores(self, layer: int, q: Tensor, state: DecodeState, group: str | None) -> Tensor:
        """Return the upper bounds of a sparse layer's pages; see ``page_score``."""
        pages = self.pages_of(state)
        return page_score(q, pages.bounds[layer], pages.used, group=group, k_scale=state.whole.key_scale(layer))
