"""A made-up run, large enough that every page and figure has something to show, with holes of several kinds."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from longdecode.evals import curves, summary
from longdecode.evals.records import Provenance, Record
from longdecode.evals.store import write_records, write_table
from longdecode.reporting import figure
from longdecode.reporting.build import build_report

CONFIG: dict[str, Any] = {
    "profile": "synthetic",
    "models": {"miniature": {"path": "nowhere/weights"}},
    "methods": {
        "full": {},
        "oracle_topk": {},
        "streaming": {},
        "quest": {},
        "quest_script": {"method": "quest", "params": {"variant": "accuracy_script"}},
        "tidal": {},
    },
    "budgets": [0.01, 0.03, 0.25],
    "suites": {
        "mini_recall": {"contexts": [2048, 8192], "samples": 8},
        "mini_longgen": {"contexts": [2048, 8192], "samples": 8},
        "mini_book": {"contexts": [2048, 8192], "samples": 8},
    },
}
TASKS = {
    "mini_recall": {"mini_recall_single": 1, "mini_recall_two_hop": 2},
    "mini_longgen": {"mini_longgen_15": 15, "mini_longgen_45": 45},
    "mini_book": {"mini_book_loss": 8, "mini_book_pg19": 8, "mini_book_write": 0},
}
NEED = {"oracle_topk": 0.004, "quest": 0.02, "quest_script": 0.012, "tidal": 0.06}
SPREAD = summary.Spread(0.95, 300, 0)
LAYER_BYTES = 12 * 2 * 4 * 32 * 2


def _provenance(context: int) -> Provenance:
    return Provenance(
        revision="0123456789abcdef0123456789abcdef01234567", dirty=True, code_hash="c" * 64, model_hash="m" * 64,
        data_hash=f"{context:064d}", device="NVIDIA H200", dtype="bfloat16",
        versions={"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0"}, sm_clock_mhz=1980,
        started_at=f"2026-03-0{1 + context % 7}T10:00:00+00:00",
    )  # fmt: skip


def _chance(label: str, share: float, context: int, question: float) -> float:
    """Return the probability that an item comes out right: a curve in the budget that sags along the generation."""
    if label == "full":
        return 0.998
    if label == "streaming":
        return min(0.95, share * 1.05)
    need = NEED[label] * (context / 4096) ** 0.4 * (1 + 0.8 * question)
    return 0.998 / (1 + math.exp(-3.2 * math.log(share / need)))


def _cell(
    label: str, suite: str, task: str, context: int, budget: float | None, rng: np.random.Generator
) -> Iterator[Record]:
    share = 1.0 if budget is None else budget
    tokens = None if budget is None else math.ceil(budget * context)
    loss = task in ("mini_book_loss", "mini_book_pg19")
    spec = CONFIG["methods"][label] or {}
    fields: dict[str, Any] = {
        "profile": "synthetic", "model": "miniature", "method": spec.get("method", label), "variant": label,
        "params": spec.get("params", {}), "suite": suite, "task": task, "task_version": 1,
        "metric": "loss" if loss else "accuracy", "unit": "nats/byte" if loss else "fraction",
        "higher_is_better": not loss, "data_source": "real" if task == "mini_book_pg19" else "generated",
        "budget": "full" if budget is None else str(budget), "budget_tokens": tokens, "context": context, "batch": 8,
        "seed": 0, "provenance": _provenance(context),
    }  # fmt: skip
    lost = _lost(label, task, context, share)
    if lost:
        yield Record(**fields, sample_index=-1, status=lost[0], reason=lost[1])
        return
    read = float(context if tokens is None else tokens)
    fetched = read * (2 if label == "quest_script" else 1)
    dense = {"full": 12, "streaming": 0, "tidal": 4}.get(label, 2)
    traffic = LAYER_BYTES / 12 * (dense * context + (12 - dense) * fetched)
    metadata = (
        LAYER_BYTES / 12 * 10 * context * {"oracle_topk": 0.5, "quest": 1 / 16, "quest_script": 1 / 16}.get(label, 0)
    )
    for index in range(CONFIG["suites"][suite]["samples"]):
        if loss:
            base = 0.55 + 0.5 * (2048 / context) ** 0.3
            extra = 0.9 * (1 - _chance(label, share, context, 0.5))
            parts = [float(base + extra * (0.7 + 0.05 * i) + rng.normal(0, 0.06)) for i in range(8)]
        else:
            count = TASKS[suite][task] or int(rng.integers(0, 5))
            own = rng.normal(0, 0.04)
            parts = [
                float(rng.random() < _chance(label, share, context, i / 45) + own * (label != "full"))
                for i in range(count)
            ]
        yield Record(
            **fields, sample_index=index, status="ok", prompt_sha256=f"{task}-{context}-{index}",
            score=float(np.mean(parts)) if parts else 0.0, parts=parts,
            measures={
                "kv_tokens_read": (dense * context + (12 - dense) * fetched) / 12, "kv_tokens_read_sparse": fetched,
                "kv_bytes_per_step": traffic, "metadata_bytes_per_step": metadata,
            } | ({"truncated": label == "streaming" and index % 4 == 0} if suite == "mini_longgen" else {}),
        )  # fmt: skip


def _lost(label: str, task: str, context: int, share: float) -> tuple[str, str] | None:
    if task == "mini_book_pg19":
        return (
            "data_unavailable",
            "mini_book_pg19: the configuration's data.pg19 names no folder. Fetch: curl -o books/860.txt <source>",
        )
    if task == "mini_longgen_45" and context == 2048:
        return "unsupported", "mini_longgen_45 does not fit 2048 tokens: 45 questions need 3,100 bytes & more"
    if label == "tidal" and context == 8192 and share <= 0.03:
        return "oom", "a KV cache of shape (12, 24, 4, 8192, 32) needs 18,000,000,000 bytes; 9,000 are free"
    if label == "quest_script" and share == 0.01 and context == 2048:
        return "unsupported", "quest: budget 21 is below three pages of 16 tokens"
    return None


MakeRun = Callable[..., Path]


def _write_run(folder: Path, config: dict[str, Any]) -> Path:
    everything: list[Record] = []
    for label in config["methods"]:
        for suite, spec in config["suites"].items():
            rng = np.random.default_rng([len(label), len(suite)])
            budgets = [None] if label == "full" else config["budgets"]
            records = [
                record
                for context in spec["contexts"]
                for task in TASKS[suite]
                for budget in budgets
                for record in _cell(label, suite, task, context, budget, rng)
            ]
            write_records(folder / "records" / "miniature" / label / f"{suite}.parquet", records, Record)
            everything += records
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    write_table(folder / "summary.csv", summary.summarise(everything, SPREAD))
    write_table(folder / "along_generation.parquet", curves.along_generation(everything, 0.95))
    write_table(folder / "loss_by_position.parquet", curves.loss_by_position(everything, 0.95))
    return folder


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """Writes a results folder as a run leaves it (all but instrument.json), for parts of the made-up run."""

    def make(methods: Iterable[str] = CONFIG["methods"], suites: Iterable[str] = CONFIG["suites"]) -> Path:
        config = CONFIG | {
            "methods": {name: CONFIG["methods"][name] for name in methods},
            "suites": {name: CONFIG["suites"][name] for name in suites},
        }
        return _write_run(tmp_path_factory.mktemp("results") / "synthetic", config)

    return make


@pytest.fixture(scope="session")
def speed_run() -> ModuleType:
    """The module that makes up times; loaded by path, as tests are no package."""
    spec = importlib.util.spec_from_file_location("speed_run", Path(__file__).with_name("speed_run.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def run_folder(make_run: MakeRun, speed_run: ModuleType) -> Path:
    """The whole made-up run, with instrument.json and times."""
    folder = make_run()
    speed_run.write_speed(folder)
    (folder / "instrument.json").write_text(json.dumps(INSTRUMENT), encoding="utf-8")
    return folder


def _check(name: str, requires: str, outcome: str, numbers: dict[str, Any]) -> dict[str, Any]:
    return {"model": "miniature", "name": name, "requires": requires, "outcome": outcome, "numbers": numbers}


INSTRUMENT = {
    "passed": True,
    "thresholds": {"full_min": 0.95},
    "checks": [
        _check(
            "full_solves/mini_longgen_45/8192", "full scores at least 0.95", "passed", {"score": 0.99812345, "n": 8}
        ),
        _check("streaming_fails", "streaming at budget 0.15 scores under 0.15", "not run", {}),
        _check("quest_rises/8192", "quest never falls", "passed", {"by_budget": {"0.01": 0.2, "0.03": 0.85}}),
    ],
}


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures empty, for tests of words: drawing is more than half of a report's time."""

    def draw(path: Path, *rest: Any) -> tuple[tuple[int, int], tuple[int, int]]:
        path.write_text("<svg/>", encoding="utf-8")
        return (1, 1), (1, 1)

    monkeypatch.setattr(figure, "_draw", draw)


@pytest.fixture(scope="session")
def report(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the made-up run."""
    target = tmp_path_factory.mktemp("reports") / "synthetic"
    build_report(run_folder / "config.yaml", run_folder, target)
    return target
