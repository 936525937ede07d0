"""Tokens that AdaKV keeps."""

from __future__ import annotations

import math
from fractions import Fraction

from longdecode.methods.rule import best
from longdecode.methods.window_rule import WindowRule


class AdaRule(WindowRule):
    """SnapKV's tokens, in numbers by head: a sure part, and a part by the head's tokens among the best of all heads."""

    def chosen(self, layer: int, n: int, base: int, scores: list[list[float]]) -> list[int]:
        """Return each KV head's number; their sum is at most that of equal numbers."""
        every = [score for row in scores for score in row]
        among = best(every, base * len(scores))
        sure = Fraction(str(self.params.floor_share))
        counts = []
        for head, row in enumerate(scores):
            own = sum(head * len(row) <= place < (head + 1) * len(row) for place in among)
            counts.append(min(len(row), math.floor(sure * base) + math.floor((1 - sure) * own)))
        return counts


RULE = AdaRule
