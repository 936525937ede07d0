"""Prompts, n-grams, the released rule, rivals and bounds on TokenSwift's page: numbers by hand, holes with commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from longdecode.evals.plan import config_path
from longdecode.evals.records import Record
from longdecode.evals.run_config import load_run_config
from longdecode.evals.storage import write_records
from longdecode.reporting.papers.blocks import Block, Cells, Comparison, Listing, MissingResult, Prose
from longdecode.reporting.papers.registry import load_paper
from longdecode.reporting.papers.tokenswift.exactness import exact
from longdecode.reporting.papers.tokenswift.others import bound, others
from longdecode.reporting.papers.tokenswift.page import RATES, claimed
from longdecode.reporting.papers.tokenswift.runs import ngrams, prompts, released, unwritten
from longdecode.reporting.papers.tokenswift.tables import Mirror
from longdecode.reporting.speed.measured import Ceiling

ROOT = Path(__file__).parents[3]
CONFIG = yaml.safe_load((ROOT / "config" / "tokenswift.yaml").read_text(encoding="utf-8"))


def text(lychee_run: ModuleType, label: str, prompt: int, tokens: int, each: float, ms: float, **more: Any) -> Record:
    """Return a text whose every mark has ``each`` tokens a step, ``ms`` milliseconds a token."""
    beta = more.pop("beta", 0.0)
    measures = {
        "tokens": float(tokens), "depth": 0.0 if label == "full" else 4.0, "rows": 5.0, "loss_full": 2.5,
        "repeated_8": more.pop("repeated", 0.25), **{f"distinct_{n}": 0.1 * n for n in (1, 2, 3, 4)},
    }  # fmt: skip
    for mark in (20_480, 102_400):
        if mark <= tokens:
            measures |= {f"at_{mark}_tokens": mark + 1.0, f"at_{mark}_steps": mark / each, f"at_{mark}_ms": mark * ms,
                         f"at_{mark}_ngram_tokens": 4 * beta * mark / each}  # fmt: skip
    given: dict[str, Any] = {"method": "full" if label == "full" else "tokenswift", "task": "minp", "params": {}}
    return Record(
        profile="swift", model="tiny", label=label, suite="generation", task_version=1, metric="tokens_per_step",
        unit="tokens", higher_is_better=True, data_source="real", budget="1.0", budget_tokens=prompt, context=prompt,
        batch=1, seed=0, sample_index=0, status="ok", score=each, measures=measures,
        provenance=lychee_run.PROVENANCE, **given | more,
    )  # fmt: skip


def inputs_of(folder: Path, files: Mapping[str, list[Record]], config: Mapping[str, Any] = CONFIG) -> Any:
    for name, records in files.items():
        write_records(folder / "generation" / f"{name}.parquet", records, Record)
    paper = load_paper("tokenswift")
    return SimpleNamespace(
        folder=folder, words=lambda part: paper.words[part], published=paper.published, spec=paper, speed=None,
        missing=lambda what, command: MissingResult(what, paper.words["commands"][command]),
        results=SimpleNamespace(confidence=0.95, models=(), config=config, profile="swift"),
    )  # fmt: skip


def rows_of(blocks: list[Block]) -> list[dict[str, str]]:
    (table,) = [block for block in blocks if isinstance(block, Cells)]
    return [dict(zip(table.heads, row, strict=True)) for row in table.rows]


def whole(lychee_run: ModuleType, prompt: int, ms: float) -> list[Record]:
    return [
        text(lychee_run, "full", prompt, 102_400, 1, 4.0),
        text(lychee_run, "tokenswift_lean", prompt, 102_400, 2, ms, beta=0.1),
    ]


def test_texts_of_full_length_stand_by_their_prompt(tmp_path: Path, lychee_run: ModuleType) -> None:
    inputs = inputs_of(tmp_path, {"long": whole(lychee_run, 4096, 5.0)})
    *_, hole = prompts(inputs)
    assert isinstance(hole, MissingResult) and "a prompt of 2,048 and 8,192 tokens" in hole.what
    assert hole.command.endswith("results/swift/generation/prompts_long.parquet")
    late = [r for prompt, ms in ((2048, 2.0), (8192, 8.0)) for r in whole(lychee_run, prompt, ms)]
    inputs = inputs_of(tmp_path, {"prompts_long": late})
    blocks = prompts(inputs)
    assert not any(isinstance(block, MissingResult) for block in blocks)
    assert [(row["Prompt"], row["Over Full"], row["alpha"], row["beta"]) for row in rows_of(blocks)] == [
        ("2,048", "2.00", "0.25", "0.10"), ("4,096", "0.80", "0.25", "0.10"), ("8,192", "0.50", "0.25", "0.10"),
    ]  # fmt: skip
    # The printed table has them too, and the headline stays that of its own prompt.
    table, absent = Mirror("speedups", ("prefill", "method"), RATES)(inputs)[1:]
    assert isinstance(table, Comparison) and isinstance(absent, Comparison) and absent.fold
    speeds = {row.of[1]: row for row in table.rows if row.of[-1] == "speedup" and row.of[2] == "102,400"}
    assert {prompt: row.measured for prompt, row in speeds.items()} == {
        "2,048": "2.00",
        "4,096": "0.80",
        "8,192": "0.50",
    }
    assert speeds["2,048"].reason.startswith("tokenswift_lean; ") and speeds["2,048"].interval == "1 prompt"
    assert "no text of medusa_2pass drawn by minp" in {row.reason for row in absent.rows}
    headline = claimed(inputs)
    assert headline is not None and headline.measured == "0.80"


def test_a_short_text_is_why_a_figure_is_not_measured(tmp_path: Path, lychee_run: ModuleType) -> None:
    short = [text(lychee_run, label, 4096, 20_480, 2, 2.0) for label in ("full", "tokenswift_k0")]
    _, absent = Mirror("kv_policy", "cache", RATES)(inputs_of(tmp_path, {"middle": short}))
    assert isinstance(absent, Comparison)
    reasons = {(row.of[0], row.of[1]): row.reason for row in absent.rows}
    assert reasons["dynamic partial", "102,400"] == "the text of tokenswift_k0 has 20,480 tokens"
    assert reasons["full", "20,480"] == "no text of tokenswift_whole drawn by minp"
    assert "not implemented" in reasons["static partial", "20,480"]


def test_numbers_of_ngrams_are_held_to_the_words_of_figure_4(tmp_path: Path, lychee_run: ModuleType) -> None:
    full = text(lychee_run, "full", 4096, 20_480, 1, 4.0)
    many = text(lychee_run, "tokenswift", 4096, 20_480, 2, 5.0, beta=0.1, repeated=0.5)
    inputs = inputs_of(tmp_path, {"middle": [full, many]})
    *_, hole = ngrams(inputs)
    assert isinstance(hole, MissingResult) and hole.command.endswith("results/swift/generation/ablations.parquet")
    assert all(name in hole.what for name in ("tokenswift_k0", "tokenswift_k5", "tokenswift_k10"))
    k5 = text(lychee_run, "tokenswift_k5", 4096, 20_480, 1.8, 2.0, beta=0.2, repeated=0.25)
    inputs = inputs_of(tmp_path, {"ablations": [full, k5]})
    blocks = ngrams(inputs)
    (claims,) = [block for block in blocks if isinstance(block, Comparison)]
    assert {row.of[0]: (row.measured, row.verdict) for row in claims.rows} == {
        "beta": ("0.20 and 0.10", "same order"), "alpha": ("0.20 and 0.25", "other order"),
        "speedup": ("2.00 and 0.80", "same order"), "repeated 8": ("0.25 and 0.50", "other order"),
    }  # fmt: skip
    assert [row["Label"] for row in rows_of(blocks)] == ["tokenswift_k5", "tokenswift"]


def test_texts_of_the_job_with_most_labels_stand_side_by_side(tmp_path: Path, lychee_run: ModuleType) -> None:
    """A later file has one of the labels too, over a Full half as fast: its speed is not set beside the others'."""
    near, far = (text(lychee_run, "full", 4096, 20_480, 1, ms) for ms in (4.0, 8.0))
    k5, many = (text(lychee_run, label, 4096, 20_480, 2, 4.0) for label in ("tokenswift_k5", "tokenswift"))
    blocks = ngrams(inputs_of(tmp_path, {"ablations": [near, k5, many], "middle": [far, many]}))
    assert {row["Label"]: row["Over Full"] for row in rows_of(blocks)} == {
        "tokenswift_k5": "1.00", "tokenswift": "1.00"
    }  # fmt: skip


def test_drafters_not_held_in_every_way_are_named(tmp_path: Path) -> None:
    row = {"model": "tiny", "prompts": "9 7 5", "tokens": 2000, "status": "ok", "tokens_per_step": 2.0}
    ways = [("greedy", 1), ("greedy", 3), ("minp", 1), ("minp", 3)]
    rows = [row | {"label": label, "sampler": sampler, "batch": batch, "identical": float(batch)}
            for label, few in (("ngram", 4), ("quest+4", 4), ("quest+2", 1), ("dma+4", 1))
            for sampler, batch in ways[:few]]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "exact_texts.csv", index=False)
    inputs = inputs_of(tmp_path, {})
    said = [block.text for block in exact(inputs) if isinstance(block, Prose)][1]
    assert said.startswith("2 of 4 pairs") and said.endswith("`quest+2` on tiny (1) and `dma+4` on tiny (1).")


def test_what_the_release_does_otherwise_or_that_it_was_not_run(tmp_path: Path, lychee_run: ModuleType) -> None:
    full, *mine = (text(lychee_run, label, 4096, 20_480, each, 2.0)
                   for label, each in (("full", 1), ("tokenswift", 2), ("tokenswift_faithful", 3)))  # fmt: skip
    inputs = inputs_of(tmp_path, {"middle": [full, *mine]})
    blocks = released(inputs)
    assert [(row["Label"], row["Tokens a step"]) for row in rows_of(blocks)] == [
        ("tokenswift", "2.00"), ("tokenswift_faithful", "3.00"),
    ]  # fmt: skip
    hole = blocks[-1]
    assert isinstance(hole, MissingResult) and "tokenswift_released drawn by minp_20" in hole.what
    assert "tokenswift_faithful" not in hole.what
    said, items, hole = unwritten(inputs)
    assert isinstance(items, Listing) and isinstance(hole, MissingResult) and isinstance(said, Prose)
    named = {item.partition("`: ")[0].strip("`") for item in items.items}
    assert named == set(CONFIG["generation"]["runs"]) - {"middle"} and "ablations.parquet" in hole.command
    runs = {"middle": CONFIG["generation"]["runs"]["middle"]}
    assert unwritten(inputs_of(tmp_path, {}, {"generation": {"runs": runs}})) == []


def test_other_decoders_stand_by_our_own_versions(tmp_path: Path, lychee_run: ModuleType) -> None:
    full = text(lychee_run, "full", 4096, 20_480, 1, 4.0)
    drafts = [
        text(lychee_run, label, 4096, 20_480, 2, ms, method="speculate", params={"drafter": label.partition("+")[0]})
        for label, ms in (("streaming+4", 5.0), ("snapkv+2", 8.0), ("streaming+4x2", 1.0), ("quest+2", 1.0))
    ]
    small = [full, text(lychee_run, "triforce", 4096, 20_480, 2, 2.0, method="triforce")]
    small = [r.model_copy(update={"model": "smaller", "measures": r.measures | {"tokens": 9.0}}) for r in small]
    blocks = others(inputs_of(tmp_path, {"matrix": [full, *drafts], "small": small}))
    first, qwen = [block for block in blocks if isinstance(block, Comparison)]
    assert [(row.measured, row.reason) for row in first.rows] == [
        ("–", "no text of it"), ("0.80", "streaming+4, minp, 20,480 tokens after 4,096 on tiny"),
        ("–", "no small model of the same tokenizer was trained to draft"),
    ]  # fmt: skip
    assert qwen.fold and {row.reason for row in qwen.rows} == {"Qwen2.5 was not run"} and len(qwen.rows) == 60


def test_a_short_printed_text_stands_by_the_first_mark_past_it(tmp_path: Path, lychee_run: ModuleType) -> None:
    """Print's 256 tokens are not held against the end of a text that goes in circles by then."""
    full, rival = (text(lychee_run, label, 4096, 102_400, 2, 4.0, task="minp_plain") for label in ("full", "triforce"))
    late = rival.measures | {"at_102400_ms": rival.measures["at_102400_ms"] / 2}
    rival = rival.model_copy(update={"method": "triforce", "measures": late})
    inputs = inputs_of(tmp_path, {"long": [full, rival]})
    first, _ = [block for block in others(inputs) if isinstance(block, Comparison)]
    (row,) = [row for row in first.rows if row.of[0] == "triforce"]
    assert (row.measured, row.reason.split("; ")[0]) == ("1.00", "triforce, minp_plain, 20,480 tokens on tiny")
    # Table 3 has the length that print has, and says how the text was drawn.
    table = Mirror("speedups", ("prefill", "method"), RATES)(inputs)[1]
    assert isinstance(table, Comparison)
    (row,) = [row for row in table.rows if row.of[2] == "102,400" and row.of[-1] == "speedup"]
    assert row.measured == "2.00" and row.reason.startswith("drawn without the penalty; ")


def test_bounds_of_the_device_stand_beside_table_2(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"bench": "decode", "label": "full", "stage": "step", "batch": 1, "context": context,
         "bytes_min": 14e9 + context * 131_072} for context in (20_480, 102_400)
    )  # fmt: skip
    inputs = inputs_of(tmp_path, {})
    (empty,) = bound(inputs)
    assert isinstance(empty, Comparison) and {row.verdict for row in empty.rows} == {"not measured"}
    inputs.speed = SimpleNamespace(table=table, ceiling=lambda: Ceiling(4000.0, "probe", "device"))
    (found,) = bound(inputs)
    assert isinstance(found, Comparison)
    assert [(row.measured, row.verdict) for row in found.rows] == [
        ("4,000", "higher"), ("14.0", "lower"), ("3.5", "lower"), ("–", "not measured"),
    ]  # fmt: skip


@pytest.mark.parametrize("part", ["ngrams", "released"])
def test_parts_name_labels_and_samplers_of_the_configuration(part: str) -> None:
    run, words = load_run_config(config_path(ROOT, "tokenswift")), load_paper("tokenswift").words[part]
    assert run.generation is not None
    assert set(words["labels"]) <= set(run.methods) and set(words["samplers"]) <= set(run.generation.samplers)
    assert set(words.get("compared", ())) <= set(words["labels"])
