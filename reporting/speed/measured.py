"""Read the times once: speed.csv and the three tables fitted or subtracted from it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from longdecode.evals.records import op_sizes_text
from longdecode.reporting.wording import budget_order

REFERENCE_METHOD = "full"
OURS = "longdecode"
STOCK_LOOP = "hf_full"
CEILING_METHOD = "free_selection"
STEP_BENCHES = ("decode", "offload", "own_choices")
"""Benches that time whole steps: the first from caches of random values, the others at equal device memory."""
STEP = "step"
SPECULATIVE_STEP = "speculative_step"
_TEXT = (
    *("bench", "model", "weights", "subject", "label", "params", "stage", "budget", "op_sizes", "status", "reason"),
    *("reference", "device", "revision", "axis", "verdict", "part"),
)
_FRAMES: dict[str, tuple[str, ...]] = {
    "growth": (
        *("bench", "model", "subject", "label", "stage", "budget", "axis", "fixed", "points", "slope_us"),
        *("slope_low", "slope_high", "intercept_us", "r2"),
    ),
    "breakeven": ("model", "label", "budget", "axis", "fixed", "value", "verdict"),
    "breakdown": ("model", "label", "budget", "context", "batch", "part", "us"),
}


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The highest read rate that was seen on the device, and what read so fast."""

    gb_per_s: float
    probe: str
    device: str


@dataclass(frozen=True)
class Speed:
    """Everything the pages say about time. Column names and units are those of the CSV files."""

    table: pd.DataFrame
    growth: pd.DataFrame
    breakeven: pd.DataFrame
    breakdown: pd.DataFrame
    order: tuple[str, ...]

    @property
    def models(self) -> list[str]:
        """Models whose decode steps were timed, in the file's order."""
        return list(dict.fromkeys(self.table.loc[self.table["bench"] == "decode", "model"]))

    @property
    def named(self) -> list[str]:
        """Every model that whole steps were timed of, those at equal device memory among them."""
        return list(dict.fromkeys(self._steps["model"]))

    @cached_property
    def labels(self) -> list[str]:
        """Labels whose steps were timed: Full, the configuration's, any other, the ceiling, the stock loop."""
        found = dict.fromkeys(self._steps["label"])
        listed = [*(label for label in self.order if label in found), *(x for x in found if x not in self.order)]
        rank = {REFERENCE_METHOD: 0, CEILING_METHOD: 2, STOCK_LOOP: 3}
        return sorted(listed, key=lambda label: rank.get(self.kind(label), 1))

    def kind(self, label: str) -> str:
        """The registered method behind a label."""
        return self._kinds[label]

    def params(self, label: str) -> dict[str, Any]:
        """The parameters a label was configured with."""
        return dict(json.loads(self._steps.loc[self._steps["label"] == label, "params"].iloc[0]))

    def decode(self, model: str, *stages: str) -> pd.DataFrame:
        """Rows of a model's decode bench (whole steps unless stages are named), in table order."""
        table = self.table
        wanted = stages or (STEP,)
        rows = table[(table["bench"] == "decode") & (table["model"] == model) & table["stage"].isin(wanted)]
        return self.sorted(rows)

    def ok(self, model: str, *stages: str) -> pd.DataFrame:
        """The rows of :meth:`decode` that have numbers."""
        rows = self.decode(model, *stages)
        return rows[rows["status"] == "ok"]

    def kernels(self) -> pd.DataFrame:
        """Rows of the kernel bench: ops in the file's order, then by size, ours first at each."""
        rows = self.table[self.table["bench"] == "kernel"]
        place = {op: number for number, op in enumerate(dict.fromkeys(rows["subject"]))}
        keys = rows.assign(
            _op=rows["subject"].map(place), _rival=rows["label"] != OURS, _budget=rows["budget"].map(budget_order)
        )
        ordered = keys.sort_values(["_op", "context", "batch", "_budget", "op_sizes", "_rival"], kind="stable")
        return ordered.drop(columns=["_op", "_rival", "_budget"])

    def without(self, labels: Collection[str]) -> Speed:
        """The same without the decode steps of some labels, as for overviews."""
        tables = {
            name: frame[~frame["label"].isin(list(labels))]
            for name in ("growth", "breakeven", "breakdown")
            if len(frame := getattr(self, name))
        }
        steps = (self.table["bench"] == "decode") & self.table["label"].isin(list(labels))
        return replace(self, table=self.table[~steps], **tables)

    def sorted(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows by context, batch, method and budget."""
        place = {label: number for number, label in enumerate(self.labels)}
        keys = rows.assign(_place=rows["label"].map(place), _budget=rows["budget"].map(budget_order))
        ordered = keys.sort_values(["context", "batch", "_place", "_budget"], kind="stable")
        return ordered.drop(columns=["_place", "_budget"])

    def budgets(self, model: str) -> list[str]:
        """Budgets that steps were timed at, counts before shares, rising."""
        rows = self.ok(model)
        return sorted(set(rows["budget"]) - {"full"}, key=budget_order)

    def main_budget(self, model: str) -> str | None:
        """The budget for headlines: a count of tokens, as papers give it, else a share; the one most labels have.

        Of several the largest. A budget that some labels alone were timed at must not empty a table of the others.
        """
        rows = self.ok(model)
        labels = {budget: rows.loc[rows["budget"] == budget, "label"].nunique() for budget in self.budgets(model)}
        counts = [budget for budget in labels if budget.isdigit()]
        return max(counts or labels, key=lambda budget: (labels[budget], budget_order(budget)), default=None)

    def ceiling(self) -> Ceiling | None:
        """The fastest probe of the device's read rate."""
        probes = self.table[(self.table["bench"] == "ceiling") & (self.table["status"] == "ok")]
        if probes.empty:
            return None
        best = probes.sort_values("gb_per_s").iloc[-1]
        return Ceiling(float(best["gb_per_s"]), str(best["label"]), str(best["device"]))

    def clocks(self) -> tuple[int, int] | None:
        """Lowest and highest clock of the multiprocessors seen while anything was timed, in MHz."""
        low, high = self.table["sm_clock_low_mhz"].min(), self.table["sm_clock_high_mhz"].max()
        return None if pd.isna(low) or pd.isna(high) else (int(low), int(high))

    @cached_property
    def _steps(self) -> pd.DataFrame:
        whole = self.table["stage"].isin([STEP, SPECULATIVE_STEP])
        return self.table[self.table["bench"].isin(STEP_BENCHES) & whole]

    @cached_property
    def _kinds(self) -> dict[str, str]:
        first = self._steps.drop_duplicates("label")
        return dict(zip(first["label"], first["subject"].astype(str), strict=True))

    @property
    def devices(self) -> list[str]:
        """Devices that anything was timed on."""
        return sorted(set(self.table["device"].dropna()))


def load_speed(folder: Path, order: Sequence[str]) -> Speed | None:
    """Read what was timed; ``None`` where nothing was. A timing without a good sample gets the status ``disturbed``.

    Args:
        folder: a run's results, with ``speed.csv`` and perhaps ``growth.csv``, ``breakeven.csv``, ``breakdown.csv``.
        order: method labels as the configuration lists them.
    """
    if not (folder / "speed.csv").exists():
        return None
    table = _read(folder / "speed.csv")
    if table.empty:
        return None
    empty = (table["status"] == "ok") & (table["n"] == 0)
    table.loc[empty, ["status", "reason"]] = ["disturbed", "every sample was disturbed"]
    if "op_sizes" not in table:  # a run from before the column was made
        table["op_sizes"] = [
            op_sizes_text(bench, json.loads(params))
            for bench, params in zip(table["bench"], table["params"], strict=True)
        ]
    extra = {name: _frame(folder / f"{name}.csv", columns) for name, columns in _FRAMES.items()}
    return Speed(
        table,
        extra["growth"],
        extra["breakeven"],
        extra["breakdown"],
        tuple(order),
    )


def few(values: Sequence[Any], most: int) -> list[Any]:
    """Return at most ``most`` of the values, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(place)] for place in np.linspace(0, len(values) - 1, most)]


def farthest(rows: pd.DataFrame, most: int) -> list[int]:
    """Return at most ``most`` batches in order: those timed at the longest contexts, of equals the smaller ones."""
    pairs = list(zip(rows["batch"].astype(int), rows["context"].astype(int), strict=True))
    reach = {batch: max(context for b, context in pairs if b == batch) for batch, _ in pairs}
    return sorted(sorted(reach, key=lambda batch: (-reach[batch], batch))[:most])


def common_context(speed: Speed, model: str) -> tuple[int, int] | None:
    """Return the largest context that all methods but the stock loop have at the smallest batch, and that batch."""
    rows = speed.ok(model)
    rows = rows[rows["subject"] != STOCK_LOOP]
    if rows.empty:
        return None
    batch = int(rows["batch"].min())
    rows = rows[rows["batch"] == batch]
    timed = {label: set(mine["context"]) for label, mine in rows.groupby("label")}
    shared = set.intersection(*timed.values()) or set(rows["context"])
    return int(max(shared)), batch


def at(rows: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """The rows whose columns have the values given."""
    for name, value in where.items():
        rows = rows[rows[name] == value]
    return rows


def _read(path: Path) -> pd.DataFrame:
    table = pd.read_csv(path, dtype=dict.fromkeys(_TEXT, object), keep_default_na=False, na_values=[""])
    if "variant" in table:
        table = table.rename(columns={"method": "subject", "variant": "label"})
    return table.assign(budget=table["budget"].fillna("full"))


def _frame(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    return _read(path) if path.exists() else pd.DataFrame(columns=list(columns))
