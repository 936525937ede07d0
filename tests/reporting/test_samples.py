"""The sample reader: lost answers, prompts made again and checked, gold spans, text that could harm a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from longdecode.evals.fingerprint import hash_texts
from longdecode.evals.records import Provenance, Record
from longdecode.evals.store import write_records
from longdecode.evals.tasks.registry import get_task
from longdecode.evals.tokenizing import load_tokenizer
from longdecode.reporting import samples
from longdecode.reporting.excerpts import pieces, shown, spans
from longdecode.reporting.results import Results, load_results
from longdecode.reporting.samples import PromptMismatchError, SampleReader, Side

WEIGHTS = Path(__file__).parents[2] / "models" / "miniature" / "weights"
TASK, CONTEXT, SEED = "mini_longgen_15", 1024, 7
EVIL = "<script>alert(1)</script>\x00\x1b[31m\u202e"


def records(label: str, parts: list[list[float]], text: str, digest: str | None = None) -> list[Record]:
    made = get_task(TASK).samples(CONTEXT, len(parts), SEED, load_tokenizer(WEIGHTS))
    origin = Provenance(
        revision="r" * 12, dirty=False, code_hash="c", model_hash="m", data_hash="d", device="x", dtype="float32",
        versions={}, started_at="2026-01-01T00:00:00",
    )  # fmt: skip
    fields: dict[str, Any] = {
        "profile": "p", "model": "miniature", "method": label, "variant": label, "params": {}, "context": CONTEXT,
        "batch": 1,
        "budget": "full" if label == "full" else "0.1", "budget_tokens": None if label == "full" else 103, "seed": SEED,
        "provenance": origin, "suite": "mini_longgen", "task": TASK, "task_version": 1, "metric": "accuracy",
        "unit": "fraction", "higher_is_better": True, "data_source": "generated", "status": "ok",
    }  # fmt: skip
    return [
        Record(**fields, sample_index=i, prompt_sha256=digest or hash_texts([s.prompt, s.forced]), output_text=text,
               score=sum(marks) / len(marks), parts=marks)
        for i, (s, marks) in enumerate(zip(made, parts, strict=True))
    ]  # fmt: skip


def run(folder: Path, text: str = "right", digest: str | None = None) -> Results:
    config = {
        "profile": "p", "models": {"miniature": {"path": str(WEIGHTS)}}, "methods": {"full": {}, "quest": {}},
        "budgets": [0.1], "suites": {"mini_longgen": {"contexts": [CONTEXT], "samples": 3}},
    }  # fmt: skip
    from longdecode.evals import curves, summary
    from longdecode.evals.store import write_table

    right = [1.0] * 15
    full = records("full", [right, right, [0.0, *right[1:]]], "full text", digest)
    mine = records("quest", [right, [1.0, 0.0, *right[2:]], [0.0, *right[1:]]], text, digest)
    for name, found in (("full", full), ("quest", mine)):
        write_records(folder / "records" / "miniature" / name / "mini_longgen.parquet", found, Record)
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    write_table(folder / "summary.csv", summary.summarise([*full, *mine], summary.Spread(0.95, 200, 0)))
    write_table(folder / "along_generation.parquet", curves.along_generation([*full, *mine], 0.95))
    write_table(folder / "loss_by_position.parquet", curves.loss_by_position([*full, *mine], 0.95))
    return load_results(folder / "config.yaml", folder)


def test_the_lost_sample_comes_with_its_prompt_its_gold_and_both_outputs(tmp_path: Path) -> None:
    reader = SampleReader(run(tmp_path))
    (cell,) = reader.cells("miniature", "mini_longgen", ["quest"])
    (found,) = reader.read(cell)
    sample = get_task(TASK).samples(CONTEXT, 2, SEED, load_tokenizer(WEIGHTS))[1]
    assert (found.index, found.full, found.lacks) == (1, Side([("full text", "")], "15 of 15 right"), "")
    assert found.method == Side([("right", "")], "14 of 15 right")
    assert found.missed == [sample.meta[1]] and found.gold == list(sample.meta)
    assert [text for text, kind in found.pieces if kind == "gold"] == [sample.meta[1]]
    assert reader.lost(cell) == [(SEED, 1)] and reader.read(cell, start=1) == []


def test_a_prompt_that_differs_from_the_one_scored_is_an_error(tmp_path: Path) -> None:
    reader = SampleReader(run(tmp_path, digest="f" * 64))
    with pytest.raises(PromptMismatchError, match=r"mini_longgen_15 at 1024 tokens, seed 7, sample 1: .*ffffffffffff"):
        reader.example("miniature", "mini_longgen", ["quest"])


def test_text_of_samples_is_escaped_and_control_characters_are_shown(tmp_path: Path) -> None:
    run(tmp_path, EVIL)
    asked = [
        "--suite",
        "mini_longgen",
        "--task",
        TASK,
        "--label",
        "quest",
        "--budget",
        "0.1",
        "--context",
        str(CONTEXT),
    ]
    assert samples.main(["--results", str(tmp_path), "--output", str(tmp_path / "out"), *asked]) == 0
    text = (tmp_path / "out" / "samples-1.html").read_text(encoding="utf-8")
    assert "<script" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;\u2400\u241b[31m\ufffd" in text
    assert "Page 1 of 1" in text and "<mark>" in text


def test_a_cell_that_lost_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path)
    asked = [
        "--suite",
        "mini_longgen",
        "--task",
        TASK,
        "--label",
        "quest",
        "--budget",
        "0.3",
        "--context",
        str(CONTEXT),
    ]
    assert samples.main(["--results", str(tmp_path), *asked]) == 1
    assert "hold no answer that Full alone gets right" in capsys.readouterr().err


def test_gold_spans_are_found_whole_or_in_two_parts() -> None:
    prompt = "aa [kxqz>mbra] bb [mbra=0077] cc"
    assert [prompt[a:b] for a, b in spans(prompt, "mbra=0077")] == ["mbra=0077"]
    assert [prompt[a:b] for a, b in spans(prompt, "kxqz>mbra=0077")] == ["kxqz>mbra", "mbra=0077"]
    long = "x" * 2000 + "GOLD12" + "y" * 2000
    cut = pieces(long, ["GOLD12"])
    assert [text for text, kind in cut if kind == "gold"] == ["GOLD12"]
    assert [text for text, kind in cut if kind == "cut"] == [f"[{n:,} characters left out]" for n in (1700, 1780)]
    assert sum(len(text) for text, _ in cut) < 800
    assert spans("xx plain-meadow is 43", "plain-meadow is 4386") == [(3, 21)]
    assert pieces("a b c", []) == [("a b c", "")], "a text that fits is whole"


def test_spans_that_touch_are_one_mark_and_an_item_is_marked_wherever_it_stands() -> None:
    assert [part for part in pieces("[evzs>obns+1]", ["evzs>obns+1=6", "obns+1"]) if part[1]] == [
        ("evzs>obns+1", "gold")
    ]
    text = "The pass key is 34038. " + "Sand. " * 200 + "34038 is the pass key."
    assert [text for text, kind in pieces(text, ["34038"]) if kind == "gold"] == ["34038", "34038"]


def test_letters_that_print_nothing_are_shown() -> None:
    assert shown("a\tb\nc\x07\r") == "a\tb\nc\u2407\u240d"
    assert shown("a\u00adb\x85c\u2028d\ud800") == "a\ufffdb\ufffdc\ufffdd\ufffd"


def test_a_long_output_is_cut_and_says_so(tmp_path: Path) -> None:
    reader = SampleReader(run(tmp_path, "z" * 5000))
    (found,) = reader.read(reader.cells("miniature", "mini_longgen", ["quest"])[0])
    assert ("[3,900 characters left out]", "cut") in found.method.output
