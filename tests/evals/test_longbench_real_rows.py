"""LongBench on its own rows, each joined with the published log of the same row: prompt, truncation and marks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from json_lines import read_rows
from longdecode.engine.errors import DataUnavailableError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.longbench import ENGLISH_EIGHT, PROTOCOLS, V2, LongBench
from longdecode.evals.tasks.registry import get_task

ROWS = {
    "multifieldqa_en": 50, "narrativeqa": 20, "2wikimqa": 28, "hotpotqa": 22, "triviaqa": 21, "qasper": 32,
    "passage_retrieval_en": 24, "qmsum": 40,
}  # fmt: skip
"""Genuine rows at hand: 237 in all."""
EVEN = ("2wikimqa", "hotpotqa", "passage_retrieval_en", "qasper", "triviaqa")


class Characters:
    """A tokenizer of characters: of the law of truncation it shows every one, and 237 long texts take it a second."""

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    prompt_ids = encode


@pytest.fixture
def tokenizer() -> TextTokenizer:
    return cast(TextTokenizer, Characters())


@pytest.fixture
def english(shared_data: Path, tmp_path: Path) -> Path:
    """The genuine rows of the eight tasks under the official names."""
    for dataset in ROWS:
        file = shared_data / "longbench_en" / f"{dataset}.jsonl"
        if dataset == "qmsum":
            file = shared_data / "longbench" / "rebuilt" / "qmsum.first40.jsonl"
        if not file.is_file():
            pytest.skip(f"no {file}")
        (tmp_path / f"{dataset}.jsonl").symlink_to(file)
    return tmp_path


def official_rows(shared_data: Path, dataset: str) -> list[int]:
    """The numbers that the rows at hand have in the published files."""
    if dataset == "qmsum":
        return list(range(40))
    index = (shared_data / "longbench_en" / "rows_index.tsv").read_text().splitlines()[1:]
    return [int(row) for task, _, row, *_ in (line.split("\t") for line in index) if task == dataset]


@pytest.mark.parametrize("dataset", ENGLISH_EIGHT)
def test_a_row_is_its_log_s_row(dataset: str, english: Path, shared_data: Path, tokenizer: TextTokenizer) -> None:
    logged = read_rows(shared_data / "longbench" / "scorer_golden" / "llama2-7b-chat" / f"{dataset}.jsonl")
    rows, numbers = read_rows(english / f"{dataset}.jsonl"), official_rows(shared_data, dataset)
    task, template = LongBench(dataset, {"longbench": english}), PROTOCOLS[dataset].prompt
    whole, short = (task.samples(context, 999, 0, tokenizer) for context in (1 << 20, 2048))
    assert len(whole) == len(short) == len(rows) == len(numbers) == ROWS[dataset]
    half = (2048 - task.protocol.max_new_tokens) // 2
    for sample, shortened, row, number in zip(whole, short, rows, numbers, strict=True):
        log = logged[number]
        for field in ("answers", "all_classes", "length"):
            assert row[field] == log[field]
        text = sample.prompt + sample.forced
        assert text == template.format(**row)  # as the official script fills it in
        # And as it cuts: the first and the last half of the tokens that fit.
        assert shortened.prompt + shortened.forced == text[:half] + text[-half:] != text
        published = Sample(0, "", "", 1, None, (tuple(log["answers"]), log["all_classes"]))
        assert task.score(sample, log["pred"], ()) == task.score(published, log["pred"], ())
        assert task.score(sample, row["answers"][0], ()).value == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("dataset", EVEN)
def test_longbench_e_asks_as_its_base_task(
    dataset: str, shared_data: Path, tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    file = shared_data / "longbench_e" / f"{dataset}_e.first10.jsonl"
    if not file.is_file():
        pytest.skip(f"no {file}")
    (tmp_path / f"{dataset}_e.jsonl").symlink_to(file)
    base, even = (get_task(f"longbench_{name}", {"longbench": tmp_path}) for name in (dataset, f"e_{dataset}"))
    samples = even.samples(1 << 20, 99, 0, tokenizer)
    assert (even.metric, even.suite, len(samples)) == (base.metric, "longbench", 10)
    for sample, row in zip(samples, read_rows(file), strict=True):
        assert row["dataset"] == f"{dataset}_e" and sample.meta[0] == tuple(row["answers"])
        assert sample.prompt + sample.forced == PROTOCOLS[dataset].prompt.format(**row)
        for text in (row["answers"][0], "Paragraph 3", "no such thing"):
            assert even.score(sample, text, ()) == base.score(sample, text, ())
    with pytest.raises(DataUnavailableError, match=rf"{dataset}\.jsonl in .* cannot be read"):  # never the base's
        base.samples(4096, 1, 0, tokenizer)


def test_longbench_v2_on_its_own_rows(shared_data: Path, tmp_path: Path, tokenizer: TextTokenizer) -> None:
    file = shared_data / "longbench_v2" / "short6.jsonl"
    if not file.is_file():
        pytest.skip(f"no {file}")
    rows = read_rows(file)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "data.jsonl").symlink_to(file)
    (tmp_path / "array").mkdir()
    (tmp_path / "array" / "data.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")  # as on the hub
    made = [
        get_task("longbench_v2", {"longbench_v2": tmp_path / form}).samples(1 << 20, 99, 0, tokenizer)
        for form in ("lines", "array")
    ]
    assert made[0] == made[1] and len(made[0]) == 6
    task = LongBench(V2, {"longbench_v2": None})
    for sample, row in zip(made[0], rows, strict=True):
        text = sample.prompt + sample.forced
        assert text.count(row["context"]) == 1 and sample.max_new_tokens == 128
        tail = text.rpartition("</text>")[2]
        assert [tail.index(f"({x}) {row[f'choice_{x}']}\n") for x in "ABCD"] == sorted(
            tail.index(f"({x}) ") for x in "ABCD"
        )
        assert row["question"] in tail
        for letter in "ABCD":
            assert task.score(sample, f"The correct answer is ({letter}).", ()).value == (letter == row["answer"])
