"""State in plain loops how pages are ranked, for the rules of the methods that select like Quest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from torch import Tensor

from longdecode.methods.rule import Positions, best, tokens_of
from longdecode.methods.stored_rule import StoredRule


class PageRule(StoredRule):
    """Rank the pages of each KV head by the largest upper bound of ``q . k``; the current page is always read."""

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return the tokens of the chosen pages; everything in the first layers."""
        if layer < self.params.dense_layers:
            return self.everything(keys)
        size, n = self.params.page_size, keys.shape[1]
        return [tokens_of(pages, size, n) for pages in self.top_pages(queries, keys)]

    def choosing(self) -> range:
        """Return the layers that choose: all behind the first, or one in so many of them."""
        first, every = self.params.dense_layers, getattr(self.params, "layers_per_list", 1)
        return range(min(self.config.num_layers, first), self.config.num_layers, every)

    def top_pages(self, queries: Tensor, keys: Tensor) -> list[list[int]]:
        """Return the current page and the best others of each KV head, in ascending order."""
        count = self.budget_at(keys.shape[1]) // self.params.page_size
        bounds = [self.page_scores(head, queries, keys) for head in range(self.config.num_heads)]
        joins: dict[str, Callable[[Sequence[float]], float]] = {"max": max, "sum": sum, "mean": fmean}
        join = joins[self.params.group_score]
        lists = []
        for head in range(self.config.num_kv_heads):
            scores = [join(column) for column in zip(*(bounds[i] for i in self.group(head)), strict=True)]
            lists.append([*best(scores[:-1], count - 1), len(scores) - 1])
        return lists

    def page_scores(self, head: int, queries: Tensor, keys: Tensor) -> list[float]:
        """Return ``sum_i max(q_i m_i, q_i M_i)`` of each page for one query head."""
        q, own = queries[head], keys[head // self.config.group_size]
        scores = []
        for start in range(0, len(own), self.params.page_size):
            page = own[start : start + self.params.page_size]
            low, high = q * page.min(dim=0).values, q * page.max(dim=0).values
            scores.append(float(low.maximum(high).sum()))
        return scores

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return the bytes of scales, and of two bounds per page, channel and KV head in the layers that choose."""
        pages = -(-kv_length // self.params.page_size)
        sizes = sum(self.element_bytes(layer, bytes_per_element) for layer in self.choosing())
        return pages * 2 * self.config.num_kv_heads * self.config.head_dim * sizes + self.scale_bytes()
