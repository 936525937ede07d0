"""Shared by speculative methods: dense attention verifies, and a budget binds what drafts alone."""

from __future__ import annotations

from typing import Any, Self

from longdecode.engine.attention import AttentionMethod, Traffic
from longdecode.engine.errors import ConfigError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import PrefillObserver
from longdecode.engine.speculation import DraftTree, Speculation
from longdecode.methods.budgeted import BudgetedMethod, build_params


class Drafting(AttentionMethod):
    """A method that reads everything in every step and drafts by ``draft``."""

    draft: Speculation
    """The drafter, and the rule of acceptance."""

    def dense_heads(self) -> tuple[frozenset[int], ...]:
        """Return all heads: what verifies reads everything."""
        return (frozenset(range(self.config.num_kv_heads)),) * self.config.num_layers

    def observers(self) -> tuple[PrefillObserver, ...]:
        """Return those of what drafts."""
        return self.draft.observers()

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return the bytes of a step that keeps one token, the most that a token can cost."""
        whole = super().traffic(context_tokens, bytes_per_element)
        drafted = self.draft.traffic(context_tokens, bytes_per_element) or Traffic(0)
        return Traffic(whole.kv_bytes + drafted.kv_bytes, drafted.metadata_bytes, at_most=True)


class SpeculativeMethod(Drafting, BudgetedMethod):
    """A speculative method whose drafter reads ``budget_tokens`` per KV head."""


class UnbudgetedSpeculation(Drafting):
    """A speculative method whose drafter reads no keys of its own, so that there is nothing to budget."""

    def __init__(self, params: Any, config: ModelConfig):
        super().__init__(params, config)

    @classmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: Any) -> Self:
        """See ``AttentionMethod.from_budget``; a budget is refused, because it would not be honoured."""
        if budget_tokens is not None:
            raise ConfigError(f"{cls.name} drafts without attention and takes no budget, got {budget_tokens} tokens")
        return cls(build_params(cls.name, cls.Params, overrides), config)


def parse_tree(method: str, text: str) -> DraftTree:
    """Return the tree that a parameter such as ``1,3,3,3`` names: children of a row, depth by depth.

    Raises:
        ConfigError: it is no list of whole numbers of 1 or more, or the tree has more than 1,024 rows.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ConfigError(f"{method}: tree = {text!r}; children by depth are needed, such as '1,3,3,3'")
    rows = level = 1
    for part in parts:
        level *= int(part)
        rows += level
    if rows > 1024:
        raise ConfigError(f"{method}: tree = {text!r} has {rows:,} rows; at most 1,024 are verified in a step")
    return DraftTree.branching([int(part) for part in parts])
