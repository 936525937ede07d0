"""Setups: a score belongs to a time only where share of whole heads, block size and budget share are the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from longdecode.evals.run_config import load_run_config
from longdecode.reporting.results import Results
from longdecode.reporting.setups import Setup, matched, setups

ROOT = Path(__file__).parents[2]
EMPTY = pd.DataFrame()


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # role files are named from there


def setup_of(model: str, params: str, budget: str, tokens: int, context: int, kind: str = "lychee") -> Setup | None:
    config = {"models": {"miniature": {"path": "models/miniature/weights"}}}
    row = {"model": model, "params": params, "budget": budget, "budget_tokens": tokens, "context": context}
    found = setups(
        Results("p", config, "", EMPTY, EMPTY, EMPTY, [], frozenset(), None),
        pd.DataFrame([row | {"kind": kind}]),
        "kind",
    )
    return found[0][1] if found else None


def test_what_is_scored_and_what_is_timed_differ_and_say_so() -> None:
    roles = (
        '{"roles": "models/miniature/roles/hardkuma.json", "block_size": 16, "sink_tokens": 16, "recent_tokens": 32}'
    )
    scored = setup_of("miniature", roles, "0.1", 205, 2048)
    timed = setup_of("llama3-8b", "{}", "4096", 4096, 131072)
    assert scored == Setup(16 / 48, 16, 0.1) and timed == Setup(32 / 256, 64, 0.03125)
    assert not scored.equals(timed)
    assert timed.words.replace("\u202f", " ") == "12.5 % of heads read everything, blocks of 64, budget 3.12 %"


@pytest.mark.parametrize(("label", "timed_at"), [("lychee_third", 32768), ("lychee_eighth", 131072)])
def test_the_evidence_has_equal_pairs(label: str, timed_at: int) -> None:
    """config/h200.yaml scores and times these labels in one configuration."""
    config = load_run_config("config/h200.yaml")
    spec, decode = config.methods[label], config.throughput.decode["llama3-8b"]  # type: ignore[union-attr]
    assert label in decode.methods and spec.suites and config.budgets_of(label)
    assert timed_at in decode.only[label].contexts
    (budget,) = config.budgets_of(label)
    scored = setup_of(
        "miniature", json.dumps(spec.params_of("miniature")), budget.text, budget.tokens(16384) or 0, 16384
    )
    timed = setup_of("llama3-8b", json.dumps(spec.params_of("llama3-8b")), "4096", 4096, timed_at)
    assert scored is not None and timed is not None and scored.equals(timed), (scored, timed)


def test_budgets_in_tokens_and_in_bytes_that_came_to_one_run_are_one_row() -> None:
    """Half of StreamingLLM's tokens are half of Full's bytes; a quarter was asked for in bytes alone."""
    place = {"model": "miniature", "suite": "mini_recall", "task": "mini_recall_single", "metric": "accuracy",
             "unit": "fraction", "data_source": "generated", "context": 2048, "batch": 32, "status": "ok"}  # fmt: skip
    full = {"method": "full", "kind": "full", "params": "{}", "budget": "full", "budget_tokens": None, "value": 1.0}
    sparse = full | {"method": "streaming", "kind": "streaming", "diff_low": -0.7, "diff_high": -0.6}
    half = sparse | {"budget_tokens": 1024, "value": 0.35, "diff_to_full": -0.65}
    quarter = sparse | {"budget": "bytes=0.25", "budget_tokens": 512, "value": 0.15, "diff_to_full": -0.85}
    rows = [full, half | {"budget": "0.5"}, half | {"budget": "bytes=0.5"}, quarter]
    step = {"bench": "decode", "stage": "step", "status": "ok", "model": "llama3-8b", "label": "streaming",
            "subject": "streaming", "params": "{}", "context": 131072, "batch": 1, "ratio": 1.4, "ratio_low": 1.4,
            "ratio_high": 1.4}  # fmt: skip
    steps = pd.DataFrame([step | {"budget": str(n), "budget_tokens": n} for n in (65536, 32768)])
    config = {"models": {"miniature": {"path": "models/miniature/weights"}}}
    summary = pd.DataFrame([place | row for row in rows])
    results = Results("p", config, "", summary, EMPTY, EMPTY, [], frozenset(), None, speed=SimpleNamespace(table=steps))
    found = matched(results)
    assert found is not None
    budgets = [words.replace("\u202f", " ").partition(", ")[2] for _, words, *_ in found.rows]
    assert budgets == [
        "budget 50 % of the context, also asked for as 50 % of bytes",
        "budget 25 % of the context, asked for as 25 % of bytes",
    ]
    summary.loc[2, ["value", "diff_to_full"]] = 0.36, -0.64  # not one run: two rows, told apart
    again = matched(results)
    assert again is not None
    budgets = [words.replace("\u202f", " ").partition(", ")[2] for _, words, *_ in again.rows[:2]]
    assert budgets == ["budget 50 %", "budget 50 % of the context, asked for as 50 % of bytes"]


def test_layers_that_read_everything_count_as_whole_heads() -> None:
    assert setup_of("llama3-8b", "{}", "0.1", 13108, 131072, "quest") == Setup(2 / 32, 16, 0.1)
    assert setup_of("unknown", "{}", "0.1", 13108, 131072, "quest") is None
    assert setup_of("llama3-8b", "{}", "0.1", 13108, 131072, "hf_full") is None


def test_a_built_model_is_found_where_it_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGDECODE_CACHE", str(tmp_path))
    (tmp_path / "smollm2-long").mkdir()
    shutil.copy(ROOT / "models/miniature/weights/config.json", tmp_path / "smollm2-long")
    row = {"model": "s", "params": "{}", "budget": "1024", "budget_tokens": 1024, "context": 32768, "kind": "quest"}
    config = {"models": {"s": {"path": "smollm2-long"}}}
    results = Results("p", config, "", EMPTY, EMPTY, EMPTY, [], frozenset(), None)
    ((_, found),) = setups(results, pd.DataFrame([row]), "kind")
    assert found == Setup(2 / 12, 16, 0.03125)
