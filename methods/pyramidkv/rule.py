"""Tokens that PyramidKV keeps."""

from __future__ import annotations

from fractions import Fraction

from longdecode.methods.window_rule import WindowRule


class PyramidRule(WindowRule):
    """SnapKV's tokens, in numbers on a line from the first layer to the last whose mean is the budget."""

    def chosen(self, layer: int, n: int, base: int, scores: list[list[float]]) -> list[int]:
        """Return the layer's number, the same for every KV head."""
        last = self.config.num_layers - 1
        if n < 2 * base or last == 0:
            return [base] * len(scores)
        top = min(2 * base - base // self.params.beta, n - self.params.window)
        line = top - Fraction(layer * 2 * (top - base), last)
        return [int(line)] * len(scores)


RULE = PyramidRule
