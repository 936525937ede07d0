"""lychee reads exactly what a slow search in float64 names, for several role maps, strategies and both modes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding import reads_follow_the_rule
from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.methods.conformance import CHECKS
from longdecode.methods.conformance_bench import make_bench
from longdecode.methods.head_roles import RoleFile, write_role_file
from longdecode.methods.lychee.plan import default_retrieval_heads, layer_plans
from longdecode.methods.lychee.strategies import kept_always_by_row, share_of, shares_of
from longdecode.methods.registry import get_method
from longdecode.methods.windows import kept_always

# By layer, the roles of the two KV heads of the tests' model.
ROLE_MAPS = {
    "first_layer_only": ["11", "00", "00", "00", "00", "00", "00"],
    "staggered": ["11", "00", "01", "10", "00", "01", "00"],
    "in_a_row_and_last": ["11", "10", "10", "01", "11", "00", "11"],
}


@pytest.fixture
def role_file(tmp_path: Path) -> Callable[..., str]:
    """A function that writes a role map and returns the file's name."""

    def write(roles: list[str]) -> str:
        table = [[int(role) for role in row] for row in roles]
        scores = [[float(role) for role in row] for row in table]
        file = RoleFile(model="t", layers=7, kv_heads=2, kind="test", scores=scores, roles=table)
        write_role_file(tmp_path / "roles.json", file)
        return str(tmp_path / "roles.json")

    return write


@pytest.fixture
def build(role_file: Callable[..., str], config: ModelConfig) -> Callable[..., AttentionMethod]:
    """A function of budget, role map and knobs."""
    build = partial(get_method("lychee").from_budget, config=config)
    return lambda budget, roles, **knobs: build(budget, roles=role_file(roles), **knobs)


KNOBS: list[dict[str, Any]] = [
    {"block_size": 4, "sink_tokens": 8, "recent_tokens": 8}, {"block_size": 4, "sink_tokens": 40, "recent_tokens": 90},
    {"block_size": 2, "strategy": "ratio", "ratio": 0.8, "sink_tokens": 6, "recent_tokens": 12},
    {"mode": "token", "sink_tokens": 3, "recent_tokens": 5},
    {"mode": "token", "strategy": "ratio", "ratio": 0.1, "sink_tokens": 6, "recent_tokens": 12},
    {"mode": "token", "strategy": "ratio", "ratio": 0.9, "sink_tokens": 8, "recent_tokens": 4},
    *({"mode": "token", "sink_tokens": sinks, "recent_tokens": recent, "strategy": name, name: value}
      for sinks, recent in ((0, 0), (2, 5))
      for name, value in (("top_p", 0.6), ("top_p", 1.0), ("threshold", 0.03), ("threshold", 0.9))),
]  # fmt: skip


@pytest.mark.parametrize(("roles", "knobs"), [*zip(itertools.cycle(ROLE_MAPS), KNOBS, strict=False)], ids=str)
def test_reads_are_those_of_the_rule(role_file: Callable[..., str], roles: str, knobs: dict[str, Any]) -> None:
    """Against a search by hand in float64, whose lists are as long as the strategy, sinks and recent tokens say.

    Blocks and tokens meet every role map.
    """
    reads_follow_the_rule("lychee", {"roles": role_file(ROLE_MAPS[roles]), **knobs})


@pytest.mark.parametrize(("first", "last", "at_least"), [(2, 5, 1), (128, 256, 0), (8, 1, 1), (0, 3, 0), (0, 0, 0)])
def test_what_is_kept_always_leaves_half_of_a_list(first: int, last: int, at_least: int) -> None:
    widths = torch.arange(1, 400)
    for width, *by_row in zip(widths.tolist(), *kept_always_by_row(widths, first, last, at_least), strict=True):
        sinks, recent = kept_always(width, first, last, at_least)
        assert [sinks, recent] == [int(x) for x in by_row] and 0 <= sinks <= first and at_least <= recent <= last
        assert sinks + recent == min(first + last, max(width // 2, at_least))


def test_shares_are_rounded_down() -> None:
    """A tenth of 10 is 1, though 1 - 0.9 is a little less than a tenth in floating point."""
    assert [share_of(n, 0.9, 5) for n in (5, 6, 9, 10, 19, 20, 1000)] == [5, 1, 1, 1, 1, 2, 5]
    entries = torch.arange(1, 300)
    assert shares_of(entries, 0.7, 50).tolist() == [share_of(n, 0.7, 50) for n in entries.tolist()]


def test_roles_decide_what_is_dense(build: Callable) -> None:
    method = build(64, ROLE_MAPS["in_a_row_and_last"])
    both, none = frozenset({0, 1}), frozenset()
    assert method.dense_heads() == (both, frozenset({0}), frozenset({0}), frozenset({1}), both, none, both)
    assert method.dense_layers() == {0, 4, 6}


def test_only_choices_that_are_read_are_made() -> None:
    """A retrieval head above a retrieval head, or in the last layer, has no reader."""
    plans = layer_plans(tuple(tuple(role == "1" for role in row) for row in ROLE_MAPS["in_a_row_and_last"]))
    assert [plan.choosing for plan in plans] == [(1,), (), (0,), (), (0, 1), (), ()]
    assert [plan.dense for plan in plans] == [False, False, False, False, False, False, True]
    assert [plan.mixed for plan in plans] == [False, True, True, True, False, False, False]
    assert plans[0].score_rows() == [-1, 0] and plans[4].score_rows() == [0, 1]


@pytest.mark.parametrize(("layers", "heads", "want"), [(32, 8, 32), (28, 4, 14), (12, 4, 6), (7, 2, 3), (36, 8, 36)])
def test_the_number_of_heads_follows_the_paper(layers: int, heads: int, want: int) -> None:
    assert default_retrieval_heads(layers, heads) == want


def test_traffic_by_hand(build: Callable) -> None:
    """A token's K and V of one head: 2 x 8 channels of 2 bytes, 32 bytes; 14 heads; context 102, blocks of 4."""

    def traffic(budget: int, roles: str, **knobs: Any) -> tuple[int, int]:
        got = build(budget, ROLE_MAPS[roles], block_size=4, **knobs).traffic(102, 2)
        return got.kv_bytes, got.metadata_bytes

    # 26 blocks, the last with 2 tokens: a list of 10 leaves out 16 whole blocks.
    assert traffic(41, "first_layer_only") == ((2 * 102 + 12 * (102 - 64)) * 32, 2 * 26 * 4)
    assert traffic(400, "first_layer_only")[0] == 14 * 102 * 32
    # Five heads retrieve, and each has a reader below.
    assert traffic(40, "staggered") == ((5 * 102 + 9 * 38) * 32, 5 * 26 * 4)
    assert traffic(40, "staggered", mode="token") == ((5 * 102 + 9 * 40) * 32, 5 * 102 * 4)
    assert traffic(40, "staggered", mode="token", strategy="ratio", ratio=0.7)[0] == (5 * 102 + 9 * 30) * 32
    # One byte a number from layer 2 on, where three heads retrieve.
    assert traffic(40, "staggered", kv_cache_dtype="fp8")[0] == (2 * 102 + 2 * 38) * 32 + (3 * 102 + 7 * 38) * 16
    assert build(40, ROLE_MAPS["staggered"], mode="token", strategy="top_p").traffic(102, 2).at_most


@pytest.mark.parametrize(
    ("knobs", "error", "message"),
    [
        ({"block_size": 48}, ConfigError, "power of two"),
        ({"strategy": "top_p"}, ConfigError, "needs mode = 'token'"),
        ({"strategy": "threshold"}, ConfigError, "needs mode = 'token'"),
        ({"ratio": 1.0}, ConfigError, "ratio = 1.0"),
        ({"roles": "learned"}, ConfigError, "roles = 'learned'"),
        ({"roles": "nowhere.json"}, ConfigError, "no such role file"),
        ({"retrieval_heads": 1}, UnsupportedCellError, "2 to 14 are possible"),
        ({"retrieval_heads": 14}, UnsupportedCellError, "keeps 7 layers dense"),
        ({"block_size": 128}, UnsupportedCellError, r"128 tokens \(one block of 128\)"),
        ({"correction": "often"}, ConfigError, "correction = 'often'"),
        ({"correction": "dense_step", "kv_cache_dtype": "fp8"}, ConfigError, "no correction"),
    ],
)
def test_refuses(config: ModelConfig, knobs: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        get_method("lychee").from_budget(64, config, **knobs)


PROBABILITY = [{"strategy": "top_p", "top_p": 0.5}, {"strategy": "threshold", "threshold": 0.02}, {"strategy": "ratio"}]


@pytest.mark.parametrize("knobs", PROBABILITY, ids=str)
def test_strategies_over_tokens_pass_the_gate(knobs: dict) -> None:
    """Their knobs come in pairs, so that no variant of the card stands for them."""
    bench = make_bench("lychee", "cpu", {"mode": "token", **knobs}, dtype=torch.float64, seed=0)
    for check in CHECKS:
        check(bench)
