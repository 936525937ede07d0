"""Training documents: token ids and the weight of each in the loss, at an exact length.

A document is a piece of a book, or a look-up document: records strewn into a book or written as a bare list, then
questions with their answers. Its texts are this project's own; none is RULER's or LongBench's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.generators.lookup import WORDS, records_of, two_words
from longdecode.evals.generators.prose import distinct, filler

KINDS = "mark number fee page berth lot sum weight rank toll".split()
_RECORDS = (
    "The ledger entry for {k} reads {v}.", "Note that the {k} was given the {kind} {v}.",
    "In the register, {k} stands under {v}.", "The {kind} of {k} is {v}.", "{k} has the {kind} {v}.",
    "Against {k} they wrote {v}.", "For {k}, the {kind} was set at {v}.", "{v} is the {kind} that belongs to {k}.",
    "Entry: {k}, {kind} {v}.", "It was agreed that {k} should keep the {kind} {v}.",
)  # fmt: skip
_QUESTIONS = (
    "\nAsked for {k}, the clerk answers:", "\nQ: Under which {kind} is {k}? A:", "\nThe {kind} kept for {k} is",
    "\nWhich {kind} did {k} get in the text above? It got", "\nTell me the {kind} of {k}. The {kind} of {k} above is",
    "\nLook up {k}:", "\n{k} ->",
)  # fmt: skip
_MARKS = ("{v}.", "{v}\n", "{v};")


@dataclass(frozen=True, slots=True)
class Weights:
    """Weight of a look-up document's text and of its answers; questions weigh nothing."""

    text: float
    answer: float


Piece = tuple[Sequence[int], float]
Document = tuple[np.ndarray, np.ndarray]
"""Ids ``[length]`` int64 and their weights in the loss ``[length]`` float32; answers weigh most."""


class Library:
    """Training books as ids, the words that keys are made of, and the tokenizer that joins them.

    Args:
        books: ids by book.
        tokenizer: the model's.
        weights: of look-up documents.
    """

    def __init__(self, books: Mapping[str, np.ndarray], tokenizer: TextTokenizer, weights: Weights):
        self.books = [book for _, book in sorted(books.items())]
        self.encode = tokenizer.encode
        self.weights = weights
        text = " ".join(tokenizer.decode(book[5000:25000].tolist() or book.tolist()) for book in self.books)
        self.words = sorted({word.lower() for word in text.split() if word.isalpha() and 4 <= len(word) <= 9})

    def document(self, rng: random.Random, length: int, lookups: float) -> Document:
        """Return ids ``[length]`` (int64) and weights ``[length]`` (float32) of one document."""
        if rng.random() >= lookups:
            return self.slice(rng, length), np.ones(length, dtype=np.float32)
        return self.joined(rng.choices((self._register, self._in_words), weights=(2, 1))[0](rng, length), length)

    @staticmethod
    def joined(pieces: Sequence[Piece], length: int) -> Document:
        """Return the last ``length`` ids and weights of pieces."""
        ids = np.concatenate([np.asarray(ids, dtype=np.int64) for ids, _ in pieces])
        weights = np.concatenate([np.full(len(ids), weight, dtype=np.float32) for ids, weight in pieces])
        # From the back: an odd length cuts the text's beginning, never an answer.
        return ids[-length:], weights[-length:]

    def slice(self, rng: random.Random, length: int) -> np.ndarray:
        """Return ``length`` ids from a random place of a book, of several where none is as long."""
        parts: list[np.ndarray] = []
        while (need := length - sum(map(len, parts))) > 0:
            long_enough = [book for book in self.books if len(book) > need]
            book = rng.choice(long_enough or self.books)
            start = rng.randrange(max(1, len(book) - need))
            parts.append(book[start : start + need])
        return np.concatenate(parts)

    def _register(self, rng: random.Random, length: int) -> list[Piece]:
        """Records in one of many phrasings; the keys of a document share few words, so that many look alike."""
        kind = rng.choice(KINDS)
        forms = rng.sample(_RECORDS, rng.choice((1, 1, 2)))
        question = rng.choice(_QUESTIONS)
        digits = rng.choice((4, 5, 6, 7, 7))
        end = rng.choice(_MARKS)
        make_key = self._keys(rng)
        asked_tokens = len(self.encode(question.format(k=make_key(rng), kind=kind))) + digits + 4
        questions = max(1, min(rng.choice((4, 16, 48, 96)), length // 3 // asked_tokens))
        room = length - questions * (asked_tokens + 4)
        # Half of the documents are lists of nothing but records, the hardest to tell apart.
        dense = rng.random() < 0.5
        cost = len(self.encode(" " + forms[0].format(k=make_key(rng), v="1" * digits, kind=kind))) + 1
        count = max(2, int(room // cost * 0.97)) if dense else min(rng.choice((8, 40, 120, 300)), room // (2 * cost))
        table = {key: self._value(rng, digits) for key in self._distinct(make_key, rng, max(2, count))}
        joint = rng.choice((" ", "\n"))
        records = [joint + rng.choice(forms).format(k=k, v=v, kind=kind) for k, v in table.items()]
        asked = rng.sample(list(table), min(questions, len(table)))
        pieces: list[Piece] = []
        for key in asked:
            pieces += [
                (self.encode(question.format(k=key, kind=kind)), 0.0),
                (self.encode(" " + end.format(v=table[key])), self.weights.answer),
            ]
        return [*self._strewn(rng, records, length - _size(pieces), dense), *pieces]

    def _in_words(self, rng: random.Random, length: int) -> list[Piece]:
        """The suites' own look-ups in words: records and pointers, then questions for one key up to many."""
        spend = min(length // 3, 2000)
        count = rng.choice((8, 48, 96, 96, max(96, length // 60)))
        count = min(count, (length - spend) // 24)
        names = distinct(self._suite_key(rng, count), rng, max(2, count))
        hops = rng.choice((0, len(names) // 2))
        pointers = dict(zip(names[:hops], rng.choices(names[hops:], k=hops), strict=True))
        table = {name: self._value(rng, 4) for name in names[hops:]}
        askable = [f"{name}>" for name in pointers] or list(table)
        pieces: list[Piece] = []
        while True:
            asked = rng.sample(askable, min(len(askable), rng.choice((1, 1, 4, 8, 15, 45))))
            items = [WORDS.item(name, table, pointers) for name in asked]
            pair: list[Piece] = [
                (self.encode(WORDS.question("?", asked)), 0.0),
                (self.encode(WORDS.answer(items)), self.weights.answer),
            ]
            if pieces and _size(pieces) + _size(pair) > spend:
                break
            pieces += pair
        records = [f"[{record}] " for record in records_of(table, pointers, WORDS)]
        rng.shuffle(records)
        return [*self._strewn(rng, records, length - _size(pieces), dense=False), *pieces]

    def _strewn(self, rng: random.Random, records: Sequence[str], room: int, dense: bool) -> list[Piece]:
        """Lay records one after another, or into a book or plain generated text, to ``room`` tokens or a few more."""
        encoded = [self.encode(record) for record in records]
        weight = self.weights.text
        spare = room - sum(map(len, encoded))
        if dense or spare <= 0:
            start: list[Piece] = [(self.slice(rng, spare).tolist(), weight)] if spare > 0 else []
            return start + [(ids, weight) for ids in encoded]
        text = self.slice(rng, spare).tolist() if rng.random() < 0.6 else self._plain(rng, spare)
        cuts = sorted(rng.randrange(len(text) + 1) for _ in encoded)
        pieces: list[Piece] = []
        last = 0
        for cut, ids in zip(cuts, encoded, strict=True):
            pieces += [(text[last:cut], weight), (ids, weight)]
            last = cut
        return [*pieces, (text[last:], weight)]

    def _plain(self, rng: random.Random, tokens: int) -> list[int]:
        """Return generated sentences; they teach little, so that a stretch of them is repeated."""
        ids = list(self.encode(filler(rng, 4000)))
        return (ids * (tokens // len(ids) + 1))[:tokens]

    def _keys(self, rng: random.Random) -> Callable[[random.Random], str]:
        """Return a maker of keys: two words of a small or large stock, joined by a hyphen or a space."""
        if rng.random() < 0.3:
            return two_words
        stock = rng.sample(self.words, min(len(self.words), rng.choice((60, 200, 1000, 4000))))
        joint = rng.choice(("-", "-", "-", " "))
        return lambda rng: f"{rng.choice(stock)}{joint}{rng.choice(stock)}"

    def _suite_key(self, rng: random.Random, count: int) -> Callable[[random.Random], str]:
        """Return the suites' keys, or words of the books where the suites' are too few or by chance."""
        if count < 1000 and rng.random() < 0.5:
            return two_words
        return lambda rng: f"{rng.choice(self.words)}-{rng.choice(self.words)}"

    def _distinct(self, make: Callable[[random.Random], str], rng: random.Random, count: int) -> list[str]:
        """Return up to ``count`` different keys; a small stock may have fewer."""
        return list(dict.fromkeys(make(rng) for _ in range(count)))

    def _value(self, rng: random.Random, digits: int) -> str:
        return str(rng.randrange(10 ** (digits - 1), 10**digits))


def _size(pieces: Sequence[Piece]) -> int:
    return sum(len(ids) for ids, _ in pieces)
