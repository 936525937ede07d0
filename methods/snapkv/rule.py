"""Tokens that SnapKV keeps."""

from __future__ import annotations

from torch import Tensor

from longdecode.methods.rule import EvictingRule, Positions, best, mean_of


class SnapKVRule(EvictingRule):
    """Cut the prompt once, by the attention of its last queries; keep every token decoded after it.

    The score of an earlier token is the sum of its attention weights over the last ``window`` queries, then the mean
    over the query heads of the group, pooled over neighbours (``kernel_size`` tokens, average with zeros past the ends,
    or maximum); one set per KV head. A prompt shorter than the budget is kept whole.
    """

    def keep_prompt(self, layer: int, weights: Tensor) -> list[Positions]:
        """Return the window and the best-scored tokens before it, ``budget`` in all."""
        n = weights.shape[1]
        budget = self.budget_at(n)
        window = min(self.params.window, budget)
        if n < budget:
            return [range(n)] * self.config.num_kv_heads
        sums = weights[:, n - window :, : n - window].sum(dim=1).tolist()
        scores = [self.pool(mean_of([sums[i] for i in self.group(head)])) for head in range(self.config.num_kv_heads)]
        return [[*best(row, budget - window), *range(n - window, n)] for row in scores]

    def pool(self, row: list[float]) -> list[float]:
        """Return the average or maximum over each token's neighbourhood."""
        half, size = self.params.kernel_size // 2, self.params.kernel_size
        around = [row[max(0, i - half) : i + half + 1] for i in range(len(row))]
        return [max(part) if self.params.pooling == "max" else sum(part) / size for part in around]

    def keep(self, layer: int, stored: list[Positions], weights: Tensor) -> list[Positions]:
        """Drop nothing after the prompt."""
        return stored


RULE = SnapKVRule
