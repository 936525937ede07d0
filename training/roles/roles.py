"""From scores to roles: exactly as many retrieval heads as asked for."""

from __future__ import annotations

from collections.abc import Sequence

from longdecode.methods.head_roles import Roles

Scores = Sequence[Sequence[float]]
"""``[L][Hkv]``, higher is more retrieval."""


def projected(scores: Scores, target_heads: int, first_layer: int) -> Roles:
    """All heads below ``first_layer``, and the best-scored others up to ``target_heads`` in all; ties by place."""
    heads = len(scores[0])
    free = [(layer, head) for layer in range(first_layer, len(scores)) for head in range(heads)]
    ranked = sorted(free, key=lambda at: (-scores[at[0]][at[1]], at))
    chosen = set(ranked[: max(0, target_heads - first_layer * heads)])
    return tuple(
        tuple(layer < first_layer or (layer, head) in chosen for head in range(heads)) for layer in range(len(scores))
    )
