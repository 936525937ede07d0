"""Budgets: tokens a query may read, or bytes that a step may, as a configuration writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator
from typing_extensions import TypedDict

from longdecode.engine.errors import ConfigError
from longdecode.evals.config_values import MOST, Count, Distinct, wrong

_BYTES = "bytes="


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens a query may read per KV head: a fraction of the context (float), a number (int), or all (``None``).

    With ``of_bytes`` the value is a share of the bytes that Full reads in a step, selector included; each method's
    native budget for it follows from its traffic model: see ``evals.equal_bytes``.
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


def bytes_share(text: str) -> float | None:
    """Return the share of Full's bytes that a budget's text asks for, ``None`` for a budget in tokens."""
    return float(text.removeprefix(_BYTES)) if text.startswith(_BYTES) else None


def token_share(text: str) -> float | None:
    """Return the share of the context that a budget's text gives, ``None`` where it gives tokens, bytes or all."""
    return None if text == "full" or text.isdigit() or text.startswith(_BYTES) else float(text)


def _budget(value: Any) -> Budget:
    if isinstance(value, Budget):
        return value
    if isinstance(value, Mapping) and set(value) == {"bytes"}:
        share = value["bytes"]
        if isinstance(share, float) and 0 < share <= 1:
            return Budget(share, of_bytes=True)
        raise wrong(f"bytes: {share!r}; a share of the bytes that Full reads (0 < float <= 1) is needed")
    fraction = isinstance(value, float) and 0 < value <= 1
    if fraction or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST):
        return Budget(value)
    raise wrong(
        f"{value!r}; a fraction of the context (0 < float <= 1), tokens (whole, 1 to {MOST:,}) or bytes, as {{bytes: "
        "0.25}}, is needed"
    )


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
