"""The suite math: its data in every format it comes in, its samples, and whole jobs with what cannot be marked."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_tokenizer import Words
from json_lines import write_rows
from longdecode.analysis.cells import all_cells, summary_table
from longdecode.engine.errors import DataUnavailableError, UnsupportedCellError
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.scoring.math_checker import MathChecker
from longdecode.evals.stats import Spread
from longdecode.evals.store import read_records
from longdecode.evals.tasks import math
from longdecode.evals.tasks.math import INSTRUCTION, SETS, Problem
from longdecode.evals.tasks.registry import default_tasks, get_task, suite_tasks

ROWS: dict[str, dict[str, Any]] = {
    "aime24": {"id": 60, "problem": "P", "solution": "\\boxed{025}", "answer": "025", "url": "u", "year": "2024"},
    "aime25": {"problem": "P", "answer": "25", "id": "0"},
    "math500": {"problem": "P", "solution": "s", "answer": "\\frac{1}{2}", "level": 2, "unique_id": "t"},
    "olympiadbench": {
        "id": 1606, "question": "P", "solution": ["s"], "final_answer": ["$2$"], "context": None, "image_1": None,
        "modality": "Text-only", "is_multiple_answer": False, "unit": None, "answer_type": "Numerical", "error": "1e-1",
    },
    "minerva": {"question": "P", "answer": "4.5e33"},
    "gsm8k": {"question": "P", "answer": "It is 2 * 3 = <<2*3=6>>6.\n#### 2,126"},
}  # fmt: skip
GOLDS = {
    "aime24": "025", "aime25": "25", "math500": "\\frac{1}{2}", "olympiadbench": "$2$", "minerva": "4.5e33",
    "gsm8k": "2,126",
}  # fmt: skip


def load_problems(name: str, source: Path) -> list[Problem]:
    return [problem for _, problem in math.MathTask(name, {"math": source}).problems()]


def snapshot(folder: Path, name: str) -> None:
    """A set as its repository on the hub holds it: a file named for the split, and a card that names configurations."""
    place = SETS[name]
    write_rows(folder / "data" / f"{place.split}.jsonl", [ROWS[name]])
    config = place.config or "default"
    files = [{"split": place.split, "path": f"data/{place.split}.jsonl"}]
    card = json.dumps({"configs": [{"config_name": config, "data_files": files}]})
    (folder / "README.md").write_text(f"---\n{card}\n---\n")


@pytest.mark.parametrize("name", SETS)
def test_a_snapshot_of_the_hub_is_read(name: str, tmp_path: Path) -> None:
    snapshot(tmp_path / SETS[name].folder, name)
    assert load_problems(name, tmp_path) == [Problem(GOLDS[name], (0.1,) if name == "olympiadbench" else ())]


def test_the_hub_itself_is_asked_for_pinned_revisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked, load = [], datasets.load_dataset

    def from_a_mirror(source: str, config: str | None, *, split: str, revision: str | None) -> Any:
        name = next(name for name, place in SETS.items() if place.hub_id == source)
        asked.append((name, revision))
        snapshot(tmp_path / name, name)
        return load(str(tmp_path / name), config, split=split)

    monkeypatch.setattr(datasets, "load_dataset", from_a_mirror)
    monkeypatch.chdir(tmp_path)
    for name in SETS:
        assert load_problems(name, Path("hub"))[0].gold == GOLDS[name]
    assert asked == [(name, place.revision) for name, place in SETS.items()]
    assert all(len(place.revision or "") == 40 for place in SETS.values())


def test_rows_without_an_answer_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "math500" / "test.jsonl", [{"problem": "P"}])
    with pytest.raises(DataUnavailableError, match="answer"):
        load_problems("math500", tmp_path)
    write_rows(tmp_path / "gsm8k" / "test.jsonl", [{"question": "P", "answer": "so it is many"}])
    with pytest.raises(DataUnavailableError, match=r"no integer: 'so it is many'.*data fetch math"):
        load_problems("gsm8k", tmp_path)


def test_the_shipped_layout_is_read_whole(shared_data: Path) -> None:
    assert {name: len(load_problems(name, shared_data)) for name in SETS} == {
        "aime24": 30, "aime25": 30, "math500": 500, "olympiadbench": 675, "minerva": 272, "gsm8k": 1319,
    }  # fmt: skip
    # Two sources of AIME 2025 differ in wording and agree in answers; the instruction is not part of the problem.
    found = load_problems("aime25", shared_data)
    prompt, first = math.MathTask("aime25", {"math": shared_data}).problems()[0]
    assert prompt == prompt.partition("$97_b.$")[0] + "$97_b.$" + INSTRUCTION and first == found[0] == Problem("70")
    assert [p.tolerance for p in load_problems("olympiadbench", shared_data) if p.tolerance] == [(0.1,)]


def test_draws_of_a_problem_stand_together_and_share_its_prompt(tmp_path: Path) -> None:
    rows = [{"problem": f"problem {i} " * (i + 1), "answer": i} for i in range(9)]
    write_rows(tmp_path / "aime24" / "test.jsonl", rows)
    task = get_task("aime24", {"math": tmp_path})
    assert (task.samples_per_problem, task.metric, task.temperature, task.top_p) == (16, "avg@16", 0.6, 0.95)
    samples = task.samples(100, 4, 7, Words())  # type: ignore[arg-type]
    assert [sample.index for sample in samples] == list(range(64))
    for i, sample in enumerate(samples):
        first = samples[i - i % 16]
        assert (sample.prompt, sample.meta, sample.forced, sample.stop) == (first.prompt, first.meta, "", None)
        assert sample.prompt == f"problem {sample.meta.gold} " * (int(sample.meta.gold) + 1) + INSTRUCTION
        assert sample.max_new_tokens == 100 - 3 - len(sample.prompt.split())
    chosen = {sample.meta.gold for sample in samples}
    assert len(chosen) == 4
    # The same part for any context, another for another seed, all where more are asked for than there are.
    assert {s.meta.gold for s in task.samples(200, 4, 7, Words())} == chosen  # type: ignore[arg-type]
    assert {s.meta.gold for seed in range(20) for s in task.samples(100, 4, seed, Words())} != chosen  # type: ignore[arg-type]
    assert len(task.samples(100, 50, 7, Words())) == 9 * 16  # type: ignore[arg-type]
    with pytest.raises(UnsupportedCellError, match="leaves nothing to generate in a context of 20"):
        task.samples(20, 9, 7, Words())  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path, chatty: Path, gate: list[Any]) -> Callable[..., list[Record]]:
    """One job of the suite on a byte model with a chat template and an end-of-sequence token."""
    (chatty / "generation_config.json").write_text(json.dumps({"eos_token_id": [65, 256]}))
    rows = [{"problem": f"{i}+1?", "answer": str(i + 1)} for i in range(5)]
    write_rows(tmp_path / "data" / "math500" / "test.jsonl", rows)
    values = {
        "profile": "tiny", "device": "cpu", "models": {"tiny": {"path": str(chatty)}}, "methods": {"full": {}},
        "budgets": [64], "data": {"math": str(tmp_path / "data")},
        "suites": {"math": {"contexts": [130], "samples": 6, "batch": 5, "tasks": ["math500"]}},
    }  # fmt: skip

    def start(folder: str) -> list[Record]:
        output = tmp_path / folder / "records" / "tiny" / "full" / "math.parquet"
        evaluate_suite(build_run_config(values, "test.yaml"), "tiny", "math", {"full": output})
        return read_records(output, Record)

    return start


def test_a_job_marks_cuts_off_and_gives_up(run: Callable[..., list[Record]], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["1", "{9}", None, "10^{10^{10^{10}}}", "\\frac{10}{2}"])
    monkeypatch.setattr(math, "final_answer", lambda text: next(answers))
    with contextlib.closing(MathChecker(deadline_seconds=1.5)) as checker:
        monkeypatch.setattr(math, "shared_checker", lambda: checker)
        records = run("a")
    assert [r.sample_index for r in records] == [0, 1, 2, 3, 4]
    assert [r.score for r in records] == [1.0, 0.0, 0.0, None, 1.0]
    assert [r.status for r in records] == ["ok", "ok", "ok", "timeout", "ok"]
    assert "1.5 s" in (records[3].reason or "") and records[3].output_ids
    for r in records:
        # An end-of-sequence token, "A" or the special one, ends a completion; else the context does.
        assert r.output_ids is not None
        ended = r.output_ids[-1] in (65, 256)
        assert (r.measures["truncated"], r.finish_reason) == ((0, "stop") if ended else (1, "length"))
        prompt = len(f"<s>[user]{r.sample_index}+1?{INSTRUCTION}[end][bot]")
        assert len(r.output_ids) == 130 - prompt or ended
    row = summary_table(all_cells(records), Spread(0.95, 200, 0)).iloc[0]
    assert (row["status"], row["n"], row["n_timeout"], row["value"]) == ("ok", 4, 1, 0.5)
    assert row["truncated"] == pytest.approx(sum(r.measures["truncated"] for r in records) / 5)
    # A second run marks nothing again, and keeps the sample that was given up.
    monkeypatch.setattr(math, "final_answer", lambda text: pytest.fail("marked again"))
    assert run("a") == records


def test_a_model_without_a_chat_template_is_unsupported(tmp_path: Path, run: Callable[..., list[Record]]) -> None:
    (tmp_path / "chatty" / "tokenizer_config.json").unlink()
    assert [(r.status, r.sample_index) for r in run("b")] == [("unsupported", -1)]


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no such role') }}", "{% for m in messages %}", "{{ messages[0].content.parts() }}",
        [{"name": "tool_use", "template": "{{ messages[0]['content'] }}"}, {"name": "rag", "template": "x"}],
        [{"name": "tool_use"}], 5,
    ],
)  # fmt: skip
def test_a_broken_chat_template_ends_its_cells(template: Any, tmp_path: Path, run: Callable[..., list[Record]]) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (tmp_path / "chatty" / "tokenizer_config.json").write_text(json.dumps(settings))
    (record,) = run("c")
    assert (record.status, record.sample_index) == ("unsupported", -1)
    assert record.reason and "chat template" in record.reason and "\n" not in record.reason


def test_an_empty_file_stands_in_the_summary(tmp_path: Path, run: Callable[..., list[Record]]) -> None:
    file = tmp_path / "data" / "math500" / "test.jsonl"
    file.write_text("\n")
    records = run("d")
    assert [(r.status, r.sample_index) for r in records] == [("data_unavailable", -1)]
    assert f"{file} is empty; fetch the set with `longdecode data fetch " in str(records[0].reason)
    row = summary_table(all_cells(records), Spread(0.95, 200, 0)).iloc[0]
    assert (row["suite"], row["task"], row["status"], row["n"]) == ("math", "math500", "data_unavailable", 0)


def test_a_set_without_rows_is_unavailable(run: Callable[..., list[Record]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "read_rows", lambda *given: [])
    assert [(r.status, r.reason) for r in run("e")] == [("data_unavailable", "math500: its data has no sample")]


def test_every_set_is_a_task_of_the_suite() -> None:
    reasoned = ("aime24", "aime25", "math500", "olympiadbench", "minerva")
    assert suite_tasks("math") == (*reasoned, "gsm8k", "math500_greedy") and default_tasks("math") == reasoned
    assert set(SETS) == {*reasoned, "gsm8k"}
    assert [get_task(name).samples_per_problem for name in suite_tasks("math")] == [16, 16, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(("name", "most"), [("gsm8k", 512), ("math500_greedy", 2048)])
def test_short_answers_are_greedy_and_bounded(name: str, most: int, tmp_path: Path) -> None:
    row = {"gsm8k": {"question": "Q", "answer": "so\n#### 7"}, "math500_greedy": {"problem": "Q", "answer": "7"}}[name]
    write_rows(tmp_path / name.removesuffix("_greedy") / "test.jsonl", [row])
    task = get_task(name, {"math": tmp_path})
    assert (task.temperature, task.top_p, task.metric, task.chat, task.stop_at_eos) == (0, 1, "accuracy", True, True)
    for context, tokens in ((16384, most), (100, 100 - 3 - len(f"Q{INSTRUCTION}".split()))):
        (sample,) = task.samples(context, 5, 0, Words())  # type: ignore[arg-type]
        assert (sample.max_new_tokens, sample.prompt) == (tokens, f"Q{INSTRUCTION}")
    assert task.score(sample, "It is \\boxed{7}.", ()).value == 1
    assert task.score(sample, "It is 7.", ()).value == task.score(sample, "\\boxed{8}", ()).value == 0


def test_gsm8k_compares_numbers() -> None:
    right = (
        ("18", "18"), ("18", "\\$18"), ("18", "18.00"), ("18", "18 dollars per day"), ("2,125", "2125"), ("18", "€18"),
        ("2125", "\\$2,125.00"), ("18", "18\\text{ eggs a day}"), ("20", "20\\%"), ("18", "x = 18"), ("-10", "-10"),
        ("-10", "$-10$"), ("6", "12/2"),
        ("18", "\\text{18 eggs}"), ("18", "\\text{\\textbf{\\$18}}"), ("18", "18 cm^2"), ("114200", "$114{,}200"),
    )  # fmt: skip
    wrong = (
        ("10", "-10"), ("-10", "10"), ("18", "18.5"), ("18", "18, 19"), ("18", "1.8"), ("18", "\\sqrt{18}"),
        ("24", "2,4"), ("18", "eighteen"), ("18", "sqrt(18)"), ("18", "18000"), ("18", ""),
        ("18", "18\\text{ hours and } 30\\text{ minutes}"), ("18", "18 red, 6 blue"), ("18", "\\text{18 and 20}"),
    )  # fmt: skip
    task = math.MathTask("gsm8k", {"math": None})
    assert [pair for pair in right if not task.is_right(Problem(pair[0]), pair[1])] == []
    assert [pair for pair in wrong if task.is_right(Problem(pair[0]), pair[1])] == []


def test_gsm8k_s_own_answers_are_right(shared_data: Path) -> None:
    found = load_problems("gsm8k", shared_data)
    task = math.MathTask("gsm8k", {"math": None})
    assert found[0].gold == "18" and all(task.is_right(problem, f"{problem.gold}.00") for problem in found)
    others = [(one, other) for one, other in itertools.pairwise(found) if one.gold != other.gold]
    assert len(others) > 1200 and not any(task.is_right(one, f"{other.gold}.00") for one, other in others)
