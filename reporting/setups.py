"""Setups: the configuration behind a score or a time, so that the two are compared only where they are the same."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from longdecode.engine.config_reader import parse_config, read_config
from longdecode.engine.errors import LongDecodeError
from longdecode.engine.model_cache import built_model
from longdecode.evals.budgets import bytes_share, token_share
from longdecode.evals.throughput.shapes import RAW_SHAPES
from longdecode.methods.registry import get_method, load_card, method_names
from longdecode.reporting.results import Results
from longdecode.reporting.speed.measured import STEP
from longdecode.reporting.wording import NARROW, budget, gap, gap_interval, listing, percent, ratio, short_tokens

_BLOCK_KNOBS = ("block_size", "page_size")


@dataclass(frozen=True, slots=True)
class Setup:
    """One configuration of a method, free of the model's size.

    Args:
        whole: share of all KV heads that ignore the budget and read everything.
        block: tokens of a block or page; 1 where tokens are chosen one by one or not at all.
        budget: share of the context that the other heads may read.
    """

    whole: float
    block: int
    budget: float

    @property
    def words(self) -> str:
        """The setup as pages print it."""
        blocks = f"blocks of {self.block}, " if self.block > 1 else ""
        return (
            f"{percent(round(self.whole, 4))}{NARROW}% of heads read everything, {blocks}"
            f"budget {percent(round(self.budget, 4))}{NARROW}%"
        )

    def equals(self, other: Setup) -> bool:
        """Tell whether two setups are one configuration, up to the rounding of whole heads and tokens."""
        shares = math.isclose(self.budget, other.budget, rel_tol=0.02) and abs(self.whole - other.whole) < 0.01
        return shares and self.block == other.block


@dataclass(frozen=True, slots=True)
class Matched:
    """The table of configurations that were both scored and timed."""

    rows: list[tuple[str, ...]]
    heads: tuple[str, ...] = (
        "Label", "Configuration", "Scored on", "at", "Difference to Full", "Interval", "Timed as", "Over Full",
        "Interval",
    )  # fmt: skip
    numeric: tuple[int, ...] = (4, 7)


def setups(results: Results, table: pd.DataFrame, kind: str) -> list[tuple[pd.Series, Setup]]:
    """Return the rows of summary.csv or speed.csv that have a setup, each with it; Full and unknown models have none.

    Args:
        results: for the models' shapes.
        table: the rows, with ``model``, ``params``, ``budget``, ``budget_tokens`` and ``context``.
        kind: the column with the registered method.
    """
    known = results.config.get("models") or {}
    found = []
    for _, row in table[(table["budget"] != "full") & table["budget_tokens"].notna()].iterrows():
        tokens, text = int(row["budget_tokens"]), str(row["budget"])
        share = token_share(text) or tokens / float(row["context"])
        path = str((known.get(row["model"]) or {}).get("path", ""))
        setup = _setup(row[kind], row["params"], row["model"], path, tokens, share)
        if setup is not None:
            found.append((row, setup))
    return found


@functools.cache
def _setup(kind: str, params: str, model: str, path: str, tokens: int, share: float) -> Setup | None:
    raw = RAW_SHAPES.get(model)
    folder = built_model(path) or Path(path)
    if kind not in method_names() or (raw is None and not (folder / "config.json").is_file()):
        return None
    config = read_config(folder) if raw is None else parse_config(raw, model)
    given: dict[str, Any] = json.loads(params)
    try:
        method = get_method(kind).from_budget(tokens, config, **given)
    except LongDecodeError:  # this cell has no number either, or its role file is not at hand
        return None
    whole = sum(map(len, method.dense_heads())) / (config.num_layers * config.num_kv_heads)
    knobs = {knob.name: given.get(knob.name, knob.default) for knob in load_card(kind).knobs}
    block = 1 if knobs.get("mode") == "token" else next((int(knobs[k]) for k in _BLOCK_KNOBS if k in knobs), 1)
    return Setup(whole, block, share)


def timed_setups(results: Results) -> dict[tuple[str, str, int], str]:
    """Return the setup of every timed step at its model's main budget in words, by model, label and context."""
    if results.speed is None:
        return {}
    steps = [results.speed.ok(model) for model in results.speed.models]
    rows = [mine[mine["budget"] == results.speed.main_budget(mine["model"].iloc[0])] for mine in steps if len(mine)]
    found = setups(results, pd.concat(rows), "subject") if rows else []
    return {(row["model"], row["label"], int(row["context"])): setup.words for row, setup in found}


def matched(results: Results) -> Matched | None:
    """Return the configurations that were scored and timed; ``None`` where the run has scores or times only.

    Scores are those of the context where methods lose most, times those of the longest context with the same setup.
    """
    if results.speed is None or not results.has_quality:
        return None
    steps = results.speed.table
    steps = steps[(steps["bench"] == "decode") & (steps["stage"] == STEP) & (steps["status"] == "ok")]
    timed = [(step, setup) for step, setup in setups(results, steps, "subject") if pd.notna(step["ratio"])]
    rows = []
    for topic in (topic for model in results.models for topic in results.topics(model)):
        here = results.rows_of(topic, results.hardest_context(topic))
        here = here[(here["status"] == "ok") & here["diff_to_full"].notna()]
        for row, setup, words in _asked(setups(results, here, "kind")):
            same = [step for step, other in timed if step["label"] == row["method"] and setup.equals(other)]
            for model in dict.fromkeys(step["model"] for step in same):
                step = max((s for s in same if s["model"] == model), key=lambda s: (s["context"], -s["batch"]))
                rows.append((row["method"], words, topic.name, *_sides(row, step, topic.unit)))
    return Matched(rows)


def _asked(scored: Sequence[tuple[pd.Series, Setup]]) -> Iterator[tuple[pd.Series, Setup, str]]:
    """Yield each score with its setup in words; budgets in tokens and in bytes that came to one run are one row."""
    runs: dict[tuple[str, int, float], list[tuple[pd.Series, Setup]]] = {}
    for row, setup in scored:
        run = str(row["method"]), int(row["budget_tokens"]), round(float(row["value"]), 9)
        runs.setdefault(run, []).append((row, setup))
    for same in runs.values():
        row, setup = min(same, key=lambda each: bytes_share(str(each[0]["budget"])) is not None)
        shares = [budget(text) for other, _ in same if bytes_share(text := str(other["budget"])) is not None]
        asked = "also asked for" if len(shares) < len(same) else "asked for"
        yield row, setup, f"{setup.words} of the context, {asked} as {listing(shares)}" if shares else setup.words


def _sides(row: pd.Series, step: pd.Series, unit: str) -> tuple[str, ...]:
    return (
        short_tokens(int(row["context"])),
        gap(row["diff_to_full"], unit),
        gap_interval(row["diff_low"], row["diff_high"], unit),
        f"{step['model']}, {short_tokens(int(step['context']))}, batch {int(step['batch'])}",
        ratio(step["ratio"]),
        f"[{ratio(step['ratio_low'])}, {ratio(step['ratio_high'])}]",
    )
