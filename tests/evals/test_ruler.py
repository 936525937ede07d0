"""RULER: official rows rebuilt byte for byte, answers read off generated prompts, lengths that fill the context."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from fake_tokenizer import pieces
from longdecode.engine.errors import DataUnavailableError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.generators.ruler import ask, needle
from longdecode.evals.scoring.answer_text import string_match_all
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.fitting import largest_fitting
from longdecode.evals.tasks.registry import get_task, suite_tasks
from longdecode.evals.tasks.ruler import NIAH_TASKS, Ruler
from papers.data_sets import DataSets

NEEDLE = re.compile(r"One of the special magic (numbers|uuids) for ([\w-]+) is: ([\w-]+)\.")


@pytest.fixture
def tokenizer() -> TextTokenizer:
    """Pieces of at most four characters stand for tokens, with a begin-of-text token."""
    return pieces()


@pytest.fixture
def folder(tmp_path: Path, seed: int) -> Path:
    """Essays, word lists and question files in the published formats, with content made up here."""
    DataSets(tmp_path, seed).ruler("data")
    return tmp_path / "data"


def test_official_rows_are_rebuilt_byte_for_byte(shared_data: Path) -> None:
    spec = NIAH_TASKS["niah_multikey_3"]
    rows = (shared_data / "ruler" / "niah_multikey_3.4096.first20.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 20
    for line in rows:
        row = json.loads(line)
        hidden = NEEDLE.findall(row["input"])
        query = re.findall(r"What is the special magic uuid for ([\w-]+) mentioned", row["input"])
        context = "\n".join(needle(kind, key, value) for kind, key, value in hidden)
        assert row["length"] <= 4096
        rebuilt = ask(spec, context, query, tuple(row["outputs"]))
        assert rebuilt.text == row["input"]
        assert rebuilt.items == tuple(value for _, key, value in hidden if key == query[0])
        sample = Sample(0, rebuilt.prompt, rebuilt.question, 128, None, rebuilt.items)
        assert Ruler("niah_multikey_3", {"ruler": None}).score(sample, f" {row['outputs'][0].upper()}.", ()).value == 1
        assert Ruler("niah_multikey_3", {"ruler": None}).score(sample, row["outputs"][0][:-1], ()).value == 0


def test_generated_rows_have_the_official_rows_shape(shared_data: Path, tokenizer: TextTokenizer) -> None:
    first = (shared_data / "ruler" / "niah_multikey_3.4096.first20.jsonl").open(encoding="utf-8").readline()
    sample = Ruler("niah_multikey_3", {"ruler": None}).samples(2048, 1, 3, tokenizer)[0]

    def shape(text: str) -> str:
        return re.sub(r"(One of .*\.\n)+", "NEEDLES\n", re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "U", text))

    assert shape(sample.prompt + sample.forced) == shape(json.loads(first)["input"])
    # Version 4 and its variant show in every identifier, as in the official rows.
    found = [text for _, *pair in NEEDLE.findall(sample.prompt) for text in pair]
    assert all(re.fullmatch(r".{8}-.{4}-4.{3}-[89ab].{3}-.{12}", text) for text in found)


@pytest.mark.parametrize("kind", NIAH_TASKS)
def test_needles_are_hidden_and_asked_for(kind: str, folder: Path, tokenizer: TextTokenizer, seed: int) -> None:
    spec = NIAH_TASKS[kind]
    for sample in Ruler(kind, {"ruler": folder}).samples(3000, 3, seed, tokenizer):
        hidden = NEEDLE.findall(sample.prompt)
        asked = re.findall(r"for ([\w, -]+) mentioned in the provided text\?", sample.prompt)[0]
        queries = re.split(r", and |, ", asked)
        assert f"for {asked} mentioned in the provided text" in sample.forced
        wanted = [value for query in queries for _, key, value in hidden if key == query]
        assert sorted(wanted) == sorted(sample.meta) and len(wanted) == spec.queries * spec.values
        if spec.haystack == "needle":
            assert len(hidden) > 10
        else:
            assert len(hidden) == spec.needles
        plural = spec.queries * spec.values > 1
        assert sample.prompt.startswith("Some special magic" if plural else "A special magic")
        assert sample.forced.endswith("are" if plural else "is")


def test_any_folder_of_texts_is_the_haystack_by_a_link(tmp_path: Path, tokenizer: TextTokenizer, seed: int) -> None:
    books = tmp_path / "books"
    for name, word in (("1", "heron"), ("2", "quartz")):
        (books / name).mkdir(parents=True)
        (books / name / f"{name}.txt").write_text(" ".join(f"The {word} {i} stood." for i in range(900)))
    prompts = {}
    for name in ("1", "2"):
        place = tmp_path / f"ruler{name}"
        place.mkdir()
        (place / "essays").symlink_to(books / name, target_is_directory=True)
        (sample,) = get_task("ruler_niah_multivalue", {"ruler": place}).samples(3000, 1, seed, tokenizer)
        prompts[name] = sample.prompt
    numbers = {name: re.findall(r"The (heron|quartz) (\d+) stood\.", prompt) for name, prompt in prompts.items()}
    for name, word in (("1", "heron"), ("2", "quartz")):
        assert {found for found, _ in numbers[name]} == {word} and len(numbers[name]) > 100
        assert [int(i) for _, i in numbers[name]] == list(range(len(numbers[name])))
        assert len(NEEDLE.findall(prompts[name])) == 4


def test_values_are_marked_one_by_one(folder: Path, tokenizer: TextTokenizer, seed: int) -> None:
    task = Ruler("niah_multivalue", {"ruler": folder})
    sample = task.samples(2048, 1, seed, tokenizer)[0]
    score = task.score(sample, f"{sample.meta[2]} and {sample.meta[0]}", ())
    assert (score.value, score.parts) == (0.5, (1.0, 0.0, 1.0, 0.0))


def test_a_chain_can_be_followed_to_all_its_variables(tokenizer: TextTokenizer, seed: int) -> None:
    for sample in Ruler("vt", {"ruler": None}).samples(2500, 3, seed, tokenizer):
        example, question = sample.prompt.split("\n\nMemorize")
        for part, answers in ((example, example.split("they are: ")[1].split()), (question, sample.meta)):
            value = re.findall(r"assigned the value (\d{5})", part)[0]
            start = re.findall(rf"VAR (\w+) = {value}\n", part)
            links = dict(reversed(pair) for pair in re.findall(r"VAR (\w+) = VAR (\w+) \n", part))
            walk = start
            while walk[-1] in links:
                walk.append(links[walk[-1]])
            assert walk == list(answers) and len(walk) == 5
        assert len(tokenizer.encode(example)) <= 520


def test_the_common_words_are_the_repeated_ones(folder: Path, tokenizer: TextTokenizer, seed: int) -> None:
    for context, times, others in ((2000, 6, 1), (4096, 30, 3)):
        for sample in Ruler("cwe", {"ruler": folder}).samples(context, 2, seed, tokenizer):
            listed = sample.prompt.rpartition("Memorize the ones that appear most often.\n")[2]
            counts = Counter(re.findall(r"\d+\. (\w+)", listed.partition("\nQuestion")[0]))
            assert {word for word, count in counts.items() if count == times} == set(sample.meta)
            assert set(counts.values()) == {times, others} and len(sample.meta) == 10


def test_the_frequent_words_are_the_three_after_the_dots(tokenizer: TextTokenizer, seed: int) -> None:
    for sample in Ruler("fwe", {"ruler": None}).samples(3000, 2, seed, tokenizer):
        text = sample.prompt.partition("coded words. ")[2].partition("\nQuestion")[0]
        ranked = Counter(text.split()).most_common(5)
        assert [word for word, _ in ranked[:4]] == ["...", *sample.meta] and ranked[3][1] > ranked[4][1]


@pytest.mark.parametrize(("kind", "gold"), [("qa_1", "0.0 "), ("qa_2", "Title 0 0\n")])
def test_asked_documents_are_shown(kind: str, gold: str, folder: Path, tokenizer: TextTokenizer, seed: int) -> None:
    task = Ruler(kind, {"ruler": folder})
    samples = task.samples(1200, 50, seed, tokenizer)
    assert len(samples) == (24 if kind == "qa_1" else 8)
    assert gold in samples[0].prompt and (task.data_source, task.metric) == ("real", "string_match_part")
    numbers = re.findall(r"Document (\d+):\n", samples[0].prompt)
    assert numbers == [str(i) for i in range(1, len(numbers) + 1)] and len(numbers) >= 3
    assert len({samples[i].prompt.partition("Question:")[0] for i in range(5)}) == 5
    assert task.samples(9000, 1, seed, tokenizer)[0].prompt.count(gold) > (1 if kind == "qa_1" else 3)


def test_a_file_of_another_form_is_refused(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    (tmp_path / "squad.json").write_text("[]")
    with pytest.raises(DataUnavailableError, match="not in the expected format"):
        Ruler("qa_1", {"ruler": tmp_path}).samples(2048, 1, 0, tokenizer)


def test_the_chat_suite_asks_for_the_template() -> None:
    assert [name.removesuffix("_chat") for name in suite_tasks("ruler_chat")] == list(suite_tasks("ruler"))
    assert get_task("ruler_vt_chat").chat and not get_task("ruler_vt").chat


def test_the_largest_size_is_found(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        smallest, grain, limit = rng.randint(1, 5), rng.randint(1, 9), rng.randint(50, 4000)
        found = largest_fitting(lambda size, grain=grain: 7 + grain * size, limit, smallest)
        assert 7 + grain * found <= limit < 7 + grain * (found + 1)
    with pytest.raises(ValueError, match="takes 12 tokens of 11"):
        largest_fitting(lambda size: 12, 11, 1)


def test_matches_ignore_the_case_of_letters() -> None:
    assert string_match_all("It is PARIS.", ("paris", "rome")) == (1.0, 0.0)
    sample = Sample(0, "", "", 1, None, ("rome", "paris"))
    assert [Ruler("qa_1", {}).score(sample, text, ()).value for text in ("It is PARIS.", "nothing")] == [1.0, 0.0]
