"""Derive from the role map, by layer, the heads that read everything and those whose scores are needed."""

from __future__ import annotations

from dataclasses import dataclass

from longdecode.methods.head_roles import Roles


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One layer's KV heads: ``retrieval`` read everything, of which ``choosing`` choose for those below."""

    retrieval: frozenset[int]
    choosing: tuple[int, ...]
    heads: int

    @property
    def dense(self) -> bool:
        """Return true for an ordinary dense layer: every head reads everything and none chooses."""
        return len(self.retrieval) == self.heads and not self.choosing

    @property
    def mixed(self) -> bool:
        """Return true where some heads read everything and others a list."""
        return 0 < len(self.retrieval) < self.heads

    def score_rows(self) -> list[int]:
        """For each KV head the row of the layer's scores it fills, -1 for none."""
        return [self.choosing.index(head) if head in self.choosing else -1 for head in range(self.heads)]


def layer_plans(roles: Roles) -> tuple[LayerPlan, ...]:
    """The plan of each layer.

    A retrieval head chooses only where the same head one layer below is sparse: in the last layer nobody reads a
    choice, and a retrieval head below would make its own before anyone else could.
    """
    plans = []
    for layer, row in enumerate(roles):
        below = roles[layer + 1] if layer + 1 < len(roles) else (True,) * len(row)
        retrieval = frozenset(head for head, retrieves in enumerate(row) if retrieves)
        choosing = tuple(head for head in sorted(retrieval) if not below[head])
        plans.append(LayerPlan(retrieval, choosing, len(row)))
    return tuple(plans)


def default_retrieval_heads(layers: int, kv_heads: int) -> int:
    """Return the default number of retrieval heads: the paper's share, 32 of Llama-3-8B's 256.

    Layer 0 and one head more at least, without which there would be no roles.
    """
    return min(layers * kv_heads, max(kv_heads + 1, round(layers * kv_heads / 8)))
