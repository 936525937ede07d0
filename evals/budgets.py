"""Budgets: tokens a query may read, as a configuration writes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from longdecode.evals.config_values import Count, Distinct, wrong


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens a query may read per KV head: a fraction of the context (float), a number (int), or all (``None``)."""

    value: float | int | None

    @property
    def text(self) -> str:
        """The budget as tables print it: ``0.1``, ``1024`` or ``full``."""
        return "full" if self.value is None else str(self.value)

    def tokens(self, context_tokens: int) -> int | None:
        """Return the budget in tokens at this context; fractions are rounded up, in exact arithmetic."""
        if isinstance(self.value, float):
            return math.ceil(Fraction(str(self.value)) * context_tokens)
        return self.value


FULL_BUDGET = Budget(None)


def _budget(value: Any) -> Budget:
    if isinstance(value, Budget):
        return value
    fraction = isinstance(value, float) and 0 < value <= 1
    if fraction or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return Budget(value)
    raise wrong(f"{value!r}; a fraction of the context (0 < float <= 1) or tokens (whole, >= 1) is needed")


_Fraction = Annotated[float, Field(gt=0, le=1, description="A fraction of the context.")]
Budgets = Annotated[
    tuple[Annotated[Budget, PlainValidator(_budget, json_schema_input_type=Count | _Fraction)], ...],
    Field(min_length=1),
    Distinct,
]
