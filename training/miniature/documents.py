"""Training documents: bytes and a weight for each byte's loss, at an exact length."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from longdecode.evals.generators import chain, lookup, narrative, prose
from longdecode.evals.generators.lookup import BYTES

HELD_OUT_BOOKS = ("12204", "860")
_TEXT_WEIGHT = 0.2
_RECORD_WEIGHT = 0.02
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"

Piece = tuple[str, float]
"""Text and the weight of its bytes in the loss."""


class Library:
    """Public-domain books as plain ASCII, for running text and for filler; empty where there are none."""

    def __init__(self, folder: Path | None):
        paths = sorted(folder.glob("*.txt")) if folder else []
        self.books = [ascii_text(path) for path in paths if path.stem.split(".")[0] not in HELD_OUT_BOOKS]

    def slice(self, rng: random.Random, length: int) -> str:
        """``length`` bytes from a random place of a random book."""
        book = rng.choice(self.books)
        start = rng.randrange(max(1, len(book) - length))
        return book[start : start + length].ljust(length)

    def fill(self, rng: random.Random, length: int) -> str:
        """A slice on one line, to hide records in."""
        return self.slice(rng, length).replace("\n", " ")


def ascii_text(path: Path) -> str:
    """A book's text, accents dropped, everything else outside ASCII removed."""
    text = unicodedata.normalize("NFKD", path.read_text(encoding="utf-8", errors="ignore"))
    return (
        text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2014: "--"})
        .encode("ascii", "ignore")
        .decode()
    )


def induction(rng: random.Random, length: int, library: Library) -> list[Piece]:
    """A random segment, repeated after random gaps: predicting the repeats needs an induction head and nothing else."""
    segment = _noise(rng, rng.randint(8, max(9, length // 3)))
    pieces: list[Piece] = [(segment, 0.0)]
    size = len(segment)
    while size < length:
        gap = _noise(rng, rng.randint(0, max(1, length // 8)))
        head = rng.randrange(len(segment) // 2)
        repeat = segment[head:]
        pieces += [(gap + repeat[:3], 0.0), (repeat[3:], 1.0)]
        size += len(gap) + len(repeat)
    return pieces


def lookups(rng: random.Random, length: int, library: Library) -> list[Piece]:
    """Records and pointers, then blocks of questions with their answers."""
    records = _draw_records(rng, length)
    hops = rng.randint(0, records // 2)
    names = prose.distinct(prose.letters, rng, records)
    pointers = {name: rng.choice(names[hops:]) for name in names[:hops]}
    table = {name: lookup.value(rng) for name in names[hops:]}
    askable = [*table, *(name + ">" for name in pointers)]
    unasked: list[str] = []
    pieces: list[Piece] = []
    room = length - records * len("[abcd=0123] ")
    spend = room * rng.uniform(0.3, 1.0) if length < 4096 else min(room, max(1200, length // 4))
    while True:
        count = min(len(askable), rng.choice((1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 8, 15, 30, 45, 60)))
        if len(unasked) < count:
            unasked = rng.sample(askable, len(askable))
        asked, unasked = unasked[:count], unasked[count:]
        question = "\n? " + " ".join(asked) + "\n"
        answer = " ".join(BYTES.item(name, table, pointers) for name in asked) + "\n"
        if len(question) + len(answer) > spend:
            break
        pieces += [(question, 0.0), (answer, 1.0)]
        spend -= len(question) + len(answer)
    return _behind_records(rng, lookup.records_of(table, pointers), pieces, length, library)


def chains(rng: random.Random, length: int, library: Library) -> list[Piece]:
    """Chains woven into prose, then several of them walked."""
    most = _draw_records(rng, length)
    steps = rng.randint(1, max(1, min(20, most - 1)))
    records, starts, links = chain.weave(rng, max(1, most // (steps + 1)), steps)
    room = length - sum(len(record) + 3 for record in records)
    pieces: list[Piece] = []
    for start in rng.sample(starts, len(starts)):
        items, end = chain.walk(start, links)
        question, answer = f"\n! {start}\n", " ".join((*items, f"{end}>stop")) + "\n"
        room -= len(question) + len(answer)
        if room < 0 or (pieces and rng.random() < 0.1):
            break
        pieces += [(question, 0.0), (answer, 1.0)]
    return _behind_records(rng, records, pieces, length, library)


def story(rng: random.Random, length: int, library: Library) -> list[Piece]:
    """A generated narrative; what it tells for the second time and after can be known, and weighs like an answer."""
    text = narrative.narrative(rng, length)
    pieces: list[Piece] = []
    done = 0
    for statement in narrative.retold(text):
        end = statement.start + len(statement.value) + 1
        pieces += [(text[done : statement.start], _TEXT_WEIGHT), (text[statement.start : end], 1.0)]
        done = end
    return [*pieces, (text[done:], _TEXT_WEIGHT)]


def book(rng: random.Random, length: int, library: Library) -> list[Piece]:
    """A slice of a public-domain book, or a generated narrative where there are none."""
    return [(library.slice(rng, length), _TEXT_WEIGHT)] if library.books else story(rng, length, library)


KINDS: Mapping[str, Callable[[random.Random, int, Library], list[Piece]]] = {
    "induction": induction,
    "lookups": lookups,
    "chains": chains,
    "story": story,
    "book": book,
}


def document(
    rng: random.Random, mixture: Mapping[str, float], length: int, library: Library
) -> tuple[np.ndarray, np.ndarray]:
    """One document: ids ``[length]`` (uint8) and the loss weight of each id ``[length]`` (float32)."""
    kind = rng.choices(list(mixture), weights=list(mixture.values()))[0]
    pieces = KINDS[kind](rng, length, library)
    ids = np.frombuffer("".join(text for text, _ in pieces).encode("ascii"), dtype=np.uint8)
    weights = np.repeat(np.array([weight for _, weight in pieces], dtype=np.float32), [len(text) for text, _ in pieces])
    return ids[:length], weights[:length]


def _behind_records(
    rng: random.Random, records: list[str], pieces: list[Piece], length: int, library: Library
) -> list[Piece]:
    fill = library.fill if library.books and rng.random() < 0.3 else prose.filler
    room = length - sum(len(text) for text, _ in pieces)
    room = max(room, sum(len(record) + 3 for record in records))
    return [(prose.hide(rng, records, room, fill), _RECORD_WEIGHT), *pieces]


def _draw_records(rng: random.Random, length: int) -> int:
    """Half the time as many records as the suites hide; otherwise any number, more than theirs in long documents.

    Dense short documents are the hard ones; many records give a step of few long documents many answers to learn from.
    """
    suites = lookup.record_count(length)
    return suites if rng.random() < 0.5 else rng.randint(2, max(suites, length // 64))


def _noise(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(_ALPHABET, k=length))
