"""Which cells the decode bench of one model has, and the method behind each label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.correction import Correction
from longdecode.engine.errors import LongDecodeError
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.records import Stage
from longdecode.evals.run_config import RunConfig
from longdecode.evals.throughput.ceilings import FreeSelection, NoAttention, chooses
from longdecode.evals.throughput.cells import SpeedCell
from longdecode.evals.throughput.spec import CEILING_METHODS, DecodeSpec
from longdecode.methods.registry import get_method

FULL = "full"
HF_LABELS = ("hf_full", "hf_full_static")
SAMPLE_BUDGET = 4096
"""A budget in tokens that every method can honour, for questions whose answer does not depend on it."""


class Labels:
    """Labels of a configuration resolved to methods of one model; the ceilings and ``full`` need no configuring.

    Args:
        model: a key of the configuration's models or a shape; a label's parameters may differ by model.
    """

    def __init__(self, run: RunConfig, model: str):
        self.run = run
        self.model = model

    def method_name(self, label: str) -> str:
        """The registered name behind a label; a ceiling's own."""
        return self.run.methods[label].method if label in self.run.methods else label

    def params(self, label: str) -> Mapping[str, Any]:
        """The parameters that differ from the method's defaults."""
        return self.run.methods[label].params_of(self.model) if label in self.run.methods else {}

    def takes_budget(self, label: str) -> bool:
        """Whether the label is run once a budget."""
        return self.run.methods[label].takes_budget if label in self.run.methods else label in CEILING_METHODS

    def build(self, label: str, budget_tokens: int | None, config: ModelConfig) -> AttentionMethod:
        """The method at a budget.

        Raises:
            UnsupportedCellError: it cannot honour the budget on this model.
        """
        if label == FreeSelection.name:
            return FreeSelection.from_budget(budget_tokens, config)
        if label == NoAttention.name:
            return NoAttention.from_budget(budget_tokens, config)
        return get_method(self.method_name(label)).from_budget(budget_tokens, config, **self.params(label))

    def chooses(self, label: str, config: ModelConfig) -> bool:
        """Whether the label's method selects, so that a step with its selection given can be timed."""
        method = self._sample(label, config)
        return method is not None and chooses(method)

    def correction(self, label: str, config: ModelConfig) -> Correction | None:
        """What the label's method does to its cache every few steps; nothing for most."""
        method = self._sample(label, config)
        return None if method is None else method.correction

    def _sample(self, label: str, config: ModelConfig) -> AttentionMethod | None:
        """The method at some budget; none where this model cannot have it, as its cells will say."""
        try:
            return self.build(label, SAMPLE_BUDGET if self.takes_budget(label) else None, config)
        except LongDecodeError:
            return None


def decode_cells(labels: Labels, spec: DecodeSpec, config: ModelConfig) -> list[SpeedCell]:
    """Every cell, context by context, batch by batch: full first, then the methods, stages and the stock loop."""
    selecting = {label for label in spec.methods if labels.chooses(label, config)}
    corrected = {label for label in spec.methods if labels.correction(label, config)}
    return [
        cell
        for context in spec.contexts
        for batch in spec.batches
        if spec.times(FULL, context, batch)
        for cell in _at(labels, spec, selecting, corrected, context, batch)
    ]


def _at(
    labels: Labels, spec: DecodeSpec, selecting: set[str], corrected: set[str], context: int, batch: int
) -> Iterator[SpeedCell]:
    for label in (FULL, *(name for name in spec.methods if labels.method_name(name) != FULL)):
        budgets = spec.budgets if labels.takes_budget(label) else (FULL_BUDGET,)
        for budget in budgets if spec.times(label, context, batch) else ():
            yield _cell(labels, label, "step", context, batch, budget)
            if spec.stages and label in selecting:
                yield _cell(labels, label, "no_selection", context, batch, budget)
            if label in corrected:
                yield _cell(labels, label, "correction", context, batch, budget)
            if label not in CEILING_METHODS:
                yield _cell(labels, label, "setup", context, batch, budget)
    if spec.stages:
        for name in ("no_attention", "projections"):
            stage: Stage = "no_attention" if name == "no_attention" else "projections"
            yield SpeedCell("decode", name, name, stage, context, batch)
    if context in spec.prefill_contexts and batch == min(spec.batches):
        yield _cell(labels, FULL, "prefill", context, batch, FULL_BUDGET)
    if context in spec.hf_contexts and batch in spec.hf_batches:
        for label in HF_LABELS:
            yield SpeedCell("decode", "hf_full", label, "step", context, batch)


def _cell(labels: Labels, label: str, stage: Stage, context: int, batch: int, budget: Budget) -> SpeedCell:
    return SpeedCell(
        "decode", labels.method_name(label), label, stage, context, batch, budget, dict(labels.params(label))
    )
