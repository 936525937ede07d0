"""What a query may read, as a configuration writes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from longdecode.evals.config_values import Section


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens a query may read per KV head: a fraction of the context (float), a number (int), or all (``None``)."""

    value: float | int | None

    @property
    def text(self) -> str:
        """The budget as tables print it: ``0.1``, ``1024`` or ``full``."""
        return "full" if self.value is None else str(self.value)

    def tokens(self, context_tokens: int) -> int | None:
        """The budget in tokens at this context; fractions are rounded up, in exact arithmetic."""
        if isinstance(self.value, float):
            return math.ceil(Fraction(str(self.value)) * context_tokens)
        return self.value


FULL_BUDGET = Budget(None)


def read_budgets(section: Section, name: str = "budgets") -> tuple[Budget, ...]:
    """A non-empty list of budgets under a key.

    Raises:
        ConfigError: an entry is neither a fraction nor a number of tokens.
    """
    budgets = []
    for value in section.sequence(name):
        fraction = isinstance(value, float) and 0 < value <= 1
        count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not (fraction or count):
            section.refuse(
                name, f"{value!r}; a fraction of the context (0 < float <= 1) or tokens (whole, >= 1) is needed"
            )
        budgets.append(Budget(value))
    return tuple(budgets)
