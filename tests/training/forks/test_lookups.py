"""Look-ups of several values: every value of the key asked, in the order of the text."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import numpy as np
import pytest

from longdecode.engine.errors import DataUnavailableError
from longdecode.training.forks.lookups import ForkLibrary
from longdecode.training.long_context.documents import Library, Weights


class Letters:
    """A tokenizer of one token a character."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


@pytest.fixture(scope="module")
def library() -> ForkLibrary:
    letters = Letters()
    book = " ".join(f"{a}{b}wood" for a in "bcdfghklmnprst" for b in "aeiou") + " walked along the quiet river. "
    return ForkLibrary({"book": np.array(letters.encode(book * 200))}, letters, Weights(0.3, 4.0))


@pytest.mark.parametrize("seed", range(8))
def test_an_answer_lists_what_the_text_says_of_its_key(library: ForkLibrary, seed: int) -> None:
    ids, weights = library.joined(library._several(random.Random(seed), 6000), 6000)
    assert len(ids) == len(weights) == 6000
    text = Letters().decode(ids.tolist())
    asked = np.flatnonzero(np.diff(weights == 4.0, prepend=False))
    starts, ends = asked[::2], [*asked[1::2], len(ids)][: len(asked[::2])]
    assert len(starts) >= 1
    body_end = int(np.flatnonzero(weights == 0.0)[0])
    for start, end in zip(starts, ends, strict=True):
        question = text[text.rindex("\n", 0, start) : start]
        values = re.findall(r"\d+", text[start:end])
        assert 2 <= len(values) <= 6
        said = [m.start() for m in (re.search(rf"\b{value}\b", text[:body_end]) for value in values) if m]
        assert len(said) == len(values) and said == sorted(said)
        words = re.findall(r"[a-z]+(?:-[a-z]+)?", question)
        keys = {*words, *(f"{a} {b}" for a, b in pairwise(words))}
        places = [text[max(0, place - 60) : place + 60] for place in said]
        assert any(all(key in place for place in places) for key in keys if "-" in key or " " in key)


def test_a_third_of_the_lookups_ask_for_several(library: ForkLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"several": 0, "single": 0, "book": 0}
    monkeypatch.setattr(ForkLibrary, "_several", lambda self, rng, length: count(made, "several"))
    for kind in ("_register", "_in_words"):
        monkeypatch.setattr(Library, kind, lambda self, rng, length: count(made, "single"))
    monkeypatch.setattr(Library, "slice", lambda self, rng, length: count(made, "book") and np.zeros(length))
    rng = random.Random(1)
    for _ in range(3000):
        library.document(rng, 10, 0.6)
    assert abs(made["several"] / 3000 - 0.2) < 0.03 and abs(made["single"] / 3000 - 0.4) < 0.03


def test_no_text_is_read_twice() -> None:
    books = {str(n): np.arange(n * 1000, n * 1000 + 1000) for n in range(4)}
    library = ForkLibrary(books, Letters(), Weights(0.3, 4.0), once=3600)
    read = [library.document(random.Random(n), 900, 0.0, n)[0] for n in (2, 0, 3, 1)]
    assert len(np.unique(read)) == 3600 and (np.diff(read[1]) == 1).sum() >= 898
    with pytest.raises(DataUnavailableError, match="4,000 tokens of books; 4,001"):
        ForkLibrary(books, Letters(), Weights(0.3, 4.0), once=4001)


def count(made: dict[str, int], kind: str) -> list[tuple[list[int], float]]:
    made[kind] += 1
    return [([0] * 10, 0.0)]
