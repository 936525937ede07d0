"""Selection reuse: Quest whose pages are chosen now and then, and kept in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.kv_cache import KVCache
from longdecode.methods.paged import PagedMethod, PageParams, Pages


@dataclass(frozen=True, slots=True)
class SelectionReuseParams(PageParams):
    """Knobs of selection reuse."""

    interval: Annotated[int, Field(ge=1, le=1024)] = 4


@dataclass(slots=True)
class Chosen:
    """Pages, and the choice that each layer keeps.

    ``indices`` ``[L, B, Hkv, N]`` and ``counts`` ``[L, B, Hkv]`` int64; ``age`` ``[L, B]`` int64: steps since the layer
    chose, -1 before the first.
    """

    pages: Pages
    indices: Tensor
    counts: Tensor
    age: Tensor


class SelectionReuse(PagedMethod):
    """Quest's pages, chosen every ``interval`` steps.

    In between a step reads the pages of that choice and those that have begun since, the current one last.

    Source: the control of RetroAttention (arXiv 2508.09001); LServe (arXiv 2502.14866), reusable page selector;
    deviations in card.yaml.
    """

    name: ClassVar[str] = "selection_reuse"
    Params: ClassVar[type] = SelectionReuseParams
    params: SelectionReuseParams

    def pages_of(self, state: DecodeState) -> Pages:
        """Return the pages beside the choices."""
        return cast(Pages, state.method_state.pages)

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return the longest list: steps soon after a choice read less."""
        most = super().traffic(context_tokens, bytes_per_element)
        return Traffic(most.kv_bytes, most.metadata_bytes, at_most=self._spare > 0)

    def listed_tokens(self, context_tokens: int) -> int:
        """Return the longest list: a choice, and every page that may begin before the next."""
        page = self.params.page_size
        used = -(-context_tokens // page)
        return context_tokens - max(0, used - self.budget_at(context_tokens) // page - self._spare) * page

    @property
    def _spare(self) -> int:
        """Pages that may begin between two choices."""
        return -(-(self.params.interval - 1) // self.params.page_size)

    def make_method_state(self, cache: KVCache) -> Chosen:
        """Compute the page bounds; nothing is chosen yet."""
        pages, config, device = self.make_pages(cache), self.config, cache.device
        lists = (config.num_layers, cache.batch, config.num_kv_heads)
        return Chosen(
            pages,
            torch.zeros(*lists, pages.width + self._spare, device=device, dtype=torch.int64),
            torch.zeros(lists, device=device, dtype=torch.int64),
            torch.full(lists[:2], -1, device=device, dtype=torch.int64),
        )

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Choose, and take it where a choice is due; otherwise the last one and the page that has just begun."""
        fresh = self.choose(layer, q, state)
        if fresh is None:
            return None
        chosen: Chosen = state.method_state
        indices, counts, age = chosen.indices[layer], chosen.counts[layer], chosen.age[layer]
        due = (age < 0) | (age + 1 >= self.params.interval)
        age.copy_(torch.where(due, 0, age + 1))
        # A page that begins now is behind all others, so that the list stays in order.
        newest = state.kv_lengths - 1
        began = (newest % self.params.page_size == 0)[:, None, None]
        place = counts[..., None].clamp(max=indices.shape[2] - 1)
        page = torch.where(began, (newest // self.params.page_size)[:, None, None], indices.gather(2, place))
        indices.scatter_(2, place, page)
        counts.copy_(torch.where(due[:, None], fresh.counts, counts + began[..., 0]))
        width = fresh.indices.shape[2]
        indices[..., :width].copy_(torch.where(due[:, None, None], fresh.indices, indices[..., :width]))
        return Selection(indices, counts, block_size=self.params.page_size)


METHOD = SelectionReuse
