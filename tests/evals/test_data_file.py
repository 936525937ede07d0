"""Data files gone wrong: every loader answers with one line that has the file, the line and the remedy."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fake_tokenizer import pieces
from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.datasets import livecodebench
from longdecode.evals.datasets.books import read_books
from longdecode.evals.datasets.reader import SOURCES
from longdecode.evals.tasks import code, longbench, longgenbench, ruler
from longdecode.evals.tasks.continuation import Books
from longdecode.evals.tasks.math import GpqaDiamond, MathTask
from longdecode.evals.tasks.registry import get_suite, get_task

FILES = SOURCES["livecodebench"].files
LONGBENCH = {"input": "Who?", "context": "Café\u2028", "answers": ["Ann"], "all_classes": None}
MATH = {"problem": "P é", "answer": "5"}
GSM8K = {"question": "é?", "answer": "#### 5"}
CSQA = {"question": "é?", "choices": {"label": ["A", "B"], "text": ["a", "b"]}, "answerKey": "B"}
GPQA = {"Question": "é?", "Correct Answer": "r"} | {f"Incorrect Answer {i}": f"w{i}" for i in (1, 2, 3)}
CODE = {
    "question_id": "q", "question_content": "é", "starter_code": "", "contest_date": "2024-09-01", "metadata": "{}",
    "public_test_cases": "[]", "private_test_cases": "[]",
}  # fmt: skip


def qasper(place: Path) -> longbench.LongBench:
    return longbench.LongBench("qasper", {"longbench": place})


LOADERS: dict[str, tuple[str, dict[str, Any], Callable[[Path], Any]]] = {
    "longbench": ("qasper.jsonl", LONGBENCH, lambda place: qasper(place).samples(9999, 9, 0, pieces())),
    "math": ("math500/test.jsonl", MATH, lambda place: MathTask("math500", {"math": place}).problems()),
    "gsm8k": ("gsm8k/test.jsonl", GSM8K, lambda place: longgenbench.read_groups(place, "gsm8k", 1)),
    "csqa": ("commonsense_qa/dev_rand_split.jsonl", CSQA, lambda place: longgenbench.read_groups(place, "csqa", 1)),
    "gpqa": ("diamond/gpqa_diamond.jsonl", GPQA, lambda place: GpqaDiamond({"gpqa": place}).problems()),
    "livecodebench": (f"livecodebench/{FILES[0]}", CODE, livecodebench.read_problems),
}
"""Every loader of rows: its file, a row of it, and the call."""


ABSENT = (
    "aime24", "humaneval", "gpqa_diamond", "mbpp", "livecodebench_v5", "longbench_qmsum", "longbench_e_qasper",
    "longbench_v2", "longgenbench_gsm8k_15", "longgenbench_mmlu_15", "icl_trec_fine", "ruler_niah_single_2",
    "ruler_cwe", "ruler_qa_1", "fidelity_free", "mini_book_pg19",
)  # fmt: skip
"""Tasks that read data, of every key."""


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_not_here_says_how_to_fetch_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*given: Any, **named: Any) -> Any:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    monkeypatch.setattr(code, "require_sandbox", lambda: None)
    keys = [key for key in get_suite(get_task(name).suite).data if key != "prose"]
    key = keys[-1 if name == "longbench_v2" else 0]
    said = "accept its terms at http.*hf auth login.*" * (name == "gpqa_diamond") + f"`longdecode data fetch {key}`"
    (tmp_path / "here").mkdir()
    here, absent = tmp_path / "here", tmp_path / "absent"
    for source, why in ((None, "names nothing"), (here, "here"), (absent, "absent"), (Path("hub"), "no network|hub")):
        with pytest.raises(DataUnavailableError, match=rf"(?s)({why}).*{said}.* and set data.{key} to data/{key}"):
            get_task(name, dict.fromkeys(keys, source)).samples(4096, 1, 0, pieces())


def lines(row: dict[str, Any], times: int = 3) -> bytes:
    return (json.dumps(row, ensure_ascii=False) + "\n").encode() * times


def refusal(name: str, place: Path, content: bytes) -> str:
    """Return the one line with which a loader refuses a content of its file."""
    file, row, load = LOADERS[name]
    (place / file).parent.mkdir(parents=True, exist_ok=True)
    if name == "livecodebench":
        for other in FILES:
            (place / "livecodebench" / other).write_bytes(lines(row))
    (place / file).write_bytes(content)
    with pytest.raises(DataUnavailableError) as found:
        load(place)
    text = str(found.value)
    assert "\n" not in text and text.startswith(str(place / file)) and "fetch the " in text
    return text.removeprefix(str(place / file))


@pytest.mark.parametrize("name", LOADERS)
def test_rows_in_utf_8_are_read_with_or_without_a_mark(name: str, tmp_path: Path) -> None:
    file, row, load = LOADERS[name]
    refusal(name, tmp_path, b"")
    (tmp_path / file).write_bytes(lines(row))
    plain = load(tmp_path)
    (tmp_path / file).write_bytes(b"\xef\xbb\xbf" + lines(row).replace(b"\n", b"\r\n\r\n"))
    marked = load(tmp_path)
    assert len(plain) == len(marked) >= 3
    if name == "livecodebench":
        assert [p.tests() for p in marked] == [[]] * len(plain)  # the places of its tests hold too
    else:
        assert plain == marked


@pytest.mark.parametrize("name", LOADERS)
def test_rows_that_are_none_are_refused_by_line(name: str, tmp_path: Path) -> None:
    row = LOADERS[name][1]
    good, array = lines(row).decode(), json.dumps([row, row])
    for content, said in (
        (b"", " is empty"),
        (b" \n\n", " is empty"),
        (good.encode("utf-16"), ", line 1 cannot be read as JSON: UnicodeDecodeError: 'utf-16"),
        (lines(row) + "é".encode("latin-1"), ", line 4 cannot be read as JSON: UnicodeDecodeError: 'utf-8'"),
        (gzip.compress(good.encode()), ", line 1 cannot be read as JSON: UnicodeDecodeError: 'utf-8'"),
        (array.encode(), ", line 1 is [{"),
        (json.dumps([row], indent=1).encode(), ", line 1 cannot be read as JSON"),
        (lines(row) + b"3\n", ", line 4 is 3; an object"),
        (lines(row) + b"null\n", ", line 4 is null"),
        (lines(row) + b'"text"\n', ', line 4 is "text"'),
        (lines(row, 1) + b"{no json}\n", ", line 2 cannot be read as JSON"),
        (b"[" * 100_000, ", line 1 "),
        (b"{}\n", ", line 1 "),
    ):
        assert refusal(name, tmp_path, content).startswith(said), content[:40]


def test_values_that_no_answer_can_equal_are_refused_by_line(tmp_path: Path) -> None:
    for value in ("NaN", "-Infinity", "1e999"):
        row = b'{"problem": "P", "answer": %s}' % value.encode()
        assert "a finite number is expected" in refusal("math", tmp_path, row)
    for error in ("nan", "-1", "0.1,inf", "x"):
        assert f"line 1 has {error!r} as 'error'" in refusal("math", tmp_path, lines(MATH | {"error": error}))
    for labels, key in (("12", "1"), ("AA", "A"), ("AF", "F"), ("BA", "A"), ("AB", "C")):
        row = CSQA | {"choices": {"label": list(labels), "text": ["a", "b"]}, "answerKey": key}
        assert f"{key!r} as 'answerKey'; letters from A to E" in refusal("csqa", tmp_path, lines(row))


def test_what_is_no_text_is_refused_by_line(tmp_path: Path) -> None:
    for row in (b'{"problem": "a \\ud800", "answer": "5"}', lines(MATH | {"problem": ""})):
        assert "as 'problem'; a string with text is expected" in refusal("math", tmp_path, row)


@pytest.mark.parametrize("name", LOADERS)
def test_fields_of_another_type_are_refused_by_line(name: str, tmp_path: Path) -> None:
    row = LOADERS[name][1]
    for key, value in row.items():
        if value is None or key.endswith("_test_cases"):
            continue
        for wrong in ([3], {"a": 1}, True, None):
            text = refusal(name, tmp_path, lines(row, 1) + lines(row | {key: wrong}))
            assert text.startswith(", line 2") and (name == "csqa" or repr(key)[1:-1] in text), (key, wrong)


def test_a_string_is_no_list_of_strings(tmp_path: Path) -> None:
    for key, value in (("answers", "Paris"), ("answers", []), ("answers", ["a", 3]), ("all_classes", "Paris")):
        text = refusal("longbench", tmp_path, lines(LONGBENCH | {key: value}))
        assert text.startswith(f", line 1 has {json.dumps(value)} as '{key}'; a list of strings is expected; fetch")
    assert "3 stands where" in refusal("csqa", tmp_path, lines(CSQA | {"choices": {"label": "AB", "text": ["a", 3]}}))
    assert "no number after '####'" in refusal("gsm8k", tmp_path, lines(GSM8K | {"answer": "five"}))


def test_csv_is_held_to_the_same(tmp_path: Path) -> None:
    file = tmp_path / "diamond" / "gpqa_diamond.csv"
    file.parent.mkdir()
    header = ",".join(GPQA)
    for content, said in (
        (b"", "is empty"),
        (f"{header}\n".encode(), "has a header and no row"),
        (f"{header}\nq,r,w1,w2,w3\nq,r,w1\n".encode(), "line 3 lacks 'Incorrect Answer 2'"),
        (f"{header}\nq,r,w1,,w3\n".encode(), "line 2 has \"\" as 'Incorrect Answer 2'"),
        (f"{header}\né,r,w1,w2,w3\n".encode("latin-1"), "cannot be read: UnicodeDecodeError"),
        (f"{header}\nWho, when?,r,w1,w2,w3\n".encode(), "line 2 has more than 5 fields"),
        (b"a,b\n1,2\n", "line 2 lacks 'Question'"),
    ):
        file.write_bytes(content)
        with pytest.raises(DataUnavailableError, match=f"{file.name},? .*{said}.*hf auth login"):
            GpqaDiamond({"gpqa": tmp_path}).problems()


def test_mmlu_is_held_to_the_same(tmp_path: Path) -> None:
    (tmp_path / "LongGenBench_MMLU_prompt.json").write_text(json.dumps({"anatomy": "lead\n\nQ: q\nA: a"}))
    file = tmp_path / "anatomy_test.csv"
    file.write_text("q,a,b,c,d,C\n")
    assert len(longgenbench.read_groups(tmp_path, "mmlu", 1)) == 1
    for content, said in ((b"", "is empty"), (b"q,a,b,C\n", "line 1 lacks 'D'"), (b"\xe9,a,b,c,d,C\n", "utf-8")):
        file.write_bytes(content)
        with pytest.raises(DataUnavailableError, match=f"anatomy_test.csv.*{said}.*data fetch longgenbench"):
            longgenbench.read_groups(tmp_path, "mmlu", 9)  # of too few rows, but no less wrong


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "data.zip"
    for content in (b"", b"no archive"):
        archive.write_bytes(content)
        with pytest.raises(DataUnavailableError, match=r"qasper.jsonl in .* cannot be read: .*data fetch longbench"):
            longbench.read_v1_rows(tmp_path, "qasper", 1)
    for content, said in ((b"", "is empty"), (lines(LONGBENCH).decode().encode("utf-16"), "line 1 cannot be read")):
        with zipfile.ZipFile(archive, "w") as zipped:
            zipped.writestr("data/qasper.jsonl", content)
        with pytest.raises(DataUnavailableError, match=f"data.zip:data/qasper.jsonl,? {said}.*data fetch longbench"):
            longbench.read_v1_rows(tmp_path, "qasper", 1)
    archive.write_bytes(archive.read_bytes().replace(b"\xff\xfe", b"\xff\xfd"))  # its checksum is another's
    with pytest.raises(DataUnavailableError, match=r"qasper.jsonl.*BadZipFile: Bad CRC.*data fetch longbench"):
        longbench.read_v1_rows(tmp_path, "qasper", 1)


def test_texts_and_documents_are_held_to_the_same(tmp_path: Path) -> None:
    (tmp_path / "essays").mkdir()

    asks: list[tuple[str, Callable[[Path], Any]]] = [
        ("essays/7.txt", lambda place: read_books(place, ("7",))),
        ("essays/7.txt", ruler.essay_words),
        ("essays/7.txt", lambda place: Books().read({"prose": place / "essays"})),
        ("nounlist.txt", ruler.common_vocabulary),
        ("english_words.json", ruler.large_vocabulary),
        ("squad.json", lambda place: ruler.read_questions(place, "squad")),
        ("hotpotqa.json", lambda place: ruler.read_questions(place, "hotpotqa")),
    ]
    for file, ask in asks:
        for content, said in (
            (b"", "is empty"),
            ("text\né".encode("utf-16"), "cannot be read: UnicodeDecodeError"),
            (b"text\n\xe9", "cannot be read: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position 5"),
        ):
            (tmp_path / file).write_bytes(content)
            with pytest.raises(DataUnavailableError, match=f"{Path(file).name},? {said}.*(fetch|set data)"):
                ask(tmp_path)
        (tmp_path / file).unlink()
    squad = '{"data": [{"paragraphs": [{"context": "t", "qas": [{"question": "q", "answers": [{"text": "a"}]}]}]}]}'
    hotpotqa = '[{"context": [["t", ["s"]]], "question": "q", "answer": "a"}]'
    for name, good, none in (("squad", squad, '{"data": []}'), ("hotpotqa", hotpotqa, "[]")):
        for content in (none, *(good.replace(f'"{at}"', bad) for at in "tqa" for bad in ("3", "null", '"\\ud800"'))):
            (tmp_path / f"{name}.json").write_text(content)
            with pytest.raises(DataUnavailableError, match="no question" if content == none else "where a string is"):
                ruler.read_questions(tmp_path, name)


def write_parquet(file: Path, books: dict[str, str]) -> None:
    """Write books in the columns of the hub's PG-19."""
    columns = {
        "short_book_title": [f"Title of {book}" for book in books],
        "publication_date": [1890] * len(books),
        "url": [f"http://www.gutenberg.org/ebooks/{book}" for book in books],
        "text": list(books.values()),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)


def test_text_files_go_before_parquet_and_both_are_found_at_any_depth(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data" / "test-00000-of-00002.parquet", {str(i): f"parquet {i}" for i in range(20)})
    write_parquet(tmp_path / "data" / "test-00001-of-00002.parquet", {"8608": "another", "860": "the last"})
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "7.txt").write_text("a file")
    assert read_books(tmp_path, ("860", "7", "3")) == {"860": "the last", "7": "a file", "3": "parquet 3"}


def test_parquet_of_other_columns_is_refused(tmp_path: Path) -> None:
    for columns, said in (({"body": ["x"]}, "url"), ({"url": ["e/860"], "text": [""]}, '"" stands where a string is')):
        pq.write_table(pa.table(columns), tmp_path / "other.parquet")
        with pytest.raises(DataUnavailableError, match=f"could not be read.*{said}"):
            read_books(tmp_path, ("860",))


def test_the_hub_is_asked_where_no_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*place: str, **options: object) -> None:
        assert place == ("org/books",) and options["revision"] == "abc"
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataUnavailableError, match=r"could not be read from org/books: ConnectionError: no network"):
        read_books(Path("org/books@abc"), ("860",))
