"""Lossless speculative decoding with any attention method of the registry as the drafter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar

from pydantic import Field

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.self_draft import SelfDraft
from longdecode.methods.budgeted import build_params
from longdecode.methods.registry import get_method
from longdecode.methods.speculative import SpeculativeMethod


@dataclass(frozen=True, slots=True)
class SpeculateParams:
    """Knobs of speculative decoding; ``drafter_params`` are the drafter's own, checked as the drafter checks them."""

    drafter: str = "streaming"
    draft_tokens: Annotated[int, Field(ge=1, le=64)] = 4
    branches: Annotated[int, Field(ge=1, le=16)] = 1
    drafter_params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        build_params(self.drafter, get_method(self.drafter).Params, self.drafter_params)


class Speculate(SpeculativeMethod):
    """A sparse method drafts ``draft_tokens`` tokens with ``budget`` tokens per KV head, dense attention verifies them.

    The output is that of dense attention, token for token; the drafter sets the speed alone. A step reads the context
    once for all its tokens, and the budget once for each draft.

    Source: Chen et al. 2024, MagicDec (arXiv 2408.11049); Leviathan et al. 2023 (arXiv 2211.17192); deviations in
    card.yaml.
    """

    name: ClassVar[str] = "speculate"
    Params: ClassVar[type] = SpeculateParams
    params: SpeculateParams

    def __init__(self, params: SpeculateParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        drafter = get_method(params.drafter).from_budget(budget_tokens, config, **params.drafter_params)
        if drafter.draft is not None:
            raise ConfigError(f"speculate: drafter = {params.drafter!r} drafts itself; an attention method is needed")
        refuse_unused(drafter, params.drafter_params)
        if drafter.window > 1:
            raise UnsupportedCellError(
                f"speculate: drafter = {params.drafter!r} writes over the last {drafter.window - 1} tokens' keys and "
                "values, which are the verifier's"
            )
        self.draft = SelfDraft(drafter, params.draft_tokens, params.branches)


def refuse_unused(drafter: AttentionMethod, given: Mapping[str, Any]) -> None:
    """Refuse parameters of a drafter that would have no effect: rows are named after them.

    The defaults may be given. A method's correction of its cache has nothing to correct: the cache is the verifier's,
    or takes over the verifier's keys and values.

    Raises:
        ConfigError: as said.
    """
    defaults = {item.name: item.default for item in fields(drafter.Params)}
    for knob, value in given.items():
        if value == defaults[knob]:
            continue
        needed = {other: need for other, need in drafter.used_with.get(knob, {}).items()
                  if getattr(drafter.params, other) != need}  # fmt: skip
        if knob in drafter.between_steps or needed:
            why = " and ".join(f"without {other} = {need!r}" for other, need in needed.items()) or "while drafting"
            raise ConfigError(f"speculate: drafter_params {knob} = {value!r} of {drafter.name} has no effect {why}")
    if drafter.correction is not None:
        raise ConfigError(
            f"speculate: drafter = {drafter.name!r} corrects its cache, which has no effect while drafting"
        )


METHOD = Speculate
