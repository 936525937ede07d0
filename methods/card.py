"""What a method says about itself: the schema of card.yaml, which reports render and the conformance suite reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from longdecode.engine.errors import ConfigError


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Paper(_Strict):
    """Where the method was published."""

    title: str
    url: str
    venue: str
    year: int = Field(ge=1990)


class Code(_Strict):
    """The authors' code, at the revision that was read."""

    url: str
    revision: str


class Knob(_Strict):
    """One field of the method's ``Params``.

    With ``file``, a value that ends in ``.json`` names a file it reads. A ``per_model`` value makes sense on one model
    only (a layer, a map of its heads), so the conformance suite, which has a model of its own, leaves it out.
    """

    name: str
    default: Any
    meaning: str
    file: bool = False
    per_model: bool = False


class Limits(_Strict):
    """Where the method stops working; ``min_budget_tokens`` is ``None`` for a method that takes no budget."""

    min_context_tokens: int = Field(ge=1)
    min_budget_tokens: int | None = Field(ge=1)
    max_batch: int | None = Field(ge=1)
    note: str


class Slack(_Strict):
    """How far the tokens read may exceed the declared budget.

    A governed layer reads at most ``budget + tokens`` per KV head, and with ``decoded`` every decoded token as well; in
    the variants of ``per_query_head`` every query
    head fetches a list of its own, so that a KV head's reads are up to that times the size of its group.
    """

    tokens: int = Field(ge=0)
    decoded: bool = False
    per_query_head: tuple[str, ...] = ()
    why: str


class Card(_Strict):
    """A method's card.

    ``knobs`` lists the fields of ``Params``; ``variants`` maps ``knob=value`` to what that value means, the default
    first; ``budget`` says how a budget in tokens becomes native knobs, ``gqa`` how a group's queries share a
    selection, ``read`` what the implementation rests on (paper, code, inference).
    """

    name: str
    title: str
    kind: Literal["attention", "speculative"]
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

    @model_validator(mode="after")
    def _variants_name_knobs(self) -> Card:
        knobs = {knob.name for knob in self.knobs}
        for key in self.variants:
            knob, equals, _ = key.partition("=")
            if not equals or knob not in knobs:
                raise ValueError(f"variant {key!r} is not of the form knob=value with a knob of this card")
        for key in self.slack.per_query_head:
            if key not in self.variants:
                raise ValueError(f"slack.per_query_head names {key!r}, which is no variant of this card")
        return self

    def files(self, params: Mapping[str, Any]) -> tuple[Path, ...]:
        """The files that parameters of this method name."""
        values = (params.get(knob.name) for knob in self.knobs if knob.file)
        return tuple(Path(value) for value in values if isinstance(value, str) and value.endswith(".json"))

    def portable(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that mean the same on every model."""
        bound = {knob.name for knob in self.knobs if knob.per_model or knob.file}
        return {name: value for name, value in params.items() if name not in bound}

    def variant_params(self, key: str) -> dict[str, Any]:
        """The overrides of ``Params`` that a variant ``knob=value`` stands for."""
        knob, _, value = key.partition("=")
        return {knob: yaml.safe_load(value)}


def read_card(path: Path) -> Card:
    """Read and check one card.yaml.

    Raises:
        ConfigError: the file is missing, is not YAML, or does not fit the schema.
    """
    try:
        return Card.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(f"{path}: the method has no card") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'card'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{path}: {faults}") from error
