"""Define card.yaml: what a method says about itself to reports and to the conformance suite."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from longdecode.engine.errors import ConfigError

FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reads YAML as ``yaml.safe_load`` does, six times as fast where libyaml is there."""
Family = Literal["dense", "sinks+window", "pages", "tokens", "heads", "evicting", "speculative"]
"""Name what is read or dropped: everything, a fixed pattern, pages or tokens by score, by role of the head."""
FILES = (".json", ".pth", ".safetensors")
"""Endings of the files that parameters name."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Paper(_Strict):
    """Name the publication."""

    title: str
    url: str
    venue: str
    year: int = Field(ge=1990)


class Code(_Strict):
    """Name the authors' code, at the revision that was read."""

    url: str
    revision: str


class Knob(_Strict):
    """Describe one field of the method's ``Params``.

    With ``file``, a value that ends as one of ``FILES`` names a file it reads. The best value of a ``per_model`` knob
    depends on the model, so it is tuned or learned on each. Such a value means nothing on another model (a layer, a map
    of heads), and the conformance suite, which has a model of its own, leaves it out; unless it is ``portable``.
    ``settings``, or the layers from ``first_layer`` on, are the values that tuning tries; a knob with neither is
    learned or set. ``window`` marks tokens that a list always holds.
    """

    name: str
    default: Any
    meaning: str
    file: bool = False
    per_model: bool = False
    portable: bool = False
    settings: tuple[Any, ...] = ()
    first_layer: int | None = Field(default=None, ge=0)
    window: Literal["sinks", "recent"] | None = None

    @property
    def is_tuned(self) -> bool:
        """True for a knob whose value the tuning protocol chooses."""
        return bool(self.settings) or self.first_layer is not None

    @model_validator(mode="after")
    def _is_consistent(self) -> Knob:
        if not self.per_model and (self.portable or self.is_tuned):
            raise ValueError(f"{self.name}: portable, settings and first_layer belong to per_model knobs")
        return self


class Limits(_Strict):
    """State where the method stops working; ``min_budget_tokens`` is ``None`` for a method that takes no budget."""

    min_context_tokens: int = Field(ge=1)
    min_budget_tokens: int | None = Field(ge=1)
    max_batch: int | None = Field(ge=1)
    note: str


class Slack(_Strict):
    """State how far the tokens read may exceed the declared budget.

    A governed layer reads at most ``budget + tokens`` per KV head, and with ``per_generated_token`` one more for every
    token generated. ``times`` names a knob whose value multiplies the budget. In the variants of ``per_query_head``
    every query head fetches a list of its own, so that a KV head's reads are up to that times the size of its group.
    """

    tokens: int = Field(ge=0)
    per_generated_token: bool = False
    per_query_head: tuple[str, ...] = ()
    times: str | None = None
    why: str


class Conformance(_Strict):
    """State how the conformance suite runs the method.

    ``budget_tokens`` is the small budget, doubled for parameters that need more; the contexts grow with it. ``params``
    hold where a case does not set them, ``launches`` likewise where a run's own launches are checked: values without
    which rounding grows. ``whole_budget_exact`` says that a budget over the context gives exactly Full's
    logits; where not, ``why`` says so. A cache that rounds says ``stored_bits`` of a number at least, and
    ``stored_error``: how far a stored number may be from the exact one, as a share of the largest of its KV head.
    ``by_variant`` holds what is otherwise in a variant of the card.
    """

    budget_tokens: int = Field(default=64, ge=4)
    params: dict[str, Any] = Field(default_factory=dict)
    launches: dict[str, Any] = Field(default_factory=dict)
    whole_budget_exact: bool = True
    why: str = ""
    stored_bits: int | None = Field(default=None, ge=1)
    stored_error: float = Field(default=0.0, ge=0, lt=1)
    by_variant: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_consistent(self) -> Conformance:
        if self.whole_budget_exact and self.stored_error:
            raise ValueError("a cache with a stored_error is not exact: conformance.whole_budget_exact is false")
        if not (self.whole_budget_exact or self.why):
            raise ValueError("conformance.why is needed where whole_budget_exact is false")
        return self


class Card(_Strict):
    """Hold a method's card.

    ``family`` groups methods in reports. ``knobs`` lists the fields of ``Params``; ``variants`` maps ``knob=value`` to
    what that value means, the default first; ``budget`` says how a budget in tokens becomes native knobs, ``gqa`` how a
    group's queries share a selection, ``read`` what the implementation rests on (paper, code, inference). ``rule`` says
    that rule.py states what the method reads, or ``none``, with the reason in ``rule_reason``.
    """

    name: str
    title: str
    kind: Literal["attention", "speculative"]
    family: Family
    paper: Paper | None
    code: Code | None
    summary: str
    knobs: tuple[Knob, ...]
    budget: str
    gqa: str
    read: str
    deviations: tuple[str, ...]
    variants: dict[str, str]
    limits: Limits
    slack: Slack
    rule: Literal["stated", "none"] = "stated"
    rule_reason: str = ""
    conformance: Conformance = Field(default_factory=Conformance)

    @model_validator(mode="after")
    def _is_consistent(self) -> Card:
        knobs = {knob.name for knob in self.knobs}
        for key in self.variants:
            knob, equals, _ = key.partition("=")
            if not equals or knob not in knobs:
                raise ValueError(f"variant {key!r} is not of the form knob=value with a knob of this card")
        for key in self.slack.per_query_head:
            if key not in self.variants:
                raise ValueError(f"slack.per_query_head names {key!r}, which is no variant of this card")
        if self.slack.times is not None and self.slack.times not in knobs:
            raise ValueError(f"slack.times names {self.slack.times!r}, which is no knob of this card")
        for part in ("params", "launches"):
            if unknown := sorted(set(getattr(self.conformance, part)) - knobs):
                raise ValueError(f"conformance.{part} sets {', '.join(unknown)}, which is no knob of this card")
        if (self.rule == "none") != bool(self.rule_reason):
            raise ValueError("rule_reason is needed with rule: none, and only there")
        for key in self.conformance.by_variant:
            if key not in self.variants:
                raise ValueError(f"conformance.by_variant names {key!r}, which is no variant of this card")
            self.conformance_of(self.variant_params(key))
        return self

    def conformance_of(self, params: Mapping[str, Any]) -> Conformance:
        """Return how a case with these parameters is checked."""
        said = self.conformance.model_dump()
        for key, other in self.conformance.by_variant.items():
            if self.variant_params(key).items() <= params.items():
                said |= other
        return Conformance(**said)

    def files(self, params: Mapping[str, Any]) -> tuple[Path, ...]:
        """Return the files that parameters of this method name."""
        values = (params.get(knob.name) for knob in self.knobs if knob.file)
        return tuple(Path(value) for value in values if isinstance(value, str) and value.endswith(FILES))

    def portable(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that mean the same on every model."""
        bound = {knob.name for knob in self.knobs if (knob.per_model and not knob.portable) or knob.file}
        return {name: value for name, value in params.items() if name not in bound}

    @property
    def tuned_knobs(self) -> tuple[Knob, ...]:
        """The knobs whose values are tuned on each model."""
        return tuple(knob for knob in self.knobs if knob.is_tuned)

    def variant_params(self, key: str) -> dict[str, Any]:
        """Return the overrides of ``Params`` that a variant ``knob=value`` stands for."""
        knob, _, value = key.partition("=")
        return {knob: yaml.safe_load(value)}


def read_card(path: Path) -> Card:
    """Read and check one card.yaml.

    Raises:
        ConfigError: the file is missing, is not YAML, or does not fit the schema.
    """
    try:
        return Card.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=FAST_LOADER))
    except FileNotFoundError:
        raise ConfigError(f"{path}: the method has no card") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'card'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{path}: {faults}") from error
