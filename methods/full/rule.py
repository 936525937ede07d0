"""Tokens that full attention reads."""

from __future__ import annotations

from torch import Tensor

from longdecode.methods.rule import Positions, Rule


class FullRule(Rule):
    """Read everything."""

    def reads(self, layer: int, queries: Tensor, keys: Tensor) -> list[Positions]:
        """Return all positions."""
        return self.everything(keys)


RULE = FullRule
