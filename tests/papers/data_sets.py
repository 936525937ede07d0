"""Small data sets with made-up content, in the formats and under the names that the papers' configurations read."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from longdecode.evals.datasets.reader import SOURCES
from longdecode.evals.generation.texts import BOOKS
from longdecode.evals.generators.prose import sentence
from longdecode.evals.tasks.continuation import UNSEEN
from longdecode.evals.tasks.longbench import ENGLISH_EIGHT
from longdecode.evals.tasks.math import SETS
from longdecode.training.roles.data.passkey import NATO

BOOK_SENTENCES = 900
TRAINING_BOOKS = ("900001", "900002")
"""Ids of no book that the project sets aside: those are never trained on, and heads need others."""
SUBJECTS = ("anatomy", "virology")


class DataSets:
    """Writer of every data set that the papers' runs read.

    Args:
        place: the folder that runs are started in; ``data`` values of the configurations are folders of it.
        seed: of the content.
    """

    def __init__(self, place: Path, seed: int = 0):
        self.place = place
        self.random = random.Random(seed)

    def write(self) -> str:
        """Write all of them and return text for a tokenizer to be trained on: passkeys of head roles are few tokens."""
        books = {book: self._prose(BOOK_SENTENCES) for book in sorted({*UNSEEN, *BOOKS, *TRAINING_BOOKS})}
        for book, text in books.items():
            self._text(f"emozilla/pg19-test/{book}.txt", text)
        self._longbench()
        self.ruler("data/ruler")
        for folder in ("hub", "data/longgenbench"):
            self._questions(folder)
        for place in (SETS[name] for name in SETS if name != "gsm8k"):  # which LongGenBench's questions wrote
            rows = [{"problem": f"{self._prose(2)} What is {n} + {n}?", "answer": f"{2 * n}"} for n in range(3)]
            self._lines(f"hub/{place.folder}/{place.files[0]}", rows)
        return " ".join([*books.values(), *NATO * 200])

    def _longbench(self) -> None:
        for name in ENGLISH_EIGHT:
            shared = {"input": "Which trade?", "answers": ["baker"], "all_classes": None}
            rows = [shared | {"context": self._prose(150)} for _ in range(2)]
            self._lines(f"zai-org/LongBench/{name}.jsonl", rows)

    def ruler(self, folder: str) -> None:
        """Write RULER's essays, word lists and questions."""
        words = [f"{self._word()}{n}" for n in range(600)]
        self._text(f"{folder}/essays/1.txt", self._prose(400))
        for name, part in (("nounlist", words[:300]), ("adjectivelist", words[300:500]), ("verblist", words[500:])):
            self._text(f"{folder}/{name}.txt", "\n".join(part))
        self._json(f"{folder}/english_words.json", dict(enumerate(words)))
        articles = [{"paragraphs": [self._paragraph(f"{at}.{part}") for part in range(4)]} for at in range(6)]
        self._json(f"{folder}/squad.json", {"data": articles})
        asked = [{"question": f"Which {n}?", "answer": self._word()} for n in range(8)]
        told = [[[f"Title {n} {i}", [self._prose(1)]] for i in range(3)] for n in range(8)]
        hotpot = [row | {"context": c, "supporting_facts": [[c[0][0], 0]]} for row, c in zip(asked, told, strict=True)]
        self._json(f"{folder}/hotpotqa.json", hotpot)

    def _paragraph(self, name: str) -> dict[str, Any]:
        """A paragraph of SQuAD with a question that it answers and one that it does not."""
        answered = {"question": f"What is in {name}?", "answers": [{"text": self._word()}]}
        impossible = {"question": "Impossible?", "is_impossible": True, "answers": []}
        return {"context": f"{name} {self._prose(2)}", "qas": [answered, impossible]}

    def _questions(self, folder: str) -> None:
        sums = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1\n#### {n + 1}"} for n in range(90)]
        self._lines(f"{folder}/gsm8k/test.jsonl", sums)
        choices = [{"label": letter, "text": self._word()} for letter in "ABCDE"]
        stems = [{"answerKey": "A", "question": {"stem": f"Stem {n}?", "choices": choices}} for n in range(90)]
        self._lines(f"{folder}/commonsense_qa/dev_rand_split.jsonl", stems)
        example = "lead\n\nQ: one?\n(A) x (B) y\nA: Because. The answer is (B)."
        self._json(f"{folder}/LongGenBench_MMLU_prompt.json", dict.fromkeys(SUBJECTS, example))
        for subject in SUBJECTS:
            asked = "".join(f"{subject} {n}?,a,b,c,d,{'ABCD'[n % 4]}\n" for n in range(45))
            self._text(f"{folder}/mmlu/{subject}_test.csv", asked)
        wrong = {f"Incorrect Answer {n}": f"{n}" for n in (1, 2, 3)}
        rows = [{"Question": f"How many {self._word()}s?", "Correct Answer": "4", **wrong} for _ in range(2)]
        self._lines(f"{folder}/diamond/gpqa_diamond.jsonl", rows)
        tests = json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}])
        problem = {
            "question_content": "Add two numbers.", "starter_code": "", "contest_date": "2024-09-01T00:00:00",
            "public_test_cases": tests, "private_test_cases": "[]", "metadata": "{}",
        }  # fmt: skip
        for number, name in enumerate(SOURCES["livecodebench"].files):
            self._lines(f"{folder}/livecodebench/{name}", [problem | {"question_id": f"q{number}"}])

    def _prose(self, sentences: int) -> str:
        return "".join(sentence(self.random) for _ in range(sentences)).strip()

    def _word(self) -> str:
        return "".join(self.random.choices("abcdefghijklmnop", k=6))

    def _open(self, name: str) -> Path:
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _text(self, name: str, text: str) -> None:
        self._open(name).write_text(text, encoding="utf-8")

    def _json(self, name: str, content: Any) -> None:
        self._text(name, json.dumps(content))

    def _lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self._text(name, "".join(json.dumps(row) + "\n" for row in rows))
