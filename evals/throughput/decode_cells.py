"""The cells of one model's decode bench, and the method behind each label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import LongDecodeError
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.records import Stage
from longdecode.evals.run_config import RunConfig
from longdecode.evals.throughput.ceilings import FreeSelection, NoAttention, chooses, selection_given
from longdecode.evals.throughput.cells import SpeedCell
from longdecode.evals.throughput.spec import CEILING_METHODS, DecodeSpec
from longdecode.methods.registry import get_method

FULL = "full"
HF_LABELS = ("hf_full", "hf_full_static")
_BOUNDS: dict[str, type[AttentionMethod]] = {bound.name: bound for bound in (FreeSelection, NoAttention)}
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
        """Return the registered name behind a label; a ceiling's own."""
        return self.run.methods[label].method if label in self.run.methods else label

    def params(self, label: str) -> Mapping[str, Any]:
        """Return the parameters that differ from the method's defaults."""
        return self.run.methods[label].params_of(self.model) if label in self.run.methods else {}

    def takes_budget(self, label: str) -> bool:
        """Return whether the label is run once a budget."""
        return self.run.methods[label].takes_budget if label in self.run.methods else label in CEILING_METHODS

    def build(
        self, label: str, budget_tokens: int | None, config: ModelConfig, *, given: bool = False
    ) -> AttentionMethod:
        """Build the method at a budget.

        Args:
            given: freeze its selections after the first step.

        Raises:
            UnsupportedCellError: it cannot honour the budget on this model.
        """
        if label in _BOUNDS:
            return _BOUNDS[label].from_budget(budget_tokens, config)
        method = get_method(self.method_name(label))
        return (selection_given(method) if given else method).from_budget(budget_tokens, config, **self.params(label))

    def stages(self, label: str, config: ModelConfig, parts: bool) -> tuple[Stage, ...]:
        """Return what is timed of a label; ``parts`` adds the step whose selection is given."""
        method = self._sample(label, config)
        if method is not None and method.draft is not None:
            return ("speculative_step", "draft", "verify", "keep", "setup")
        stages: list[Stage] = ["step"]
        if method is not None and parts and chooses(method):
            stages.append("no_selection")
        if method is not None and method.correction is not None:
            stages.append("correction")
        return (*stages,) if label in CEILING_METHODS else (*stages, "setup")

    def _sample(self, label: str, config: ModelConfig) -> AttentionMethod | None:
        """Return the method at some budget; none where this model cannot have it, as its cells will say."""
        try:
            return self.build(label, SAMPLE_BUDGET if self.takes_budget(label) else None, config)
        except LongDecodeError:
            return None


def decode_cells(labels: Labels, spec: DecodeSpec, config: ModelConfig) -> list[SpeedCell]:
    """Return every cell, context by context, batch by batch: full first, then the methods and the stock loop."""
    names = (FULL, *(label for label in spec.methods if labels.method_name(label) != FULL))
    stages = {label: labels.stages(label, config, spec.stages) for label in names}
    return [
        cell
        for context in spec.contexts
        for batch in spec.batches
        if spec.times(FULL, context, batch)
        for cell in _at(labels, spec, stages, context, batch)
    ]


def _at(
    labels: Labels, spec: DecodeSpec, stages: Mapping[str, tuple[Stage, ...]], context: int, batch: int
) -> Iterator[SpeedCell]:
    for label, timed in stages.items():
        if spec.times(label, context, batch):
            for budget in spec.budgets_of(label) if labels.takes_budget(label) else (FULL_BUDGET,):
                for stage in timed:
                    yield _cell(labels, label, stage, context, batch, budget)
    if spec.stages:
        yield SpeedCell("decode", "no_attention", "no_attention", "no_attention", context, batch)
        yield SpeedCell("decode", "projections", "projections", "projections", context, batch)
    if context in spec.forward_contexts and batch == min(spec.batches):
        params = {"rows": spec.forward_rows, "mask": "tree"}
        yield SpeedCell("decode", FULL, FULL, "forward_rows", context, batch, params=params)
    if context in spec.prefill_contexts and batch == min(spec.batches):
        yield _cell(labels, FULL, "prefill", context, batch, FULL_BUDGET)
    if context in spec.hf_contexts and batch in spec.hf_batches:
        for label in HF_LABELS:
            yield SpeedCell("decode", "hf_full", label, "step", context, batch)


def _cell(labels: Labels, label: str, stage: Stage, context: int, batch: int, budget: Budget) -> SpeedCell:
    return SpeedCell(
        "decode", labels.method_name(label), label, stage, context, batch, budget, dict(labels.params(label))
    )
