"""Configurations: what is read is what was written; wrong names and values are refused with file, key and a way out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from longdecode.engine.errors import ConfigError
from longdecode.evals.budgets import Budget
from longdecode.evals.config_values import merged
from longdecode.evals.run_config import build_run_config, load_run_config, schema_text
from longdecode.evals.tasks.registry import suite_tasks

ROOT = Path(__file__).parents[2]


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """An edit that sets one dotted key."""

    def edit(values: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for name in parents:
            values = values.setdefault(name, {})
        values[last] = value

    return edit


def test_a_file_is_read_as_written(tmp_path: Path, config_values: dict[str, Any]) -> None:
    path = tmp_path / "run.yaml"
    config_values["methods"]["mine"] = {"method": "streaming", "params": {"sinks": 2}}
    config_values["data"] = {"pg19": str(tmp_path)}
    config_values["instrument"] = {"full_min": 0.9, "full_min_by_task": {"mini_book_write": 0.5}}
    path.write_text(yaml.safe_dump(config_values))
    config = load_run_config(path)
    assert (config.source, config.profile, config.seed, config.dtype) == (str(path), "tiny", 5, "auto")
    assert config.models["tiny"].path == config_values["models"]["tiny"]["path"]
    assert (config.methods["mine"].method, config.methods["mine"].params) == ("streaming", {"sinks": 2})
    assert [budget.text for budget in config.budgets_of("mine")] == ["0.5", "64"]
    assert config.budgets_of("full") == (Budget(None),) and config.suites["mini_recall"].contexts == (256, 320)
    assert config.suites["mini_book"].tasks == suite_tasks("mini_book") and config.data == {"pg19": tmp_path}
    assert (config.instrument.full_min, config.instrument.streaming_budget) == (0.9, 0.15)
    assert config.instrument.full_min_by_task == {"mini_book_write": 0.5}
    both = build_run_config(config_values | {"budgets": [1, 1.0]}, "test")  # a token and the whole context
    assert [budget.text for budget in both.budgets] == ["1", "1.0"]
    values = merged(config_values, {"seed": 6, "suites": {"mini_book": {"samples": 9, "tasks": None}}})
    over = build_run_config(values, "test")
    assert (over.seed, over.suites["mini_book"].samples, over.suites["mini_book"].batch) == (6, 9, 2)


@pytest.mark.parametrize(
    ("value", "context", "tokens"),
    [(0.1, 4096, 410), (0.29, 100, 29), (0.07, 100, 7), (1.0, 333, 333), (64, 333, 64), (None, 5, None)],
)
def test_budgets_in_tokens_are_exact(value: float | int | None, context: int, tokens: int | None) -> None:
    assert Budget(value).tokens(context) == tokens


@pytest.mark.parametrize(
    ("edit", "key", "says"),
    [
        (put("suits", {}), "suits", "'suites'"),
        (put("methods/quset", {}), "methods.quset", "nearest valid name: 'quest'"),
        (put("methods/mine", {"method": "streamin"}), "methods.mine.method", "'streaming'"),
        (put("methods/streaming", {"params": {"sink": 4}}), "methods.streaming.params", "'sinks'"),
        (put("methods/a b", {"method": "full"}), "methods.a b", "'a b'"),
        (put("suites/mini_book/tasks", ["mini_book_los"]), "suites.mini_book.tasks", "'mini_book_loss'"),
        (put("suites/mini_book/tasks", ["mini_reason_8"]), "suites.mini_book.tasks", "'mini_reason_8'"),
        (put("suites/mini_book/samples", True), "suites.mini_book.samples", "True"),
        (put("budgets", [True]), "budgets", "True"),
        (put("instrument/full_min_by_task", {"mini_bok_write": 1}), "instrument.full_min_by_task", "'mini_book_write'"),
    ],
)  # fmt: skip
def test_bad_values_are_refused(config_values: dict[str, Any], edit: Callable[..., None], key: str, says: str) -> None:
    values = copy.deepcopy(config_values)
    edit(values)
    with pytest.raises(ConfigError) as caught:
        build_run_config(values, "config/mine.yaml")
    assert str(caught.value).startswith(f"config/mine.yaml: {key}") and says in str(caught.value)


def test_a_profile_of_another_model_is_pointed_to_that_model() -> None:
    text = (ROOT / "config" / "demo.yaml").read_text().replace("  miniature: {path", "  mymodel: {path")
    with pytest.raises(ConfigError, match="unknown model or shape 'miniature'; nearest valid name: 'mymodel'"):
        build_run_config(yaml.safe_load(text), "demo.yaml")


def test_a_variant_may_be_restricted_and_differ_by_model(config_values: dict[str, Any]) -> None:
    config_values["methods"]["part"] = {
        "method": "streaming", "suites": ["mini_book"], "budgets": [0.25], "params": {"sinks": 2},
        "by_model": {"llama3-8b": {"sinks": 8}},
    }  # fmt: skip
    config = build_run_config(config_values, "c")
    assert config.suites_of("part") == ("mini_book",) and config.suites_of("full") == tuple(config.suites)
    assert [budget.text for budget in config.budgets_of("part")] == ["0.25"]
    config_values["suites"]["ruler"] = {"contexts": [64], "samples": 2, "batch": 2, "question": ["decoded", "prompt"]}
    for given, suites in ([], ()), (["ruler_prompt"], ("ruler",)), (["ruler"], ("ruler_decoded", "ruler")):
        config_values["methods"]["part"]["suites"] = given
        assert build_run_config(config_values, "c").suites_of("part") == suites
    spec = config.methods["part"]
    assert (spec.params_of("tiny"), spec.params_of("llama3-8b")) == ({"sinks": 2}, {"sinks": 8})


def test_the_committed_schema_is_what_the_types_say(config_values: dict[str, Any]) -> None:
    text = (ROOT / "workflow" / "schemas" / "config.schema.yaml").read_text(encoding="utf-8")
    assert text == schema_text(), "run `make schema`"
    schema = yaml.safe_load(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    for path in sorted((ROOT / "config").glob("*.yaml")):
        jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), schema)
    for where in ("", "models/tiny", "methods/full", "suites/mini_book", "instrument", "data", "throughput"):
        values = copy.deepcopy(config_values)
        put(f"{where}/zzz".lstrip("/"), 1)(values)
        if where != "data":  # its names are those of the suites on hand
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(values, schema)
        with pytest.raises(ConfigError, match="a list is needed" if where == "throughput" else r"'zzz'.*valid: "):
            build_run_config(values, "c")


def test_a_variant_runs_on_the_models_it_names(config_values: dict[str, Any]) -> None:
    """Its gate checks the parameters of those models alone."""
    values = copy.deepcopy(config_values)
    values["models"]["other"] = {"path": "elsewhere"}
    label = next(name for name in values["methods"] if name != "full")
    values["methods"][label] = {**(values["methods"][label] or {}), "models": ["other"]}
    run = build_run_config(values, "c.yaml")
    assert run.methods[label].runs_on("other") and not run.methods[label].runs_on("tiny")
    assert run.methods["full"].runs_on("tiny")
