"""The two ways in which look-ups and chains are written: in bytes, and in words for tokenizers of subwords.

A key of random letters falls into other subwords behind a bracket than behind a space, so that copying it is another
task than finding it. In words, every key is two plain words behind a space and reads the same everywhere.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from longdecode.evals.generators.prose import word


def letters(rng: random.Random) -> str:
    """Return four random letters."""
    return "".join(rng.choices(string.ascii_lowercase, k=4))


def two_words(rng: random.Random) -> str:
    """Return an adjective and a noun, such as ``brass-lantern``; many keys share one of the two."""
    return f"{word(rng, 'adjectives')}-{word(rng, 'nouns')}"


@dataclass(frozen=True, slots=True)
class Wording:
    """Texts of records, questions and answers.

    ``record``, ``pointer``, ``link`` and ``stop`` stand in brackets in the prompt; the items answer. A question joins
    the asked keys, an answer line the items; ``assign`` parts an item into what was asked and what was found.
    ``typical_key`` is a key of about the mean length.
    """

    make_key: Callable[[random.Random], str]
    typical_key: str
    record: str
    pointer: str
    link: str
    stop: str
    hop_item: str
    step_item: str
    assign: str
    before: str
    after: str

    @property
    def record_chars(self) -> int:
        """Length of a typical record with its brackets."""
        return len(f"[{self.record.format(key=self.typical_key, value='0123')}] ")

    @property
    def link_chars(self) -> int:
        """Length of a typical link with its brackets."""
        return len(f"[{self.link.format(key=self.typical_key, target=self.typical_key, amount=3)}] ")

    def question(self, mark: str, asked: Sequence[str]) -> str:
        """Return the question block of ``asked`` behind its mark, ``?`` or ``!``."""
        return f"\n{mark} " + " ".join(asked) + "\n"

    def answer(self, items: Sequence[str]) -> str:
        """Return the answer line of ``items``."""
        return (" ".join(f"{item}{self.after}" for item in items)).join((self.before, "\n"))

    def given(self, completion: str) -> list[str]:
        """Return the items that the first line of a completion gives, in order."""
        line = completion.split("\n", 1)[0]
        return [item.strip() for item in line.split(self.after)] if self.after else line.split()

    def item(self, asked: str, table: dict[str, str], pointers: dict[str, str]) -> str:
        """Return what answers one asked key; a key with ``>`` asks for the value behind its pointer."""
        if not asked.endswith(">"):
            return f"{asked}{self.assign}{table[asked]}"
        target = pointers[asked[:-1]]
        return self.hop_item.format(key=asked[:-1], target=target) + self.assign + table[target]


BYTES, WORDS = (
    Wording(**values, make_key=letters if name == "bytes" else two_words)
    for name, values in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items()
)


def wording_of(items: Sequence[str]) -> Wording:
    """Return the wording that wrote ``items``."""
    return WORDS if " " in items[0] else BYTES
