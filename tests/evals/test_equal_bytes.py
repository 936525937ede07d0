"""Native budgets at equal bytes, against a search through every budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from longdecode.engine.config_reader import read_config
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.evals.equal_bytes import BFLOAT16_BYTES, NativeBudgets, bracket
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.store import read_records
from longdecode.methods.registry import get_method

MINIATURE = Path(__file__).parents[2] / "models" / "miniature" / "weights"


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


def test_native_budgets_read_the_share_or_say_why_none_does() -> None:
    config = read_config(MINIATURE)
    full = 2048 * config.kv_bytes_per_token(BFLOAT16_BYTES)

    def native(name: str, **params: object) -> NativeBudgets:
        return NativeBudgets(lambda tokens: get_method(name).from_budget(tokens, config, **params), config)

    for name in ("quest", "streaming", "tidal", "snapkv"):
        tokens = native(name)["bytes=0.5", 2048]
        read = get_method(name).from_budget(tokens, config).traffic_per_token(2048, BFLOAT16_BYTES).total_bytes
        more = get_method(name).from_budget(tokens + 16, config).traffic_per_token(2048, BFLOAT16_BYTES).total_bytes
        assert 0.95 * 0.5 * full <= read <= 0.5 * full < more, name
    with pytest.raises(
        UnsupportedCellError, match=r"no budget reads 25 % .* at 2048 tokens; .* at every budget: 5[0-9]"
    ):
        native("duo", roles="spread", retrieval_heads=24)["bytes=0.25", 2048]
    with pytest.raises(UnsupportedCellError, match="jumps over it"):
        native("quest", page_size=512)["bytes=0.75", 2048]


def test_a_budget_in_bytes_ends_as_records_that_read_it_or_as_a_status(tmp_path: Path) -> None:
    """Counted reads of the decode agree with the traffic model that the budget was solved from."""
    values = {
        "profile": "trial", "device": "cpu", "dtype": "float32", "models": {"miniature": {"path": str(MINIATURE)}},
        "methods": {"full": {}, "streaming": {}, "duo": {"params": {"retrieval_heads": 24}}},
        "budgets": [{"bytes": 0.25}],
        "suites": {"mini_recall": {"contexts": [256], "samples": 1, "tasks": ["mini_recall_single"]}},
    }  # fmt: skip
    run = build_run_config(values, "run.yaml")
    outputs = {name: tmp_path / "records" / f"{name}.parquet" for name in run.methods}
    evaluate_suite(run, "miniature", "mini_recall", outputs, gated=False)
    full, streaming, duo = (read_records(path, Record)[0] for path in outputs.values())
    assert (streaming.budget, streaming.budget_tokens, streaming.status) == ("bytes=0.25", 64, "ok")
    assert streaming.measures["kv_bytes_per_step"] == full.measures["kv_bytes_per_step"] / 4
    assert streaming.measures["kv_tokens_read"] == pytest.approx(64)
    assert (duo.status, duo.budget_tokens) == ("unsupported", None) and "no budget reads 25 %" in (duo.reason or "")


@pytest.mark.parametrize("wrong", [{"bytes": 0}, {"bytes": 1.5}, {"byte": 0.5}, {"bytes": "0.5"}])
def test_budgets_in_bytes_are_shares(wrong: object) -> None:
    with pytest.raises(ConfigError, match="budgets"):
        build_run_config({"profile": "p", "models": {"m": {"path": "x"}}, "methods": {"full": {}}, "budgets": [wrong],
                          "suites": {"mini_recall": {"contexts": [256], "samples": 1}}}, "run.yaml")  # fmt: skip
