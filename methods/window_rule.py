"""State which tokens a cut of the prompt by its last queries keeps: the rule of SnapKV and those that follow it."""

from __future__ import annotations

from torch import Tensor

from longdecode.methods.rule import EvictingRule, Positions, best, mean_of


class WindowRule(EvictingRule):
    """Cut the prompt once, by the attention of its last queries; keep every token decoded after it.

    The score of an earlier token is the sum of its attention weights over the last ``window`` queries, then the mean
    over the query heads of the group, pooled over neighbours (``kernel_size`` tokens, average with zeros past the ends,
    or maximum); one set per KV head. A prompt shorter than the budget is kept whole.
    """

    def keep_prompt(self, layer: int, weights: Tensor) -> list[Positions]:
        """Return the window and, of the tokens before it, each head's best."""
        n = weights.shape[1]
        budget = self.budget_at(n)
        if n < budget:
            return [range(n)] * self.config.num_kv_heads
        window = min(self.params.window, budget)
        sums = weights[:, n - window :, : n - window].sum(dim=1).tolist()
        scores = [self.pool(mean_of([sums[i] for i in self.group(head)])) for head in range(self.config.num_kv_heads)]
        counts = self.chosen(layer, n, budget - window, scores)
        return [[*best(row, count), *range(n - window, n)] for row, count in zip(scores, counts, strict=True)]

    def chosen(self, layer: int, n: int, base: int, scores: list[list[float]]) -> list[int]:
        """Return how many tokens before the window each KV head keeps; ``base`` is their mean's bound."""
        return [base] * len(scores)

    def pool(self, row: list[float]) -> list[float]:
        """Return the average or maximum over each token's neighbourhood."""
        half, size = self.params.kernel_size // 2, self.params.kernel_size
        around = [row[max(0, i - half) : i + half + 1] for i in range(len(row))]
        return [max(part) if self.params.pooling == "max" else sum(part) / size for part in around]

    def keep(self, layer: int, stored: list[Positions], weights: Tensor) -> list[Positions]:
        """Drop nothing after the prompt."""
        return stored

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return 0: steps choose nothing."""
        return 0
