"""LongBench's loader and prompts, on archives written here and on real rows, each joined with the published log of the
same row; one job end to end on the miniature.
"""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import huggingface_hub
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from json_lines import read_rows, write_rows
from longdecode.engine.errors import DataUnavailableError, UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.evals.datasets.reader import SOURCES
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.quality_job import QualityJob
from longdecode.evals.records import Record
from longdecode.evals.run_config import RunConfig, build_run_config
from longdecode.evals.store import read_records
from longdecode.evals.tasks import longbench
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.registry import default_tasks, get_task, suite_tasks
from small_run import run_values

HUB_REVISION = SOURCES["longbench"].revision
MINIATURE = Path(__file__).resolve().parents[2] / "models" / "miniature" / "weights"


@pytest.fixture
def word_tokenizer() -> TextTokenizer:
    """Words as tokens, whose decoding puts blanks between, with a begin-of-text token."""
    words = ["<s>", "[UNK]", *(f"w{i}" for i in range(500)), "Question:", "Now,", "Answer:"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return TextTokenizer(tokenizer)


def row(**changes: Any) -> dict[str, Any]:
    """A row of LongBench's format."""
    whole = {"input": "Who?", "context": "A {story} told.", "answers": ["Ann", "Anna"], "all_classes": None}
    return whole | {"length": 5, "dataset": "qasper", "language": "en", "_id": "x"} | changes


def config(model: Path, data: Path, **suite: Any) -> RunConfig:
    """A configuration of Full on rows of this suite."""
    given = {"models": {"m": {"path": str(model)}}, "data": {"longbench": str(data)}}
    return build_run_config(run_values(device="cpu", suites={"longbench": suite}, **given), "test.yaml")


def write_archive(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A data.zip laid out as the published one."""
    with zipfile.ZipFile(folder / "data.zip", "w") as archive:
        archive.write(write_rows(folder / "rows.txt", rows), "data/qasper.jsonl")
        archive.writestr("data/qasper_e.jsonl", json.dumps(row(input="not this one")))
    return folder / "data.zip"


def test_rows_come_in_order_from_a_folder_and_from_an_archive(tmp_path: Path) -> None:
    rows = [row(input=f"Question {i}é\u2028?") for i in range(5)]
    write_rows(tmp_path / "plain" / "data" / "qasper.jsonl", rows)
    (tmp_path / "zipped").mkdir()
    write_archive(tmp_path / "zipped", rows)
    for folder in ("plain", "zipped"):
        found = longbench.read_v1_rows(tmp_path / folder, "qasper", 3)
        assert [item.text("input") for item in found] == [f"Question {i}é\u2028?" for i in range(3)]
        assert len(longbench.read_v1_rows(tmp_path / folder, "qasper", 99)) == 5


@pytest.mark.parametrize(
    ("given", "repo", "revision"),
    [
        ("THUDM/LongBench", "THUDM/LongBench", HUB_REVISION),
        ("someone/copy@abc123", "someone/copy", "abc123"),
        ("someone/copy", "someone/copy", None),
    ],
)
def test_a_hub_id_is_fetched_at_a_pinned_revision(
    given: str, repo: str, revision: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def download(*args: Any, **kwargs: Any) -> str:
        calls.append((args, kwargs))
        return str(write_archive(tmp_path, [row()]))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert longbench.read_v1_rows(Path(given), "qasper", 1)[0].text("input") == "Who?"
    assert calls == [((repo, "data.zip"), {"repo_type": "dataset", "revision": revision})]


def test_an_archive_is_read_and_never_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("../../qasper.jsonl", json.dumps(row()))
        archive.writestr(f"{tmp_path}/hotpotqa.jsonl", "{")
    assert len(longbench.read_v1_rows(tmp_path, "qasper", 3)) == 1 and [*tmp_path.iterdir()] == [tmp_path / "data.zip"]


def test_what_cannot_be_read_says_how_to_fetch_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: Any, **kwargs: Any) -> str:
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    write_archive(tmp_path, [row()])
    write_rows(tmp_path / "bad" / "qmsum.jsonl", [{"input": "", "context": "no answers"}])
    for source, dataset, reason in (
        (tmp_path, "hotpotqa", "holds no hotpotqa.jsonl"),
        (tmp_path / "bad", "qasper", "qasper.jsonl in .* cannot be read: .*data.zip"),
        (tmp_path / "bad", "qmsum", "qmsum.jsonl, line 1 lacks 'answers'"),
        (Path("zai-org/LongBench"), "qmsum", "OSError: no route"),
    ):
        with pytest.raises(DataUnavailableError, match=rf"{reason}.*data fetch longbench.*data\.longbench"):
            longbench.LongBench(dataset, {"longbench": source}).samples(4096, 1, 0, CHARACTERS)


def test_prompts_are_the_protocols_with_context_and_question_put_in(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    write_rows(tmp_path / "qasper.jsonl", [row(context="Braces {input} stay.")])
    sample = get_task("longbench_qasper_prompt", {"longbench": tmp_path}).samples(4096, 1, 0, tokenizer)[0]
    asked = longbench.PROTOCOLS["qasper"].prompt.replace("{input}", "Who?")
    assert sample.prompt == asked.replace("{context}", "Braces {input} stay.")
    assert (sample.forced, sample.max_new_tokens, sample.stop) == ("", 128, None)


@pytest.mark.parametrize("dataset", [name for name in longbench.PROTOCOLS if name != longbench.V2])
def test_the_question_is_decoded_from_its_marker(dataset: str, tmp_path: Path, tokenizer: TextTokenizer) -> None:
    """Without a marker, from the last hundred characters."""
    write_rows(tmp_path / f"{dataset}.jsonl", [row(context="Now, one. Question: two. " * 20)])
    whole = get_task(f"longbench_{dataset}_prompt", {"longbench": tmp_path}).samples(8192, 1, 0, tokenizer)[0].prompt
    fed = longbench.LongBench(dataset, {"longbench": tmp_path}).samples(8192, 1, 0, tokenizer)[0]
    assert fed.prompt + fed.forced == whole
    expected = {
        "narrativeqa": "Do not provide any explanation.\n\nQuestion: Who?\n\nAnswer:",
        "qasper": "Question: Who?\n\nAnswer:",
        "hotpotqa": "Question: Who?\nAnswer:",
        "gov_report": "Now, write a one-page summary of the report.\n\nSummary:",
    }
    assert fed.forced == expected.get(dataset, whole[-100:])


@pytest.mark.parametrize("name", ["longbench_qasper", "longbench_qasper_prompt"])
@pytest.mark.parametrize("context", [300, 301, 497])
def test_the_middle_is_cut(name: str, context: int, tmp_path: Path, word_tokenizer: TextTokenizer, seed: int) -> None:
    """Of a prompt that is too long."""
    words = random.Random(seed).choices([f"w{i}" for i in range(500)], k=900)
    write_rows(tmp_path / "qasper.jsonl", [row(context=" ".join(words), input="w7 w8 ?")])
    sample = get_task(name, {"longbench": tmp_path}).samples(context, 1, 0, word_tokenizer)[0]
    prompt, forced = word_tokenizer.prompt_ids(sample.prompt), word_tokenizer.encode(sample.forced)
    kept = (*prompt[1:], *forced)
    filled = longbench.PROTOCOLS["qasper"].prompt.replace("{context}", " ".join(words))
    whole = word_tokenizer.encode(filled.replace("{input}", "w7 w8 ?"))
    # The begin-of-text token has a place of its own; an odd limit loses one token to the halves.
    assert prompt[0] == 0 and context - 128 - 2 <= len(prompt) + len(forced) <= context - 128
    half = len(kept) // 2
    assert kept[:half] == whole[:half] and kept[-half:] == whole[-half:]
    assert bool(forced) is not name.endswith("_prompt")


def test_a_context_no_longer_than_the_generation_is_unsupported(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    write_rows(tmp_path / "qmsum.jsonl", [row()])
    with pytest.raises(UnsupportedCellError, match="longbench_qmsum generates 512 tokens"):
        get_task("longbench_qmsum", {"longbench": tmp_path}).samples(513, 1, 0, tokenizer)


def test_suites_hold_all_tasks_and_run_the_papers_eight_by_default() -> None:
    for suite, suffix in (("longbench", ""), ("longbench_prompt", "_prompt")):
        names = {f"longbench_e_{dataset}{suffix}" for dataset in longbench.EVEN_THIRTEEN}
        assert len(names) == 13 and names | {f"longbench_v2{suffix}"} <= set(suite_tasks(suite))
        assert len(suite_tasks(suite)) == 16 + 13 + 1
        assert default_tasks(suite) == tuple(f"longbench_{name}{suffix}" for name in longbench.ENGLISH_EIGHT)
        assert set(default_tasks(suite)) <= set(suite_tasks(suite))
    assert default_tasks("mini_book") == suite_tasks("mini_book")


def test_the_prompt_of_a_real_row_is_the_one_seen_elsewhere(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "longbench" / "rebuilt"
    (tmp_path / "narrativeqa.jsonl").symlink_to(folder / "narrativeqa.row0.jsonl")
    seen = (folder / "narrativeqa.row0.llama3_prompt.txt").read_text(encoding="utf-8")
    content = seen.partition("<|end_header_id|>\n\n")[2].partition("<|eot_id|>")[0]
    read = longbench.read_v1_rows(tmp_path, "narrativeqa", 1)[0]
    template = longbench.PROTOCOLS["narrativeqa"].prompt
    assert template.replace("{context}", read.text("context")).replace("{input}", read.text("input")) == content
    assert read.texts("answers") == ("He is a guest in the home of the Mulvilles.",)


@pytest.mark.parametrize(("dataset", "form"), [("qmsum", "rebuilt"), ("multi_news", "genuine_jsonl")])
def test_real_rows_fit(dataset: str, form: str, shared_data: Path, tmp_path: Path, tokenizer: TextTokenizer) -> None:
    (tmp_path / f"{dataset}.jsonl").symlink_to(shared_data / "longbench" / form / f"{dataset}.first40.jsonl")
    task = longbench.LongBench(dataset, {"longbench": tmp_path})
    samples = task.samples(2048, 100, 0, tokenizer)
    assert [sample.index for sample in samples] == list(range(40))
    for sample in samples:
        used = len(tokenizer.encode(sample.prompt)) + len(tokenizer.encode(sample.forced))
        assert 2048 - 8 < used + sample.max_new_tokens <= 2048 and len(sample.forced) == 100
        assert task.score(sample, sample.meta[0][0], ()).value == pytest.approx(1.0, abs=1e-6)


def test_real_tasks_begin_with_the_tokenizers_first_and_stop_at_eos(byte_checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(byte_checkpoint / name)
    inner = Tokenizer.from_file(str(byte_checkpoint / "tokenizer.json"))
    special = next(token for token, i in inner.get_vocab(with_added_tokens=True).items() if i == 256)
    inner.post_processor = processors.TemplateProcessing(single=f"{special} $A", special_tokens=[(special, 256)])
    inner.save(str(folder / "tokenizer.json"))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    write_rows(tmp_path / "data" / "qasper.jsonl", [row()])
    run = config(folder, tmp_path / "data", contexts=[1024], samples=1, tasks=["longbench_qasper"])
    job = QualityJob(run, "m", "longbench", torch.device("cpu"))
    task = job.tasks["longbench_qasper"]
    sample = job.samples(task, 1024)[0]
    request = job.request(task, 1024, sample)
    assert request.prompt_ids == (256, *sample.prompt.encode()) and request.forced_ids == tuple(sample.forced.encode())
    assert request.stop_ids == {7, 9} and request.total_tokens <= 1024


@pytest.mark.usefixtures("gate")
def test_a_job_on_real_rows(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The protocol's 512 tokens take ten seconds here and show nothing more.
    monkeypatch.setitem(
        cast(dict[str, longbench.LongBenchProtocol], longbench.PROTOCOLS),
        "qmsum",
        replace(longbench.PROTOCOLS["qmsum"], max_new_tokens=48),
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "qmsum.jsonl").symlink_to(shared_data / "longbench" / "rebuilt" / "qmsum.first40.jsonl")
    run = config(MINIATURE, tmp_path / "data", contexts=[2048], samples=2, batch=2, tasks=["longbench_qmsum"])
    output = tmp_path / "records" / "longbench.parquet"
    evaluate_suite(run, "m", "longbench", {"full": output})
    records = read_records(output, Record)
    assert [(record.status, record.sample_index) for record in records] == [("ok", 0), ("ok", 1)]
    for record, line in zip(records, (tmp_path / "data" / "qmsum.jsonl").open(encoding="utf-8"), strict=False):
        assert (record.metric, record.data_source, len(record.output_ids or ())) == ("rouge_l", "real", 48)
        task = get_task("longbench_qmsum", {"longbench": tmp_path / "data"})
        sample = task.samples(2048, 2, 0, load_tokenizer(MINIATURE))[record.sample_index]
        assert sample.meta[0] == tuple(json.loads(line)["answers"])
        assert record.score == get_task("longbench_qmsum").score(sample, record.output_text or "", ()).value


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


CHARACTERS = cast(TextTokenizer, Characters())


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


@pytest.mark.parametrize("dataset", longbench.ENGLISH_EIGHT)
def test_a_row_is_its_log_s_row(dataset: str, english: Path, shared_data: Path) -> None:
    logged = read_rows(shared_data / "longbench" / "scorer_golden" / "llama2-7b-chat" / f"{dataset}.jsonl")
    rows, numbers = read_rows(english / f"{dataset}.jsonl"), official_rows(shared_data, dataset)
    task, template = longbench.LongBench(dataset, {"longbench": english}), longbench.PROTOCOLS[dataset].prompt
    whole, short = (task.samples(context, 999, 0, CHARACTERS) for context in (1 << 20, 2048))
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
def test_longbench_e_asks_as_its_base_task(dataset: str, shared_data: Path, tmp_path: Path) -> None:
    file = shared_data / "longbench_e" / f"{dataset}_e.first10.jsonl"
    if not file.is_file():
        pytest.skip(f"no {file}")
    (tmp_path / f"{dataset}_e.jsonl").symlink_to(file)
    base, even = (get_task(f"longbench_{name}", {"longbench": tmp_path}) for name in (dataset, f"e_{dataset}"))
    samples = even.samples(1 << 20, 99, 0, CHARACTERS)
    assert (even.metric, even.suite, len(samples)) == (base.metric, "longbench", 10)
    for sample, row in zip(samples, read_rows(file), strict=True):
        assert row["dataset"] == f"{dataset}_e" and sample.meta[0] == tuple(row["answers"])
        assert sample.prompt + sample.forced == longbench.PROTOCOLS[dataset].prompt.format(**row)
        for text in (row["answers"][0], "Paragraph 3", "no such thing"):
            assert even.score(sample, text, ()) == base.score(sample, text, ())
    with pytest.raises(DataUnavailableError, match=rf"{dataset}\.jsonl in .* cannot be read"):  # never the base's
        base.samples(4096, 1, 0, CHARACTERS)


def test_longbench_v2_on_its_own_rows(shared_data: Path, tmp_path: Path) -> None:
    file = shared_data / "longbench_v2" / "short6.jsonl"
    if not file.is_file():
        pytest.skip(f"no {file}")
    rows = read_rows(file)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "data.jsonl").symlink_to(file)
    (tmp_path / "array").mkdir()
    (tmp_path / "array" / "data.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")  # as on the hub
    tasks = (get_task("longbench_v2", {"longbench_v2": tmp_path / form}) for form in ("lines", "array"))
    made = [task.samples(1 << 20, 99, 0, CHARACTERS) for task in tasks]
    assert made[0] == made[1] and len(made[0]) == 6
    task = longbench.LongBench(longbench.V2, {"longbench_v2": None})
    for sample, row in zip(made[0], rows, strict=True):
        text = sample.prompt + sample.forced
        assert text.count(row["context"]) == 1 and sample.max_new_tokens == 128
        tail = text.rpartition("</text>")[2]
        places = [tail.index(f"({x}) {row[f'choice_{x}']}\n") for x in "ABCD"]
        assert places == sorted(tail.index(f"({x}) ") for x in "ABCD") and row["question"] in tail
        for letter in "ABCD":
            assert task.score(sample, f"The correct answer is ({letter}).", ()).value == (letter == row["answer"])
