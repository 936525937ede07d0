"""Quest: read the pages whose key bounds promise the highest scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.kv_cache import KVCache
from longdecode.kernels.topk_select import topk_select
from longdecode.methods.budgeted import KvCacheDtype
from longdecode.methods.paged import PagedMethod, PageParams, Pages

_MINIMUM_PAGES = {"kernel": 2, "accuracy_script": 3}


@dataclass(frozen=True, slots=True)
class QuestParams(PageParams):
    """Knobs of Quest."""

    variant: Literal["kernel", "accuracy_script"] = "kernel"
    kv_cache_dtype: KvCacheDtype = "auto"


class Quest(PagedMethod):
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

    def pages_of(self, state: DecodeState) -> Pages:
        """Return all that the method keeps."""
        return state.method_state

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return selected pages and bounds; the accuracy script's lists may hold full pages alone, one a query head."""
        if self.params.variant == "kernel":
            return super().traffic(context_tokens, bytes_per_element)
        listed = self.budget_at(context_tokens) // self.params.page_size * self.params.page_size
        read = min(context_tokens, listed) * self.config.group_size
        bounds = self.bounds_bytes(context_tokens, bytes_per_element)
        return self.layered_traffic(context_tokens, read, bounds, bytes_per_element)

    def make_method_state(self, cache: KVCache) -> Pages:
        """Compute the page bounds of each sparse layer."""
        return self.make_pages(cache)

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Top pages; dense in the first layers."""
        pages: Pages = state.method_state
        if self.params.variant == "kernel" or layer not in pages.bounds:
            return self.choose(layer, q, state)
        scores = self.page_scores(layer, q, state, None)
        indices, counts = topk_select(scores, pages.width, pages.used, row_k=pages.row_k)
        return Selection(indices, counts, block_size=self.params.page_size)


METHOD = Quest
