"""Find each method's native budget for a target of bytes a step, selector included."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.budgets import bytes_share

BFLOAT16_BYTES = 2
TOLERANCE = 0.05
"""A native budget may read this share less than the bytes asked for; what it reads is in its records."""


class PricedBudget(NamedTuple):
    """A native budget in tokens per KV head, and the bytes a step reads at it: keys, values and selector metadata."""

    tokens: int
    total_bytes: int


def bracket(
    build: Callable[[int], AttentionMethod], context: int, target_bytes: int, itemsize: int = BFLOAT16_BYTES
) -> tuple[PricedBudget | None, PricedBudget | None]:
    """Return the largest budget that reads at most the target, and the smallest that reads at least as much.

    Args:
        build: makes the method for a budget in tokens; bytes must not fall as the budget grows.
        context: tokens in the cache.
        target_bytes: bytes a step, ``Traffic.total_bytes``.
        itemsize: bytes of a stored element.
    """

    def price(tokens: int) -> int:
        try:
            return build(tokens).traffic_per_token(context, itemsize).total_bytes
        except UnsupportedCellError:
            return 0

    def priced(tokens: int) -> PricedBudget | None:
        cost = price(tokens) if 1 <= tokens <= context else 0
        return PricedBudget(tokens, cost) if cost else None

    budgets = range(1, context + 1)
    below, above = bisect_right(budgets, target_bytes, key=price), bisect_left(budgets, target_bytes, key=price) + 1
    return priced(below), priced(above)


class NativeBudgets:
    """A method's budgets in tokens for shares of the bytes that Full reads in a step, by budget text and context.

    Args:
        build: makes the method for a budget in tokens.
        config: shape of the model.
        itemsize: bytes of a stored element.
    """

    def __init__(
        self, build: Callable[[int | None], AttentionMethod], config: ModelConfig, itemsize: int = BFLOAT16_BYTES
    ):
        self.build = build
        self.config = config
        self.itemsize = itemsize
        self._known: dict[tuple[str, int], int] = {}

    def __getitem__(self, place: tuple[str, int]) -> int:
        """Return the largest budget that reads no more than the share, within ``TOLERANCE`` of it.

        Raises:
            UnsupportedCellError: the method reads more at its smallest budget, or jumps over the share.
        """
        if place not in self._known:
            self._known[place] = self._solved(*place)
        return self._known[place]

    def _solved(self, text: str, context: int) -> int:
        share = bytes_share(text)
        if share is None:
            raise ConfigError(f"{text}: no budget in bytes")
        full = context * self.config.kv_bytes_per_token(self.itemsize)
        below, above = bracket(self.build, context, round(share * full), self.itemsize)
        if below is not None and below.total_bytes >= (1 - TOLERANCE) * share * full:
            return below.tokens
        sides = [f"{100 * side.total_bytes / full:.1f} % at {side.tokens} tokens" for side in (below, above) if side]
        least = "reads more at every budget: " if below is None else "jumps over it: "
        raise UnsupportedCellError(
            f"no budget reads {100 * share:g} % of Full's bytes at {context} tokens; the method "
            f"{least}{' and '.join(sides) or 'none runs'}"
        )
