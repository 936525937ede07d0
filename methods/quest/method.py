"""Quest: read the pages whose key bounds promise the highest scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.kv_cache import DenseCache, KVCache
from longdecode.engine.token_block import BlockHeads
from longdecode.kernels.page_minmax import PageBounds, build_page_minmax
from longdecode.kernels.page_minmax.rebuild import rebuild_page_minmax
from longdecode.kernels.page_score import page_score
from longdecode.kernels.topk_select import topk_select
from longdecode.methods.budgeted import BudgetedMethod

_MINIMUM_PAGES = {"kernel": 2, "accuracy_script": 3}


@dataclass(frozen=True, slots=True)
class QuestParams:
    """Knobs of Quest."""

    variant: Literal["kernel", "accuracy_script"] = "kernel"
    group_score: Literal["max", "sum", "mean"] = "max"
    page_size: Annotated[int, Field(ge=1)] = 16
    dense_layers: Annotated[int, Field(ge=0)] = 2


@dataclass(slots=True)
class Pages:
    """Bounds of every page by sparse layer, and how many pages are in use, ``[B]`` int64."""

    bounds: dict[int, PageBounds]
    used: Tensor


class Quest(BudgetedMethod):
    """Top pages by the upper bound ``sum_i max(q_i m_i, q_i M_i)`` of their keys' channel-wise minimum and maximum.

    ``kernel``: the current page is always read, with the best ``budget / page_size - 1`` others, one selection per KV
    head. ``accuracy_script``: every query head picks its own pages and the current page competes.

    Source: Tang et al. 2024 (arXiv 2406.10774), algorithm 1, and its released code; deviations in card.yaml.
    """

    name: ClassVar[str] = "quest"
    Params: ClassVar[type] = QuestParams
    params: QuestParams

    @classmethod
    def minimum_budget(cls, params: QuestParams) -> tuple[int, str]:
        """Two pages (the current one and one that is chosen); the accuracy script's floor is three."""
        pages = _MINIMUM_PAGES[params.variant]
        return pages * params.page_size, f"{pages} pages of {params.page_size}"

    @property
    def pages(self) -> int:
        """Pages read per list."""
        return self.budget_tokens // self.params.page_size

    def dense_layers(self) -> frozenset[int]:
        """The first layers, as in the paper."""
        return frozenset(range(min(self.params.dense_layers, self.config.num_layers)))

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Selected pages, of which the current one is part full, and the bounds of every page in the sparse layers."""
        page = self.params.page_size
        pages = -(-context_tokens // page)
        read = context_tokens
        if pages > self.pages:
            last = context_tokens - (pages - 1) * page if self.params.variant == "kernel" else page
            read = (self.pages - 1) * page + last
        if self.params.variant == "accuracy_script":
            read *= self.config.group_size
        bounds = pages * self.token_bytes(bytes_per_element)
        sparse = self.config.num_layers - len(self.dense_layers())
        return self.layered_traffic(context_tokens, read, sparse * bounds, bytes_per_element)

    def make_method_state(self, cache: KVCache) -> Pages:
        """Compute the page bounds of each sparse layer."""
        cache = cast(DenseCache, cache)
        layers = sorted(set(range(self.config.num_layers)) - self.dense_layers())
        page = self.params.page_size
        return Pages({n: build_page_minmax(cache.keys(n), cache.lengths, page) for n in layers}, cache.lengths)

    def before_step(self, state: DecodeState) -> None:
        """Count the pages in use, the current token's among them."""
        state.method_state.used = -(-state.kv_lengths // self.params.page_size)

    def append(self, layer: int, heads: BlockHeads, state: DecodeState) -> Tensor:
        """Store the tokens and widen their pages' bounds by the new keys."""
        return state.cache.append(layer, heads, state.method_state.bounds.get(layer), self.params.page_size)

    def after_rewrite(self, state: DecodeState, starts: Tensor, width: int) -> None:
        """Compute the bounds of the touched pages anew."""
        for layer, bounds in state.method_state.bounds.items():
            rebuild_page_minmax(
                bounds, state.dense.keys(layer), state.dense.lengths, starts, width, self.params.page_size
            )

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Top pages; dense in the first layers."""
        pages: Pages = state.method_state
        if layer not in pages.bounds:
            return None
        alike = self.params.variant == "kernel"
        scores = page_score(q, pages.bounds[layer], pages.used, group=self.params.group_score if alike else None)
        indices, counts = topk_select(scores, self.pages, pages.used, keep_last=int(alike))
        return Selection(indices, counts, block_size=self.params.page_size)


METHOD = Quest
