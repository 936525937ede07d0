"""Record look-ups hidden in prose: needles, several keys, two hops, and many questions in one generation.

A record reads ``[kxqz=4821]``, a pointer ``[kxqz>mbra]``. A question block lists keys after ``?``; the answer repeats
each key with its value: ``? kxqz mbra`` gives ``kxqz=4821 mbra=0077``. A key with ``>`` asks for the value behind its
pointer: ``? kxqz>`` gives ``kxqz>mbra=0077``.

There are two wordings, in bytes and in words. A key of random letters falls into other subwords behind a bracket than
behind a space, so that copying it is another task than finding it; in words, every key is two plain words behind a
space and reads the same everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from longdecode.evals.config_values import read_yaml
from longdecode.evals.generators.prose import Episode, distinct, hide, letters, word

NeedleKind = Literal["single", "multikey", "two_hop"]

MAX_RECORDS = 96


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
    for name, values in read_yaml(Path(__file__).with_suffix(".yaml")).items()
)


def wording_of(items: Sequence[str]) -> Wording:
    """Return the wording that wrote ``items``."""
    return WORDS if " " in items[0] else BYTES


def value(rng: random.Random) -> str:
    """Return four random digits."""
    return f"{rng.randrange(10_000):04d}"


def record_count(total_chars: int, wording: Wording = BYTES) -> int:
    """Return how many records an episode hides: 96 from 2,048 bytes on (in words from 7,300), fewer below."""
    return max(2, min(MAX_RECORDS, total_chars * 9 // 16 // wording.record_chars))


def recall(rng: random.Random, variant: NeedleKind, total_chars: int, wording: Wording = BYTES) -> Episode:
    """Make one short question over one episode of exactly ``total_chars`` characters.

    Args:
        rng: random numbers of the episode.
        variant: ``single`` hides four records and asks for one; ``multikey`` hides ``record_count`` and asks for four;
            ``two_hop`` hides pointers and records in equal number and asks for the value behind one pointer.
        total_chars: length of prompt, question and answer.
        wording: how records are written.

    Raises:
        ValueError: the records do not fit.
    """
    count = 4 if variant == "single" else record_count(total_chars, wording) // (2 if variant == "two_hop" else 1)
    table = _table(rng, count, wording)
    pointers: dict[str, str] = {}
    if variant == "two_hop":
        sources = [name for name in distinct(wording.make_key, rng, 2 * count) if name not in table][:count]
        pointers = dict(zip(sources, rng.sample(list(table), count), strict=False))
        asked = [rng.choice(list(pointers)) + ">"]
    else:
        asked = [rng.choice(list(table))] if variant == "single" else rng.sample(list(table), min(4, len(table)))
    return _ask(rng, table, pointers, asked, total_chars, wording)


def longgen(rng: random.Random, questions: int, total_chars: int, wording: Wording = BYTES) -> Episode:
    """Make ``questions`` look-ups answered in one generation, LongGenBench's shape; they are part of the prompt."""
    table = _table(rng, max(record_count(total_chars, wording), questions), wording)
    episode = _ask(rng, table, {}, rng.sample(list(table), questions), total_chars, wording)
    block = episode.question[:-1]
    return Episode(episode.prompt + block, "\n", episode.answer, episode.items, len(block))


def marks(items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
    """Mark which of the expected items the first line of a completion gives; a key's first mention counts."""
    wording = wording_of(items)
    given: dict[str, str] = {}
    for entry in wording.given(completion):
        name, _, rest = entry.partition(wording.assign)
        given.setdefault(name, rest)
    expected = (item.partition(wording.assign) for item in items)
    return tuple(given.get(name) == rest for name, _, rest in expected)


def records_of(table: dict[str, str], pointers: dict[str, str], wording: Wording = BYTES) -> list[str]:
    """Return the records and pointers as they are written, without brackets."""
    return [wording.record.format(key=k, value=v) for k, v in table.items()] + [
        wording.pointer.format(key=k, target=v) for k, v in pointers.items()
    ]


def _table(rng: random.Random, count: int, wording: Wording) -> dict[str, str]:
    return {name: value(rng) for name in distinct(wording.make_key, rng, count)}


def _ask(
    rng: random.Random, table: dict[str, str], pointers: dict[str, str], asked: list[str], total_chars: int,
    wording: Wording,
) -> Episode:  # fmt: skip
    question = wording.question("?", asked)
    items = tuple(wording.item(name, table, pointers) for name in asked)
    answer = wording.answer(items)
    prompt = hide(rng, records_of(table, pointers, wording), total_chars - len(question) - len(answer))
    return Episode(prompt, question, answer, items)
