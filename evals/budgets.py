"""Budgets: tokens a query may read, or bytes that a step may, as a configuration writes them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator
from typing_extensions import TypedDict

from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.evals.config_values import MOST, Count, Distinct, wrong

if TYPE_CHECKING:
    from longdecode.engine.attention import AttentionMethod

TOLERANCE = 0.05
"""A native budget may read this share less than the bytes asked for; what it reads is in its records."""
_BYTES = "bytes="


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens a query may read per KV head: a fraction of the context (float), a number (int), or all (``None``).

    With ``of_bytes`` the value is a share of the bytes that Full reads in a step, selector included; each method's
    budget for it follows from its traffic model: see ``native_budget``.
    """

    value: float | int | None
    of_bytes: bool = False

    @property
    def text(self) -> str:
        """The budget as tables print it: ``0.1``, ``1024``, ``bytes=0.25`` or ``full``."""
        return "full" if self.value is None else f"{_BYTES if self.of_bytes else ''}{self.value}"

    def tokens(self, context_tokens: int) -> int | None:
        """Return the budget in tokens at this context; fractions are rounded up, in exact arithmetic.

        Raises:
            ConfigError: the budget is in bytes, which are no tokens before a method is named.
        """
        if self.of_bytes:
            raise ConfigError(f"the budget {self.text} has no tokens of its own: a method's traffic model gives them")
        if isinstance(self.value, float):
            return math.ceil(Fraction(str(self.value)) * context_tokens)
        return self.value


FULL_BUDGET = Budget(None)


def native_budget(
    build: Callable[[int], AttentionMethod], share: float, context: int, full_bytes: int, itemsize: int
) -> int:
    """Return a method's largest budget, in tokens per KV head, that reads at most a share of Full's bytes a step.

    Keys, values and selector metadata count.

    Args:
        build: makes the method for a budget in tokens; bytes must not fall as the budget grows.
        share: of ``full_bytes``, over 0 and at most 1.
        context: tokens in the cache.
        full_bytes: what Full reads in a step at that context.
        itemsize: bytes of a stored element.

    Raises:
        UnsupportedCellError: the method reads more at its smallest budget, or jumps over the share by more than
            ``TOLERANCE`` of it.
    """

    def price(tokens: int) -> int:
        try:
            return build(tokens).traffic_per_token(context, itemsize).total_bytes
        except UnsupportedCellError:
            return 0

    tokens = bisect_right(range(1, context + 1), round(share * full_bytes), key=price)
    costs = {at: cost for at in (tokens, tokens + 1) if 1 <= at <= context and (cost := price(at))}
    if costs.get(tokens, 0) >= (1 - TOLERANCE) * share * full_bytes:
        return tokens
    near = " and ".join(f"{100 * cost / full_bytes:.1f} % at {at}" for at, cost in costs.items()) or "none runs"
    raise UnsupportedCellError(f"no budget reads {100 * share:g} % of Full's bytes at {context} tokens; nearest {near}")


def token_share(text: str) -> float | None:
    """Return the share of the context that a budget's text gives, ``None`` where it gives tokens, bytes or all."""
    return None if text == "full" or text.isdigit() or text.startswith(_BYTES) else float(text)


def _budget(value: Any) -> Budget:
    if isinstance(value, Mapping) and set(value) == {"bytes"}:
        share = value["bytes"]
        if isinstance(share, float) and 0 < share <= 1:
            return Budget(share, of_bytes=True)
        raise wrong(f"bytes: {share!r}; a share of the bytes that Full reads (0 < float <= 1) is needed")
    fraction = isinstance(value, float) and 0 < value <= 1
    if fraction or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST):
        return Budget(value)
    raise wrong(f"{value!r}; a share of the context (0.1), tokens (1 to {MOST:,}) or {{bytes: 0.25}} is needed")


def _tokens_only(budgets: tuple[Budget, ...]) -> tuple[Budget, ...]:
    for budget in budgets:
        if budget.of_bytes:
            raise wrong(f"{budget.text}; times are taken at budgets in tokens: give the native ones")
    return budgets


class _Bytes(TypedDict):
    bytes: Annotated[float, Field(gt=0, le=1, description="A share of the bytes that Full reads in a step.")]


_Fraction = Annotated[float, Field(gt=0, le=1, description="A fraction of the context.")]
Budgets = Annotated[
    tuple[Annotated[Budget, PlainValidator(_budget, json_schema_input_type=Count | _Fraction | _Bytes)], ...],
    Field(min_length=1),
    Distinct,
]
TokenBudgets = Annotated[Budgets, AfterValidator(_tokens_only)]
"""Budgets of throughput tests."""
