"""Each conformance check fails on a method that has the fault it looks for."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from longdecode.engine.errors import GateError
from longdecode.methods import conformance
from longdecode.methods.conformance_bench import make_bench
from longdecode.methods.registry import METHOD_PATH_VARIABLE

CARD = """
name: faulty
title: Faulty
kind: attention
paper: null
code: null
summary: A method with one fault.
knobs: [{name: dense_layers, default: 2, meaning: first layers}]
budget: tokens
gqa: shared
read: inferred
deviations: []
variants: {}
limits: {min_context_tokens: 1, min_budget_tokens: MINIMUM, max_batch: null, note: none}
slack: {tokens: 0, why: none}
"""
MODULE = """
import torch
from longdecode.methods.registry import get_method
from longdecode.engine.attention import Selection, Traffic

Oracle = get_method("oracle_topk")

class Faulty(Oracle):
    name = "faulty"

BODY

METHOD = Faulty
"""

FAULTS = {
    "card_names_the_parameters": """
        from dataclasses import dataclass
        @dataclass(frozen=True)
        class Params:
            dense_layers: int = 3
    """,
    "bad_parameters_are_refused": """
        @classmethod
        def from_budget(cls, budget_tokens, config, **overrides):
            overrides.pop("no_such_parameter", None)
            return super().from_budget(budget_tokens, config, **overrides)
    """,
    "whole_budget_equals_full": """
        def select(self, layer, q, state):
            chosen = super().select(layer, q, state)
            if chosen is not None:
                chosen.counts = (chosen.counts - 1).clamp(min=1)
            return chosen
    """,
    "small_budget_leaves_something_out": """
        def select(self, layer, q, state):
            return None
    """,
    "ragged_batch_equals_single_rows": """
        def select(self, layer, q, state):
            chosen = super().select(layer, q, state)
            if chosen is not None:
                longest = state.cache.kv_lengths().max()
                chosen.counts = torch.where(longest > 100, chosen.counts.clamp(max=20), chosen.counts)
            return chosen
    """,
    "permuting_the_batch_permutes_the_result": """
        def select(self, layer, q, state):
            chosen = super().select(layer, q, state)
            if chosen is not None and len(q) > 1:
                chosen.counts[0] = chosen.counts[0].clamp(max=3)
            return chosen
    """,
    "unwritten_memory_is_never_read": """
        def attend(self, layer, q, state):
            out = super().attend(layer, q, state)
            return out + 0 * state.cache.values(layer)[:, :1, -1:, :]
    """,
    "stored_keys_keep_their_rotation": """
        def after_prefill(self, prompt):
            cache = super().after_prefill(prompt)
            cache.k[0, :, :, 0] = cache.k[0, :, :, 0].roll(16, dims=-1)
            return cache
    """,
    "reads_stay_within_budget": """
        def __init__(self, params, config, budget_tokens):
            super().__init__(params, config, budget_tokens + 5)
    """,
    "traffic_covers_the_reads": """
        def traffic(self, context_tokens, bytes_per_element):
            return Traffic(10)
    """,
    "a_step_never_waits_for_the_host": """
        def select(self, layer, q, state):
            if int(state.cache.lengths.max()) < self.budget_tokens:
                return None
            return super().select(layer, q, state)
    """,
    "runs_leave_no_trace": """
        starts = 0
        def start(self, prompt, **how):
            Faulty.starts += 1
            self.budget_tokens -= Faulty.starts > 1
            return super().start(prompt, **how)
    """,
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that puts a method called ``faulty`` in the registry: the oracle with a changed class body."""
    monkeypatch.setenv(METHOD_PATH_VARIABLE, str(tmp_path))

    def write(body: str, minimum: int = 1) -> None:
        (tmp_path / "faulty").mkdir()
        body = textwrap.indent(textwrap.dedent(body), "    ")
        (tmp_path / "faulty" / "method.py").write_text(MODULE.replace("BODY", body))
        (tmp_path / "faulty" / "card.yaml").write_text(CARD.replace("MINIMUM", str(minimum)))

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


def test_every_check_has_a_fault() -> None:
    names = {check.__name__ for check in conformance.CHECKS}
    assert names - set(FAULTS) == {"graph_replay_equals_eager"}


def test_a_budget_under_the_cards_minimum_must_be_refused(install: Callable[..., None]) -> None:
    install("pass", minimum=5)
    bench = make_bench("faulty", "cpu", {}, dtype=torch.float64, seed=0)
    with pytest.raises(GateError, match="a budget of 4 was accepted"):
        conformance.bad_parameters_are_refused(bench)


def test_the_message_names_method_parameters_and_check(install: Callable[..., None]) -> None:
    install(FAULTS["traffic_covers_the_reads"])
    with pytest.raises(GateError, match=r"faulty \{'dense_layers': 1\}: traffic_covers_the_reads: .* 10 bytes"):
        conformance.check_method("faulty", "cpu", {"dense_layers": 1})
