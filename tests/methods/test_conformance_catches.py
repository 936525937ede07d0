"""The gate fails methods with planted bugs: each check on a fault of its own, and the whole gate on many more."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from longdecode.engine.errors import ConfigError, GateError, UnsupportedCellError
from longdecode.methods import conformance
from longdecode.methods.conformance_bench import make_bench
from longdecode.methods.registry import METHOD_PATH_VARIABLE, load_card

MODULE = """
import sys
import torch
from dataclasses import dataclass, replace
from longdecode.methods.registry import get_method
from longdecode.engine.attention import Selection, Traffic

Base = get_method("BASE")

class Faulty(Base):
    name = "faulty"

BODY

METHOD = Faulty
"""
RULE = """
from longdecode.methods.registry import get_rule

RULE = get_rule("BASE")
"""

CHECKED = yaml.safe_load(Path(__file__).with_name("check_faults.yaml").read_text(encoding="utf-8"))
FAULTS: dict[str, str | None] = CHECKED["by_check"]
BY_METHOD: dict[str, dict[str, str]] = CHECKED["by_method"]
PLANTED: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("planted_bugs.yaml").read_text("utf-8"))
"""By bug: the method that has it, parameters, the bug, and the check that finds it first."""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that registers a method called ``faulty``: one of this tree with a changed class body."""
    monkeypatch.setenv(METHOD_PATH_VARIABLE, str(tmp_path))

    def write(body: str | None, base: str = "oracle_topk", **card: Any) -> None:
        folder = tmp_path / "faulty"
        folder.mkdir()
        indented = textwrap.indent(textwrap.dedent(body or "pass"), "    ")
        (folder / "method.py").write_text(MODULE.replace("BODY", indented).replace("BASE", base))
        if body is not None:
            (folder / "rule.py").write_text(RULE.replace("BASE", base))
        values = load_card(base).model_dump(mode="json") | {"name": "faulty"} | card
        (folder / "card.yaml").write_text(yaml.safe_dump(values))

    return write


def test_the_method_without_a_fault_passes(install: Callable[..., None]) -> None:
    install("pass")
    conformance.check_method("faulty", "cpu")


@pytest.mark.parametrize("check", FAULTS)
def test_the_fault_is_caught(install: Callable[..., None], check: str) -> None:
    install(FAULTS[check])
    bench = make_bench("faulty", "cpu", {}, dtype=torch.float64, seed=0)
    with pytest.raises(GateError):
        getattr(conformance, check)(bench)


@pytest.mark.parametrize("fault", BY_METHOD)
def test_layer_budgets_and_rounded_storage_are_held_to_what_is_stated(install: Callable[..., None], fault: str) -> None:
    install(BY_METHOD[fault]["fault"], BY_METHOD[fault]["method"])
    bench = make_bench("faulty", "cpu", {}, dtype=torch.float64, seed=0)
    with pytest.raises(GateError):
        getattr(conformance, BY_METHOD[fault]["check"])(bench)


def test_every_check_has_a_fault() -> None:
    names = {check.__name__ for check in (*conformance.CHECKS, *conformance.SHAPE_CHECKS)}
    assert names - set(FAULTS) == {"graph_replay_equals_eager"}


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        ("q = q.unflatten(1, (self.config.num_kv_heads, -1))[:, :, :2].flatten(1, 2)", "128, 8 query heads each"),
        ("q = q * (self.config.head_dim / 32) ** 0.5", "128, 8 query heads each"),
        ("q = torch.cat((q[:, :2], q[:, 2:].flip(1)), dim=1) if q.shape[1] == 9 else q", "64, 3 query heads each"),
        ("q = q * (self.config.group_size > 1)", "16, 1 query heads each"),
    ],
    ids=["two heads a group", "another width", "nine heads", "one head a group"],
)
def test_other_heads_show_what_the_usual_ones_hide(install: Callable[..., None], change: str, shape: str) -> None:
    """Faults that every check of the usual heads, which run first, passes."""
    install(f"def select(self, layer, q, state):\n    {change}\n    return super().select(layer, q, state)\n")
    with pytest.raises(GateError, match=f"reads_follow_the_rule with . KV heads of {shape}"):
        conformance.check_method("faulty", "cpu", {})


def test_rows_much_shorter_than_the_budget_show_what_others_hide(install: Callable[..., None]) -> None:
    install("""
        def select(self, layer, q, state):
            chosen = super().select(layer, q, state)
            if chosen is not None:
                chosen.counts = chosen.counts - (chosen.counts < 8).long() * (chosen.counts > 1)
            return chosen
    """)
    with pytest.raises(GateError, match=r"reads_follow_the_rule with .* row 1, .* 6 tokens, .* token . is not read"):
        conformance.check_method("faulty", "cpu", {})


@pytest.mark.parametrize("bug", PLANTED)
def test_the_gate_catches_the_bug(install: Callable[..., None], bug: str) -> None:
    planted = PLANTED[bug]
    install(planted["fault"], planted["method"])
    with pytest.raises(GateError, match=f"faulty .*: {planted['check']}: "):
        conformance.check_method("faulty", "cpu", planted["params"])


def test_a_method_without_a_rule_passes_where_its_card_says_why(install: Callable[..., None]) -> None:
    install(None, rule="none", rule_reason="Reads depend on a trained index.")
    conformance.check_method("faulty", "cpu", {})


def test_a_reason_is_needed_to_have_no_rule(install: Callable[..., None]) -> None:
    install(None, rule="none")
    with pytest.raises(ConfigError, match="rule_reason is needed"):
        conformance.check_method("faulty", "cpu", {})


def test_a_budget_under_the_cards_minimum_must_be_refused(install: Callable[..., None]) -> None:
    install("pass", limits=load_card("oracle_topk").limits.model_dump() | {"min_budget_tokens": 5})
    bench = make_bench("faulty", "cpu", {}, dtype=torch.float64, seed=0)
    with pytest.raises(GateError, match="a budget of 4 was accepted"):
        conformance.bad_parameters_are_refused(bench)


def test_the_message_names_method_parameters_and_check(install: Callable[..., None]) -> None:
    install(FAULTS["reads_follow_the_rule"])
    message = (
        r"faulty \{'dense_layers': 1\}: reads_follow_the_rule: budget 64, row 0, step 0, layer 1, 254 tokens, query "
        r"head 0: the output differs by .* over the 64 tokens of the rule; token 253 is not read"
    )
    with pytest.raises(GateError, match=message):
        conformance.check_method("faulty", "cpu", {"dense_layers": 1})


@pytest.mark.parametrize(
    ("name", "params"), [("quest", {"page_size": 64}), ("lychee", {"block_size": 128})], ids=["quest", "lychee"]
)
def test_parameters_that_need_a_larger_budget_get_one(name: str, params: dict[str, Any]) -> None:
    bench = make_bench(name, "cpu", params, dtype=torch.float64, seed=0)
    assert bench.budget == 128
    conformance.reads_follow_the_rule(bench)
    conformance.small_budget_leaves_something_out(bench)


def test_parameters_that_need_too_large_a_budget_end_as_a_status() -> None:
    with pytest.raises(UnsupportedCellError, match="1024 tokens"):
        conformance.check_method("lychee", "cpu", {"block_size": 1024})
