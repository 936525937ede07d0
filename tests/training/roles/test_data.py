"""Training samples: lengths, what hides where, what is counted, and data that is not there."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from longdecode.engine.errors import DataUnavailableError, UnsupportedCellError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.evals.training_spec import RoleTraining
from longdecode.methods.registry import get_method
from longdecode.training.miniature.tokenizer import byte_tokenizer
from longdecode.training.roles.data import hotpotqa
from longdecode.training.roles.data.batch import context_lengths
from longdecode.training.roles.data.hotpotqa import FILE, HotpotQA, HotpotQuestion, read_hotpotqa, without_closed_book
from longdecode.training.roles.data.miniature import MiniPasskey, MiniTwoHop
from longdecode.training.roles.data.passkey import NATO, Passkey, book_haystack, generated_haystack
from longdecode.training.roles.data.sources import sample_source

RUN = RoleTraining("r", "tiny", 4, (256, 512), steps=2)


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(byte_tokenizer())


def text(ids: tuple[int, ...]) -> str:
    return bytes(ids).decode("ascii")


def rows(count: int) -> list[dict[str, Any]]:
    """Questions in the official file's format: two gold documents and eight others each."""
    found = []
    for i in range(count):
        first = [[f"Other{i}{j}", [f"Distraction {i}.{j}. ", "More."]] for j in range(4)]
        gold = [[f"Gold{i}a", ["Fact one. ", "Fact two."]], [f"Gold{i}b", [f"It is Answer{i}."]]]
        last = [[f"Other{i}{j}", [f"Distraction {i}.{j}."]] for j in range(4, 8)]
        asked = {"_id": str(i), "question": f"Which town is {i}?", "answer": f"Answer{i}", "type": "bridge"}
        found.append(asked | {"context": first + gold + last, "supporting_facts": [[f"Gold{i}a", 0], [f"Gold{i}b", 1]]})
    return found


@pytest.fixture
def hotpot_file(tmp_path: Path) -> Path:
    path = tmp_path / FILE
    path.write_text(json.dumps(rows(6)), encoding="utf-8")
    return path


def test_miniature_samples_make_batches_and_cut_where_targets_start() -> None:
    batch = MiniPasskey(3).batch([random.Random(i) for i in range(4)], 512)
    assert batch.contexts.shape[1] + batch.targets.shape[1] == 512 and len(batch.contexts) == 4
    for context, target in zip(batch.contexts.tolist(), batch.targets.tolist(), strict=True):
        question, answer, _ = text(target).lstrip("\n").split("\n")
        keys = question.removeprefix("? ").split()
        assert len(keys) == 3 and [item.split("=")[0] for item in answer.split()] == keys
        assert all(f"[{item}]" in text(context) for item in answer.split())
    for first_answer in (True, False):
        sample = MiniTwoHop(first_answer).sample(random.Random(1), 512)
        assert text(sample.targets).startswith("\n") == first_answer
        pointer, target, value = text(sample.targets).strip().replace("=", ">").split(">")
        assert f"[{pointer}>{target}]" in text(sample.context) and f"[{target}={value}]" in text(sample.context)
        assert text(sample.context).rstrip("\n").endswith(f"? {pointer}>")


@pytest.mark.parametrize("books", [False, True])
def test_passkeys_hide_in_exactly_as_many_tokens(books: bool, tokenizer: TextTokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("It was a dark and stormy night; " * 200, encoding="utf-8")
    hay = book_haystack(tokenizer, tmp_path, 3000)[0] if books else generated_haystack(tokenizer)
    source = Passkey(tokenizer, hay, passkeys=4, words=5)
    sample = source.sample(random.Random(7), 3000)
    assert len(sample.context) == 3000 and sample == source.sample(random.Random(7), 3000)
    assert sample != source.sample(random.Random(8), 3000)
    parts = text(sample.targets).split("It is ")[1:]
    assert len(parts) == 4
    context, places = text(sample.context), []
    for part in parts:
        key = part.split(".")[0]
        assert len(key.split()) == 5 and set(key.split()) <= set(NATO) and context.count(key) == 1
        places.append(context.index(key))
    assert places == sorted(places) and places[0] > 0.04 * 3000 and places[-1] < 0.97 * 3000
    if books:
        assert "dark and stormy" in context and book_haystack(tokenizer, tmp_path, 3000)[1] == ["a.txt"]
    with pytest.raises(UnsupportedCellError, match="4 passkeys of 5 words take"):
        source.sample(random.Random(7), 200)


def test_too_few_books_are_refused(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("short", encoding="utf-8")
    with pytest.raises(DataUnavailableError, match="have 5 tokens; 100 are needed"):
        book_haystack(tokenizer, tmp_path, 100)


@pytest.mark.parametrize("first_answer", [True, False])
def test_hotpotqa_surrounds_gold_with_others(first_answer: bool, tokenizer: TextTokenizer, hotpot_file: Path) -> None:
    questions = read_hotpotqa(str(hotpot_file))
    assert questions == read_hotpotqa(str(hotpot_file.parent))
    assert questions[2].gold == (("Gold2a", "Fact one. Fact two."), ("Gold2b", "It is Answer2."))
    assert len(questions[2].others) == 8
    sample = HotpotQA(tokenizer, questions, first_answer).sample(random.Random(3), 900)
    whole = text(sample.context + sample.targets)
    asked = whole.split("Question: Which town is ")[1][0]
    assert text(sample.targets) == (":" if first_answer else "") + f" Answer{asked}"
    assert f"Gold{asked}a\n" in whole and f"Gold{asked}b\n" in whole
    assert 800 <= len(sample.context) + int(first_answer) <= 900 and whole.count("Distraction") > 8
    with pytest.raises(UnsupportedCellError, match="context of 50 tokens"):
        HotpotQA(tokenizer, questions, first_answer).sample(random.Random(3), 50)


def test_questions_of_longbench_are_left_out(hotpot_file: Path, tmp_path: Path) -> None:
    (tmp_path / "hotpotqa.jsonl").write_text(json.dumps({"input": " which town is 2? "}), encoding="utf-8")
    questions = read_hotpotqa(hotpot_file)
    assert hotpotqa.unasked(questions, tmp_path) == questions[:2] + questions[3:]
    assert hotpotqa.unasked(questions, None) == questions
    (tmp_path / "hotpotqa.jsonl").unlink()
    with pytest.raises(DataUnavailableError):
        hotpotqa.unasked(questions, tmp_path)


def test_the_hub_gives_the_same_questions(hotpot_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_hub(row: dict[str, Any]) -> dict[str, Any]:
        fact_titles, sentences = zip(*row["supporting_facts"], strict=True)
        titles, texts = zip(*row["context"], strict=True)
        facts = {"title": list(fact_titles), "sent_id": list(sentences)}
        return row | {"supporting_facts": facts, "context": {"title": list(titles), "sentences": list(texts)}}

    asked = []

    def load_dataset(*names: str, split: str) -> list[dict[str, Any]]:
        asked.append((*names, split))
        return [as_hub(row) for row in rows(6)]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert read_hotpotqa("hotpotqa/hotpot_qa") == read_hotpotqa(str(hotpot_file))
    assert asked == [("hotpotqa/hotpot_qa", "distractor", "validation")]


def test_questions_answered_without_passages_are_left_out(byte_model: Path) -> None:
    decoder, tokenizer = load_decoder(byte_model, device="cpu", dtype=torch.float32), load_tokenizer(byte_model)
    prompt = tokenizer.prompt_ids("Question: Who?\nAnswer:")
    (said,) = Generator(decoder).run([Request(prompt, 20)], get_method("full").from_budget(None, decoder.config))
    known = tokenizer.decode(said.output_ids)[3:8]
    asked = [HotpotQuestion("Who?", told, (), ()) for told in (known.upper(), "no such answer", known, "nor this one")]
    assert [question.answer for question in without_closed_book(asked, decoder, tokenizer, 1)] == ["no such answer"]
    assert len(without_closed_book(asked, decoder, tokenizer, 9)) == 2


def test_missing_or_malformed_data_says_how_to_fetch_it(tmp_path: Path, byte_model: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('[{"question": "x"}]', encoding="utf-8")
    for source in (str(bad), str(tmp_path), str(tmp_path / "none.json")):
        with pytest.raises(DataUnavailableError, match=r"longdecode data fetch ruler.*hotpotqa\.json"):
            read_hotpotqa(source)
    decoder, tokenizer = load_decoder(byte_model, device="cpu", dtype=torch.float32), load_tokenizer(byte_model)
    with pytest.raises(DataUnavailableError, match=r"data\.hotpotqa is not set"):
        sample_source(replace(RUN, data="hotpotqa"), decoder, tokenizer, {})
    with pytest.raises(DataUnavailableError, match=r"data\.pg19 is not set"):
        sample_source(replace(RUN, data="passkey_books"), decoder, tokenizer, {})


def test_miniature_data_needs_a_byte_level_model(byte_model: Path) -> None:
    class Words(TextTokenizer):
        def encode(self, text: str) -> tuple[int, ...]:
            return tuple(len(word) for word in text.split())

    decoder = load_decoder(byte_model, device="cpu", dtype=torch.float32)
    with pytest.raises(UnsupportedCellError, match="tokens are bytes"):
        sample_source(RUN, decoder, Words(byte_tokenizer()), {})


def test_context_lengths_are_even() -> None:
    assert context_lengths(1000, 2000, 5) == (1000, 1250, 1500, 1750, 2000)
    assert context_lengths(1000, 2000, 1) == context_lengths(2000, 2000, 5) == (2000,)
