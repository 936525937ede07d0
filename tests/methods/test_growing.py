"""Budgets that grow with the context: ``max(floor, share * L)``, row by row, against the rules in plain loops."""

from __future__ import annotations

import pytest
import torch

from longdecode.methods import conformance
from longdecode.methods.conformance_bench import make_bench
from longdecode.methods.conformance_launches import Place, check_launches
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.registry import get_method

CHECKS = (
    conformance.reads_follow_the_rule,
    conformance.traffic_follows_the_rule,
    conformance.reads_stay_within_budget,
    conformance.ragged_batch_equals_single_rows,
    conformance.a_step_never_waits_for_the_host,
)
METHODS = ["retro", "selection_reuse", "h2o", "tova", "streaming", "snapkv"]


@pytest.mark.parametrize("name", ["h2o", "tova", "snapkv"])
def test_a_prompt_shorter_than_its_cache_is_cut_too(name: str) -> None:
    """The longest budget of a growing one may be over what the shortest prompt has."""
    place = Place(1000, 2)
    check_launches(name, CONFIG, {"share": 0.2}, 125, place, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("name", METHODS)
def test_reads_follow_the_grown_budget(name: str) -> None:
    """At 253 to 261 tokens 0.4 of them is over the floor of 64 and grows; the shorter rows stay at the floor."""
    bench = make_bench(name, "cpu", {"share": 0.4}, dtype=torch.float64, seed=1)
    for check in CHECKS:
        check(bench)
    assert float(bench.small.reads[-1, bench.governed_layers()[-1], 0]) > bench.budget


def test_layers_of_streaming_that_keep_everything() -> None:
    """They need a cache of slots instead of a ring, where position tells sinks from the latest tokens."""
    conformance.reads_follow_the_rule(make_bench("streaming", "cpu", {"dense_layers": 2}, dtype=torch.float64, seed=1))


@pytest.mark.parametrize("share", [0.15, 0.1, 1.0, 1 / 3, 0.12345678901234568])
def test_the_device_and_the_host_agree_to_the_token(share: float) -> None:
    method = get_method("quest").from_budget(256, CONFIG, share=share)
    lengths = torch.tensor([*range(1, 9000), 131_072, 1 << 28])
    assert method.growth is not None and method.growth.of(lengths).tolist() == [
        method.budget_at(n) for n in lengths.tolist()
    ]
    # Decimal shares are exact: 0.15 of 2,000 tokens is 300, also where the binary product is a little less.
    assert method.budget_at(20_000) == pytest.approx(share * 20_000, abs=1)
    assert get_method("quest").from_budget(256, CONFIG, share=0.15).budget_at(2_000) == 300


def test_a_share_of_next_to_nothing_leaves_the_floor() -> None:
    method = get_method("quest").from_budget(256, CONFIG, share=1e-300)
    assert method.growth is not None and method.growth.of(torch.tensor([1 << 28])).tolist() == [256]
