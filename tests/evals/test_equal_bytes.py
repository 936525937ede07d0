"""Native budgets at equal bytes, against a search through every budget."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from longdecode.engine.config_reader import read_config
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.evals.budgets import native_budget
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.store import read_records
from longdecode.methods.registry import get_method
from small_run import run_values

MINIATURE, ITEMSIZE = Path(__file__).parents[2] / "models" / "miniature" / "weights", 2


def solve(name: str, share: float, context: int, **params: object) -> int:
    config = read_config(MINIATURE)
    full_bytes = context * config.kv_bytes_per_token(ITEMSIZE)
    build = partial(get_method(name).from_budget, config=config, **params)
    return native_budget(build, share, context, full_bytes, ITEMSIZE)


@pytest.mark.parametrize(("name", "params"), [
    ("quest", {}), ("streaming", {}), ("tidal", {}), ("snapkv", {}), ("duo", {"roles": "spread", "retrieval_heads": 24})
])  # fmt: skip
@pytest.mark.parametrize("share", [0.38, 0.4017, 0.5, 0.7])
def test_the_native_budget_is_that_of_a_search_through_every_budget(name: str, params: dict, share: float) -> None:
    config, context = read_config(MINIATURE), 300
    full_bytes, prices = context * config.kv_bytes_per_token(ITEMSIZE), {}
    for tokens in range(1, context + 1):
        with suppress(UnsupportedCellError):
            method = get_method(name).from_budget(tokens, config, **params)
            prices[tokens] = method.traffic_per_token(context, ITEMSIZE).total_bytes
    most = max((tokens for tokens, price in prices.items() if price <= round(share * full_bytes)), default=None)
    if most is not None and prices[most] >= 0.95 * share * full_bytes:
        assert solve(name, share, context, **params) == most
    else:
        with pytest.raises(UnsupportedCellError, match=f"nearest .* % at {(most or 0) + 1}"):
            solve(name, share, context, **params)


@pytest.mark.parametrize(("name", "share", "params", "said"), [
    ("duo", 0.25, {"roles": "spread", "retrieval_heads": 24}, "nearest 5[0-9].. % at 1$"),
    ("quest", 0.75, {"page_size": 512}, r"nearest \S+ % at 1535 and \S+ % at 1536$"),
    ("oracle_topk", 0.4, {}, r"nearest \S+ % at 1$"),  # scoring every key costs half of the sparse layers' bytes
])  # fmt: skip
def test_a_method_without_a_native_budget_says_why(name: str, share: float, params: dict, said: str) -> None:
    with pytest.raises(UnsupportedCellError, match=rf"no budget reads {100 * share:g} % .* at 2048 tokens; .*{said}"):
        solve(name, share, 2048, **params)


def test_a_budget_in_bytes_ends_as_records_that_read_it_or_as_a_status(tmp_path: Path) -> None:
    """Counted reads of the decode agree with the traffic model that the budget was solved from."""
    values = run_values(device="cpu", dtype="float32", models={"miniature": {"path": str(MINIATURE)}})
    values["suites"]["mini_recall"]["tasks"] = ["mini_recall_single"]
    methods = {"full": {}, "streaming": {}, "duo": {"params": {"retrieval_heads": 24}}}
    run = build_run_config(values | {"methods": methods, "budgets": [{"bytes": 0.25}]}, "run.yaml")
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
        build_run_config(run_values(budgets=[wrong]), "run.yaml")
