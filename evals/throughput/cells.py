"""The cells of a throughput job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.records import Bench, Key, SpeedRecord, Stage, op_sizes
from longdecode.evals.store import Store
from longdecode.evals.throughput.statistics import good_times, median


@dataclass(frozen=True, slots=True)
class SpeedCell:
    """One thing to time at one size; see ``SpeedRecord`` for the fields."""

    bench: Bench
    subject: str
    label: str
    stage: Stage
    context: int
    batch: int
    budget: Budget = FULL_BUDGET
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Tell this cell's record from the job's others."""
        sizes = op_sizes(self.bench, self.params).values()
        return self.bench, self.subject, self.label, self.stage, self.context, self.batch, self.budget.text, *sizes

    @property
    def budget_tokens(self) -> int | None:
        """The budget in tokens at this cell's context."""
        return self.budget.tokens(self.context)


SpeedStore = Store[SpeedCell, SpeedRecord]


def told(record: SpeedRecord) -> str:
    """Describe a record in one line for the log: its cell, and its median or its status."""
    where = f"{record.bench} {record.method}/{record.variant} {record.stage} context={record.context}"
    where += f" batch={record.batch} budget={record.budget}"
    where += "".join(f" {name}={value}" for name, value in op_sizes(record.bench, record.params).items())
    if record.status != "ok":
        return f"{where}: {record.status}: {record.reason}"
    times = good_times(record.samples)
    disturbed = len(record.samples) - len(times)
    text = f"{where}: {median([us for us, _ in times]):,.1f} us" if times else f"{where}: every sample disturbed"
    ratios = [reference / us for us, reference in times if reference is not None]
    if ratios and record.reference:
        text += f", {median(ratios):.3f}x of {record.reference}"
    return text + (f" ({disturbed} of {len(record.samples)} disturbed)" if disturbed else "")
