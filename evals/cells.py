"""The cells of a quality job."""

from __future__ import annotations

from dataclasses import dataclass

from longdecode.evals.budgets import Budget
from longdecode.evals.records import Key


@dataclass(frozen=True, slots=True)
class Cell:
    """One task at one context and budget, for the model, label and suite of the job."""

    task: str
    context: int
    budget: Budget

    @property
    def key(self) -> Key:
        """Tell this cell's records from those of the label's other cells."""
        return self.task, self.context, self.budget.text
