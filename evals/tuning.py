"""Tune a knob that belongs to one model, on prompts that no table uses: ``python -m longdecode.evals.tuning``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from longdecode.engine.errors import ConfigError
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.storage import read_records, write_table
from longdecode.evals.summary import Spread, summarise

SEED = 1
CONTEXT = 1024
TASK = ("mini_longgen", "mini_longgen_15")
COLUMNS = ("method", "model", "knob", "setting", "task", "context", "seed", "budget", "n", "value", "low", "high")


def tuning_config(
    values: Mapping[str, Any], label: str, model: str, knob: str, settings: Sequence[Any]
) -> dict[str, Any]:
    """Return the configuration of a sweep: one label a setting, on a seed and a length that the run does not score.

    Args:
        values: the run's configuration.
        label: the label whose knob is swept; its other parameters stay.
        model: the model it is swept on.
        knob: the parameter's name.
        settings: the values tried.

    Raises:
        ConfigError: the configuration has no such label or model, or scores the tuning prompts itself.
    """
    if label not in values["methods"] or model not in values["models"]:
        raise ConfigError(f"tuning needs a label and a model of the configuration, not {label!r} and {model!r}")
    scored = {int(context) for suite in values["suites"].values() for context in suite["contexts"]}
    if CONTEXT in scored and values.get("seed", 0) == SEED:
        raise ConfigError(f"the configuration scores {CONTEXT} tokens at seed {SEED}, so tuning there would leak")
    spec = dict(values["methods"][label] or {})
    method = spec.get("method", label)
    params = {**spec.get("params", {}), **spec.get("by_model", {}).get(model, {})}
    suite, task = TASK
    kept = {name: values[name] for name in ("device", "dtype", "confidence", "bootstrap_resamples") if name in values}
    return kept | {
        "profile": "tuning",
        "seed": SEED,
        "models": {model: values["models"][model]},
        "methods": {f"{label}_{value}": {"method": method, "params": params | {knob: value}} for value in settings},
        "budgets": [0.1],
        "suites": {suite: {"contexts": [CONTEXT], "samples": 32, "batch": 32, "tasks": [task]}},
    }  # fmt: skip


def sweep(values: Mapping[str, Any], label: str, model: str, knob: str, settings: Sequence[Any]) -> pd.DataFrame:
    """Score every setting and return one row each, in the order given."""
    config = build_run_config(tuning_config(values, label, model, knob, settings), "tuning")
    suite, task = TASK
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = {name: Path(folder) / f"{name}.parquet" for name in config.methods}
        evaluate_suite(config, model, suite, outputs)
        for setting, output in zip(settings, outputs.values(), strict=True):
            table = summarise(read_records(output, Record), Spread(config.confidence, config.bootstrap_resamples, SEED))
            found = table[table["task"] == task].iloc[0]
            place = (label, model, knob, setting, task, CONTEXT, SEED)
            rows.append((*place, *(found[column] for column in COLUMNS[len(place) :])))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep one knob and put its rows into the table, in place of older rows of the same knob."""
    parser = argparse.ArgumentParser(prog="tuning", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("config/h200.yaml"))
    parser.add_argument("--label", required=True)
    parser.add_argument("--model", default="miniature")
    parser.add_argument("--knob", required=True)
    parser.add_argument("--settings", type=yaml.safe_load, nargs="+", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("results/h200/tuning.csv"))
    asked = parser.parse_args(arguments)
    values = yaml.safe_load(asked.config.read_text(encoding="utf-8")) | {"device": asked.device}
    table = sweep(values, asked.label, asked.model, asked.knob, asked.settings)
    if asked.output.exists():
        older = pd.read_csv(asked.output, dtype={"budget": str})
        same = (older["method"] == asked.label) & (older["model"] == asked.model) & (older["knob"] == asked.knob)
        table = pd.concat([older[~same], table])
    write_table(asked.output, table)
    print(table.to_string(index=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
