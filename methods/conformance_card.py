"""Check that a method's card says what its code takes, refuses and reads."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

from longdecode.engine.errors import ConfigError, GateError, UnsupportedCellError
from longdecode.methods.conformance_bench import MethodBench
from longdecode.methods.registry import get_method


def card_names_the_parameters(bench: MethodBench) -> None:
    """The card's knobs are the fields of ``Params``, with their defaults."""
    params = get_method(bench.card.name).Params
    have = {item.name: _default(item) for item in fields(params)}
    said = {knob.name: knob.default for knob in bench.card.knobs}
    if have != said:
        raise GateError(f"the card lists the knobs {said}, Params has {have}")


def bad_parameters_are_refused(bench: MethodBench) -> None:
    """An unknown parameter, and a budget under the card's minimum, raise instead of being bent."""
    method = get_method(bench.card.name)
    budget = bench.whole_budget if bench.takes_budget else None
    try:
        method.from_budget(budget, bench.config, no_such_parameter=1)
    except ConfigError:
        pass
    else:
        raise GateError("an unknown parameter was accepted")
    minimum = bench.card.limits.min_budget_tokens
    if minimum is not None and minimum > 1:
        try:
            method.from_budget(minimum - 1, bench.config)
        except UnsupportedCellError:
            return
        raise GateError(f"a budget of {minimum - 1} was accepted; the card's minimum is {minimum}")


def the_rule_is_stated(bench: MethodBench) -> None:
    """A rule states what the method reads, or the card gives the reason why none does."""
    stated = bench.rule is not None
    if stated != (bench.card.rule == "stated"):
        have = "there is a rule.py" if stated else "there is no rule.py"
        raise GateError(
            f"the card says rule: {bench.card.rule} and {have}; state one (docs/adding-a-method.md), or say "
            "rule: none with a rule_reason"
        )


def _default(item: Field[Any]) -> Any:
    """Return a field's default as YAML has it."""
    if item.default_factory is not MISSING:
        return item.default_factory()
    default = None if item.default is MISSING else item.default
    return list(default) if isinstance(default, tuple) else default
