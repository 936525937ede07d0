"""Shared by speculative methods: dense attention verifies, and a budget binds what drafts alone."""

from __future__ import annotations

from abc import abstractmethod

from longdecode.engine.attention import Traffic
from longdecode.engine.prefill import PrefillObserver
from longdecode.engine.speculation import Speculation
from longdecode.methods.budgeted import BudgetedMethod


class SpeculativeMethod(BudgetedMethod):
    """A method that reads everything in every step and drafts by ``draft``."""

    @property
    @abstractmethod
    def draft(self) -> Speculation:
        """Return what drafts, and the rule of acceptance."""

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
