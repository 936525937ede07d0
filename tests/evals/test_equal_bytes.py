"""Native budgets at equal bytes, against a search through every budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from longdecode.engine.config_reader import read_config
from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals import equal_bytes
from longdecode.evals.equal_bytes import BFLOAT16_BYTES, bracket, common_share
from longdecode.methods.registry import get_method

MINIATURE = Path(__file__).parents[2] / "miniature" / "weights"


@pytest.mark.parametrize("name", ["quest", "streaming", "tidal", "duo"])
@pytest.mark.parametrize("share", [0.38, 0.4017, 0.7])
def test_the_bracket_is_that_of_a_search_through_every_budget(name: str, share: float) -> None:
    config, context = read_config(MINIATURE), 300
    params = {"roles": "spread", "retrieval_heads": 24} if name == "duo" else {}
    target = round(share * context * config.kv_bytes_per_token(BFLOAT16_BYTES))

    def build(tokens: int):  # type: ignore[no-untyped-def]
        return get_method(name).from_budget(tokens, config, **params)

    prices = {}
    for tokens in range(1, context + 1):
        try:
            prices[tokens] = build(tokens).traffic_per_token(context, BFLOAT16_BYTES).total_bytes
        except UnsupportedCellError:
            continue
    below, above = bracket(build, context, target)
    under = [tokens for tokens, price in prices.items() if price <= target]
    over = [tokens for tokens, price in prices.items() if price >= target]
    assert (below.tokens if below else None) == max(under, default=None)
    assert (above.tokens if above else None) == min(over, default=None)
    assert below is None or below.total_bytes == prices[below.tokens]


def test_a_method_that_reads_more_at_its_least_has_no_budget_below() -> None:
    """Scoring every key costs half of the sparse layers' bytes, which is more than the target."""
    config = read_config(MINIATURE)
    target = round(0.4 * 2048 * config.kv_bytes_per_token(BFLOAT16_BYTES))
    below, above = bracket(lambda tokens: get_method("oracle_topk").from_budget(tokens, config), 2048, target)
    assert below is None and above is not None and above.total_bytes > target


def test_the_share_serves_every_context(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        equal_bytes.EqualBytes("quest", context, 1, None, equal_bytes.PricedBudget(tokens, 1))
        for context, tokens in ((1000, 201), (2000, 403))
    ]
    assert common_share(rows) == 0.2015
    assert common_share([*rows, equal_bytes.EqualBytes("quest", 9, 1, None, None)]) is None
    assert equal_bytes.main(["lychee", "--rivals", "quest", "--contexts", "2048"]) == 0
    printed = capsys.readouterr().out
    assert "quest 2048 4986368" in printed  # the bytes that the committed records of lychee at 10 % have
