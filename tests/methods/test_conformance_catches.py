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

FAULTS = {
    "card_names_the_parameters": """
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
    "the_rule_is_stated": None,
    "reads_follow_the_rule": """
        def select(self, layer, q, state):
            chosen = super().select(layer, q, state)
            if chosen is not None:
                chosen.counts = (chosen.counts - 1).clamp(min=1)
            return chosen
    """,
    "traffic_follows_the_rule": """
        def traffic(self, context_tokens, bytes_per_element):
            said = super().traffic(context_tokens, bytes_per_element)
            return Traffic(said.kv_bytes, said.metadata_bytes // 2)
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
                longest = state.kv_lengths.max()
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
            return out + 0 * state.dense.values(layer)[:, :1, -1:, :]
    """,
    "stored_keys_keep_their_rotation": """
        def make_method_state(self, cache):
            cache.k[0, :, :, 0] = cache.k[0, :, :, 0].roll(16, dims=-1)
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
            if int(state.kv_lengths.max()) < self.budget_tokens:
                return None
            return super().select(layer, q, state)
    """,
    "runs_leave_no_trace": """
        runs = 0
        def make_method_state(self, cache):
            self.runs += 1
            self.budget_tokens -= self.runs > 2
            return super().make_method_state(cache)
    """,
}
"""By check, a fault of the oracle that it must find; ``None`` installs no rule.py."""

# fmt: off
PLANTED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "page bounds ignore the sign of the query": ("quest", {}, """
        def select(self, layer, q, state):
            bounds = state.method_state.bounds
            right = bounds.get(layer)
            if right is not None:
                bounds[layer] = type(right)(right.maximum, right.maximum)
            chosen = super().select(layer, q, state)
            if right is not None:
                bounds[layer] = right
            return chosen
    """, "reads_follow_the_rule"),
    "page bounds are not widened by new keys": ("quest", {}, """
        def append(self, layer, heads, state):
            return state.cache.append(layer, heads)
    """, "reads_follow_the_rule"),
    "page bounds miss the last token of a page": ("quest", {}, """
        def make_method_state(self, cache):
            made = super().make_method_state(cache)
            module, size = sys.modules[Base.__module__], self.params.page_size
            for layer in made.bounds:
                keys = cache.keys(layer).clone()
                keys[:, :, size - 1 :: size] = keys[:, :, size - 2 :: size][:, :, : keys.shape[2] // size]
                made.bounds[layer] = module.build_page_minmax(keys, cache.lengths, size)
            return made
    """, "reads_follow_the_rule"),
    "a token twice in a list": ("oracle_topk", {}, """
        def select(self, layer, q, state):
            chosen = super().select(layer, q, state)
            if chosen is not None:
                chosen.indices[..., 1] = chosen.indices[..., 0]
            return chosen
    """, "reads_follow_the_rule"),
    "one recent token fewer": ("streaming", {}, """
        def make_cache(self, shape):
            self.budget_tokens -= 1
            cache = super().make_cache(shape)
            self.budget_tokens += 1
            return cache
    """, "reads_follow_the_rule"),
    "one sink fewer": ("streaming", {}, """
        def make_cache(self, shape):
            right = self.params
            self.params = replace(right, sinks=right.sinks - 1)
            cache = super().make_cache(shape)
            self.params = right
            return cache
    """, "reads_follow_the_rule"),
    "sinks are turned back by one position too many": ("streaming", {"positions": "cache"}, """
        def attend(self, layer, q, state):
            right = state.cache.evicted
            state.cache.evicted = lambda: right() + 1
            out = super().attend(layer, q, state)
            del state.cache.evicted
            return out
    """, "reads_follow_the_rule"),
    "the current page is not kept": ("quest", {}, """
        def select(self, layer, q, state):
            module = sys.modules[Base.__module__]
            right = module.topk_select
            module.topk_select = lambda *given, **kept: right(*given)
            chosen = super().select(layer, q, state)
            module.topk_select = right
            return chosen
    """, "reads_follow_the_rule"),
    "lists of KV heads are swapped": ("oracle_topk", {}, """
        def select(self, layer, q, state):
            chosen = super().select(layer, q, state)
            if chosen is not None:
                chosen.indices = chosen.indices.flip(1)
            return chosen
    """, "reads_follow_the_rule"),
    "lists of query heads are swapped": ("tidal", {"selection": "query_head"}, """
        def select(self, layer, q, state):
            chosen = super().select(layer, q, state)
            if chosen is not None:
                chosen = Selection(chosen.indices[:, [1, 0, 3, 2]], chosen.counts, chosen.block_size)
            return chosen
    """, "reads_follow_the_rule"),
    "retrieval and streaming heads are swapped": ("duo", {}, """
        def __init__(self, params, config, budget_tokens):
            module = sys.modules[Base.__module__]
            right = module.resolve_roles
            module.resolve_roles = lambda *given, **more: tuple(
                tuple(not role for role in row) for row in right(*given, **more)
            )
            super().__init__(params, config, budget_tokens)
            module.resolve_roles = right
    """, "reads_follow_the_rule"),
    "retrieval roles are of the other KV head": ("lychee", {}, """
        def __init__(self, params, config, budget_tokens):
            module = sys.modules[Base.__module__]
            right = module.resolve_roles
            module.resolve_roles = lambda *given, **more: tuple(row[::-1] for row in right(*given, **more))
            super().__init__(params, config, budget_tokens)
            module.resolve_roles = right
    """, "reads_follow_the_rule"),
    "no re-selection": ("tidal", {}, """
        def select(self, layer, q, state):
            return None if layer == self.reselect_layer else super().select(layer, q, state)
    """, "reads_follow_the_rule"),
    "selection one layer late": ("tidal", {}, """
        def select(self, layer, q, state):
            if layer == 2:
                return None
            if layer == 3:
                super().select(2, q, state)
            return super().select(layer, q, state)
    """, "reads_follow_the_rule"),
    "an inherited list is not refreshed in the next step": ("tidal", {}, """
        def select(self, layer, q, state):
            old = layer == 2 and state.method_state.value is not None
            return None if old else super().select(layer, q, state)
    """, "reads_follow_the_rule"),
    "a list that another layer's head chose": ("lychee", {}, """
        def attend(self, layer, q, state):
            lists = state.method_state
            before = lists.indices.clone()
            out = super().attend(layer, q, state)
            if layer > 0:
                lists.indices.copy_(before)
            return out
    """, "reads_follow_the_rule"),
    "counts off by one": ("tidal", {}, """
        def select(self, layer, q, state):
            chosen = super().select(layer, q, state)
            if chosen is not None:
                chosen = Selection(chosen.indices, chosen.counts - 1, chosen.block_size)
            return chosen
    """, "reads_follow_the_rule"),
    "one percent of the reads is not counted": ("oracle_topk", {}, """
        def attend(self, layer, q, state):
            before = state.kv_tokens_read[layer].clone()
            out = super().attend(layer, q, state)
            state.kv_tokens_read[layer] -= (state.kv_tokens_read[layer] - before) // 100
            return out
    """, "reads_follow_the_rule"),
    "half of the metadata": ("quest", {}, """
        def traffic(self, context_tokens, bytes_per_element):
            said = super().traffic(context_tokens, bytes_per_element)
            return Traffic(said.kv_bytes, said.metadata_bytes // 2)
    """, "traffic_follows_the_rule"),
    "scores left by a head are no metadata": ("lychee", {}, """
        def traffic(self, context_tokens, bytes_per_element):
            return Traffic(super().traffic(context_tokens, bytes_per_element).kv_bytes)
    """, "traffic_follows_the_rule"),
    "the group's maximum where its mean is declared": ("quest", {"group_score": "mean"}, """
        def __init__(self, params, config, budget_tokens):
            super().__init__(replace(params, group_score="max"), config, budget_tokens)
    """, "reads_follow_the_rule"),
    "the budget is rounded up to a page": ("quest", {}, """
        @property
        def pages(self):
            return -(-self.budget_tokens // self.params.page_size)
    """, "reads_follow_the_rule"),
    "a block too many under the accuracy script": ("quest", {"variant": "accuracy_script"}, """
        @property
        def pages(self):
            return self.budget_tokens // self.params.page_size + 1
    """, "reads_follow_the_rule"),
    "the last block is cut one token short": ("quest", {}, """
        def attend(self, layer, q, state):
            right = state.kv_lengths
            chosen = self.select(layer, q, state)
            state.cache.kv_lengths = right - int(chosen is not None)
            out = super().attend(layer, q, state)
            state.cache.kv_lengths = right
            return out
    """, "reads_follow_the_rule"),
    "the selection of the step before": ("oracle_topk", {}, """
        def make_method_state(self, cache):
            return {}
        def select(self, layer, q, state):
            chosen = super().select(layer, q, state)
            before = state.method_state.get(layer, chosen)
            state.method_state[layer] = chosen
            return before
    """, "reads_follow_the_rule"),
    "one dense layer too many": ("oracle_topk", {}, """
        def dense_layers(self):
            return super().dense_layers() | {2}
    """, "reads_follow_the_rule"),
    "positions restart after an eviction": ("streaming", {}, """
        def make_method_state(self, cache):
            cache.positions.clamp_(max=self.budget_tokens)
            return super().make_method_state(cache)
    """, "reads_follow_the_rule"),
    "the wrong token is evicted": ("streaming", {}, """
        def before_step(self, state):
            cache = state.cache
            full = cache.positions >= self.budget_tokens
            newer = (cache.slot_mapping + 1).clamp(max=self.budget_tokens - 1)
            cache.slot_mapping = torch.where(full, newer, cache.slot_mapping)
            super().before_step(state)
    """, "reads_follow_the_rule"),
    "the most attended token is evicted": ("tova", {}, """
        def update_scores(self, scores, given):
            super().update_scores(scores, given)
            scores.neg_()
    """, "reads_follow_the_rule"),
    "only one query head of the group gives scores": ("h2o", {}, """
        def update_scores(self, scores, given):
            scores += given[:, :: self.config.group_size]
    """, "reads_follow_the_rule"),
    "scores of the prompt do not count": ("h2o", {}, """
        def prompt_scores(self, keys, lengths, observed):
            return torch.zeros_like(super().prompt_scores(keys, lengths, observed))
    """, "reads_follow_the_rule"),
    "the window is one query shorter": ("snapkv", {}, """
        def __init__(self, params, config, budget_tokens):
            super().__init__(replace(params, window=params.window - 1), config, budget_tokens)
    """, "reads_follow_the_rule"),
    "decoded tokens take the place of kept ones": ("snapkv", {}, """
        def make_cache(self, shape):
            return super().make_cache(replace(shape, decoded=1))
    """, "reads_follow_the_rule"),
    "lists of rows are swapped": ("oracle_topk", {}, """
        def select(self, layer, q, state):
            chosen = super().select(layer, q, state)
            if chosen is not None:
                chosen.indices = chosen.indices.flip(0)
            return chosen
    """, "reads_follow_the_rule"),
}
# fmt: on
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


def test_every_check_has_a_fault() -> None:
    names = {check.__name__ for check in conformance.CHECKS}
    assert names - set(FAULTS) == {"graph_replay_equals_eager", "speculation_changes_no_token"}


@pytest.mark.parametrize("bug", PLANTED)
def test_the_gate_catches_the_bug(install: Callable[..., None], bug: str) -> None:
    base, overrides, body, check = PLANTED[bug]
    install(body, base)
    with pytest.raises(GateError, match=f"faulty .*: {check}: "):
        conformance.check_method("faulty", "cpu", overrides)


def test_a_method_without_a_rule_passes_where_its_card_says_why(install: Callable[..., None]) -> None:
    install(None, rule="none", rule_reason="Reads depend on a trained index.")
    conformance.check_method("faulty", "cpu", {})


def test_a_reason_is_needed_to_have_no_rule(install: Callable[..., None]) -> None:
    install(None, rule="none")
    with pytest.raises(ConfigError, match="rule_reason is needed"):
        conformance.check_method("faulty", "cpu", {})


def test_a_whole_budget_that_is_not_exact_is_not_compared(install: Callable[..., None]) -> None:
    inexact = load_card("oracle_topk").conformance.model_dump() | {
        "whole_budget_exact": False,
        "why": "One token less.",
    }
    install(FAULTS["whole_budget_equals_full"], conformance=inexact)
    conformance.whole_budget_equals_full(make_bench("faulty", "cpu", {}, dtype=torch.float64, seed=0))


def test_a_budget_under_the_cards_minimum_must_be_refused(install: Callable[..., None]) -> None:
    limits = load_card("oracle_topk").limits.model_dump() | {"min_budget_tokens": 5}
    install("pass", limits=limits)
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
