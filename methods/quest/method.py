"""Quest: read the pages whose key bounds promise the highest scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import DecodeState, Selection, Traffic
from longdecode.engine.kv_cache import KVCache
from longdecode.kernels.page_minmax import PageBounds, build_page_minmax, update_page_minmax
from longdecode.kernels.page_score import page_score
from longdecode.kernels.topk_select import topk_select
from longdecode.methods.budgeted import BudgetedMethod
from longdecode.methods.current_token import always_keep

_MINIMUM_PAGES = {"kernel": 2, "accuracy_script": 3}


@dataclass(frozen=True, slots=True)
class QuestParams:
    """Knobs of Quest."""

    variant: Literal["kernel", "accuracy_script"] = "kernel"
    group_score: Literal["max", "sum", "mean"] = "max"
    page_size: Annotated[int, Field(ge=1)] = 16
    dense_layers: Annotated[int, Field(ge=0)] = 2


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

    def make_extra(self, cache: KVCache) -> dict[int, PageBounds]:
        """Page bounds of each sparse layer."""
        layers = sorted(set(range(self.config.num_layers)) - self.dense_layers())
        return {n: build_page_minmax(cache.keys(n), cache.lengths, self.params.page_size) for n in layers}

    def on_append(self, layer: int, k: Tensor, state: DecodeState) -> None:
        """Widen the current page's bounds by the new key."""
        if layer in state.extra:
            update_page_minmax(state.extra[layer], k, state.cache.lengths, self.params.page_size)

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Top pages; dense in the first layers."""
        if layer not in state.extra:
            return None
        page = self.params.page_size
        used = -(-state.cache.visible_lengths() // page)
        if self.params.variant == "kernel":
            scores = page_score(q, state.extra[layer], used, group=self.params.group_score)
            scores = always_keep(scores, used - 1)
        else:
            scores = page_score(q, state.extra[layer], used)
        indices, counts = topk_select(scores, self.pages, used)
        return Selection(indices, counts, block_size=page)


METHOD = Quest
