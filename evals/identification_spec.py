"""Head identification of a run: the ``identification`` key of a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from longdecode.evals import config_values as typed
from longdecode.evals.tasks.registry import task_names

BATCHED_DATA = ("mini_passkey", "mini_two_hop")
"""Data whose samples of one context length are equally long, so that several fit one step."""
PAPER_RATE = 2.5
"""Factor in the multiplier's default rate; see ``IdentificationRun.lagrange_rate``."""
_Rate = Annotated[float, Field(strict=True, ge=0, le=100)]


def _shortest_and_longest(value: Any) -> Any:
    """Accept one length for both."""
    contexts = typed.distinct(value)
    return contexts * 2 if len(contexts) == 1 else contexts


@dataclass(frozen=True, slots=True)
class IdentificationRun:
    """One training of head roles; ``docs/models.md`` explains every setting.

    ``target_heads`` counts all retrieval heads, layer 0's included; ``contexts`` are the shortest and longest, of
    which ``context_count`` evenly spaced ones are used. ``lr`` and ``lambda_lr`` left out are those of the gate's kind
    and of the objective; ``layer0_gates`` left out is true with the objective ``code`` alone.
    """

    name: SkipJsonSchema[typed.Name]
    model: typed.Text
    target_heads: typed.Count
    contexts: Annotated[
        tuple[typed.Length, typed.Length], BeforeValidator(_shortest_and_longest, json_schema_input_type=typed.Contexts)
    ]
    kind: Literal["hardkuma", "hard_concrete", "direct"] = "hardkuma"
    data: Literal["mini_passkey", "mini_two_hop", "passkey", "hotpotqa"] = "mini_passkey"
    objective: Literal["paper", "code", "l1"] = "paper"
    inherit: Literal["chain", "previous_layer"] = "chain"
    sparse: Literal["inherited", "streaming"] = "inherited"
    selection: Literal["causal", "code"] = "causal"
    layer0_gates: typed.Flag | None = None
    seed: typed.Whole = 0
    steps: typed.Count = 3000
    batch: typed.Count = 1
    context_count: typed.Count = 50
    questions: typed.Count = 10
    passkey_words: typed.Count = 32
    haystack: Literal["generated", "books"] = "generated"
    ratio: typed.Share = 0.3
    sink: typed.Whole = 128
    recent: typed.Count = 256
    lr: _Rate | None = None
    lambda_lr: _Rate | None = None
    l1: _Rate = 0.05
    log_every: typed.Count = 10

    @model_validator(mode="after")
    def _check(self) -> IdentificationRun:
        """Refuse settings that exclude each other."""
        if self.contexts[0] > self.contexts[1]:
            raise typed.wrong(f"is {list(self.contexts)}; the shortest and the longest are needed", "contexts")
        if self.batch > 1 and self.data not in BATCHED_DATA:
            raise typed.wrong(
                f"is {self.batch}; samples of {self.data} differ in length, so only 1 is possible", "batch"
            )
        if self.objective == "l1" and self.kind != "direct":
            raise typed.wrong(
                f"is 'l1', which is for gates without noise (kind 'direct'), not {self.kind!r}", "objective"
            )
        if self.kind == "direct" and self.objective != "l1":
            problem = "gates of kind 'direct' have no P(z != 0): 'l1' is needed"
            raise typed.wrong(f"is {self.objective!r}; {problem}", "objective")
        if self.sparse == "streaming" and self.selection == "code":
            raise typed.wrong("is 'code', but streaming heads select nothing", "selection")
        return self

    @property
    def gate_rate(self) -> float:
        """The learning rate of the gates: DuoAttention's for ``direct``, LycheeDecode's for the others."""
        return self.lr if self.lr is not None else {"direct": 0.02}.get(self.kind, 0.01)

    def lagrange_rate(self, gates: int, target: int) -> float:
        """Return the multiplier's rate: ``lambda_lr``; else 0.001 for ``code``, as released, and 2.5 n / (N steps).

        The last, for ``paper``, was found by trying on the miniature. The product of rate and steps decides: a much
        smaller one saturates more heads at 1 than wanted, where nothing ranks them; a larger one leaves fewer than
        wanted, which still ranks the others by when they closed.

        Args:
            gates: ``n``, how many the constraint counts.
            target: ``N``, how many of them may be on.
        """
        if self.lambda_lr is not None:
            return self.lambda_lr
        return 0.001 if self.objective == "code" else PAPER_RATE * gates / (target * self.steps)

    @property
    def role_kind(self) -> str:
        """The kind that role files state: ``duo`` where the heads that do not retrieve stream."""
        return "duo" if self.kind == "direct" and self.sparse == "streaming" else self.kind

    @property
    def first_role_layer(self) -> int:
        """The lowest layer whose roles are learned: layer 0 always retrieves, unless the other heads stream."""
        return 0 if self.sparse == "streaming" else 1

    @property
    def first_counted_layer(self) -> int:
        """The lowest layer whose gates the constraint counts; the released code counts layer 0's unused ones too."""
        counts = self.objective == "code" if self.layer0_gates is None else self.layer0_gates
        return 0 if counts else self.first_role_layer


@dataclass(frozen=True, slots=True)
class OverlapSpec:
    """A measurement of the overlap of adjacent layers' top tokens.

    ``task`` is a generated task of the miniature's suites, ``k`` the sizes of the sets in tokens, ``steps`` how many
    decode steps of each sample are looked at.
    """

    model: typed.Text
    contexts: typed.Contexts
    k: typed.Sizes
    task: Annotated[typed.Text, typed.known("task", task_names)] = "mini_longgen_15"
    samples: typed.Count = 4
    steps: typed.Count = 16
    seed: typed.Whole = 0

    @model_validator(mode="after")
    def _check(self) -> OverlapSpec:
        if max(self.k) >= min(self.contexts):
            raise typed.wrong(
                f"has {max(self.k)}; fewer than the shortest context ({min(self.contexts)}) are needed", "k"
            )
        return self


@dataclass(frozen=True, slots=True)
class IdentificationSpec:
    """All head identification of a configuration; ``defaults`` are settings that all runs share."""

    defaults: Annotated[Mapping[str, Any], typed.OrNull()] = field(default_factory=dict)
    runs: Annotated[Mapping[typed.Name, IdentificationRun], typed.OrNull()] = field(default_factory=dict)
    overlap: OverlapSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _share_defaults(cls, values: Any) -> Any:
        """Lay each run over the shared settings."""
        return typed.with_defaults(values, IdentificationRun)

    def check_names(self, models: Iterable[str]) -> None:
        """Refuse models that the run does not have, as a validator does."""
        for name, run in self.runs.items():
            typed.require_known("model", [run.model], models, f"identification.runs.{name}.model")
        if self.overlap is not None:
            typed.require_known("model", [self.overlap.model], models, "identification.overlap.model")
