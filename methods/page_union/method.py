"""Union of pages: a step reads what it chooses and what the steps just before it chose."""

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
class PageUnionParams(PageParams):
    """Knobs of the union of pages."""

    window: Annotated[int, Field(ge=1, le=32)] = 2


@dataclass(slots=True)
class Choices:
    """Pages, and the last step that chose each, ``[L, B, Hkv, P]`` int64 by position, -1 for none."""

    pages: Pages
    chosen_at: Tensor


class PageUnion(PagedMethod):
    """Quest's pages of the current token and of the ``window - 1`` tokens before it.

    The current query gets the exposure that RetroAttention gives to past ones, and pays for it in pages read.

    Source: a control that a reviewer of RetroAttention (arXiv 2508.09001) asked for; the definition is this project's.
    """

    name: ClassVar[str] = "page_union"
    Params: ClassVar[type] = PageUnionParams
    params: PageUnionParams

    def pages_of(self, state: DecodeState) -> Pages:
        """Return the pages beside the choices."""
        return cast(Pages, state.method_state.pages)

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return choices without a page in common, the most that a step may read."""
        page = self.params.page_size
        used, listed = -(-context_tokens // page), self.budget_at(context_tokens) // page
        read = context_tokens - max(0, used - listed * self.params.window) * page
        bounds = self.bounds_bytes(context_tokens, bytes_per_element)
        most = self.layered_traffic(context_tokens, read, bounds, bytes_per_element)
        return Traffic(most.kv_bytes, most.metadata_bytes, at_most=self.params.window > 1)

    def make_method_state(self, cache: KVCache) -> Choices:
        """Compute the page bounds; nothing is chosen yet."""
        pages = -(-cache.shape.capacity // self.params.page_size)
        size = (self.config.num_layers, cache.batch, self.config.num_kv_heads, pages)
        return Choices(self.make_pages(cache), torch.full(size, -1, device=cache.device, dtype=torch.int64))

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Mark what is chosen now; list, in order, all pages that were within the window."""
        own = self.choose(layer, q, state)
        if own is None or self.params.window == 1:
            return own
        choices: Choices = state.method_state
        chosen_at, newest = choices.chosen_at[layer], (state.kv_lengths - 1)[:, None, None]
        listed = torch.arange(own.indices.shape[2], device=q.device) < own.counts[..., None]
        # Entries past the count name page 0: they raise nothing there.
        now = torch.where(listed, newest, -1)
        chosen_at.scatter_reduce_(2, torch.where(listed, own.indices, 0), now, "amax")
        member = (chosen_at >= 0) & (chosen_at > newest - self.params.window)
        order = member.cumsum(dim=2)
        width = min(chosen_at.shape[2], choices.pages.width * self.params.window)
        indices = torch.zeros(*member.shape[:2], width + 1, device=q.device, dtype=torch.int64)
        place = torch.arange(member.shape[2], device=q.device).expand_as(order)
        # A finished row of a draft chooses several times at one position.
        indices.scatter_(2, torch.where(member, (order - 1).clamp(max=width), width), place)
        counts = order[..., -1].clamp(max=width)
        return Selection(indices[..., :width], counts, block_size=self.params.page_size, uneven=True)

    def after_rewrite(self, state: DecodeState, starts: Tensor, width: int) -> None:
        """Forget, beside the bounds, what tokens chose that are no longer there."""
        super().after_rewrite(state, starts, width)
        chosen_at = state.method_state.chosen_at
        chosen_at.masked_fill_(chosen_at >= state.dense.lengths[:, None, None], -1)


METHOD = PageUnion
