"""Look-up documents that ask for all values of a key: what a fork learns beside single look-ups."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from longdecode.engine.errors import DataUnavailableError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.training.long_context.documents import KINDS, Document, Library, Piece, Weights

_SHARE = 1 / 3
"""Of the look-ups."""
_RECORDS = (
    "Under {k} stands the {kind} {v}.", "{k} is also given the {kind} {v}.", "The clerk added {v} to {k}.",
    "A {kind} of {k} is {v}.", "Once more {k} was entered, with the {kind} {v}.", "{v} is a {kind} that {k} has.",
)  # fmt: skip
_QUESTIONS = (
    "\nEvery {kind} entered for {k}:", "\nQ: Which {kind}s does {k} have? A:", "\nList the {kind}s of {k}:",
    "\nThe {kind}s that stand under {k} above are", "\n{k}, all {kind}s:",
)  # fmt: skip


class ForkLibrary(Library):
    """A library of which a third of the look-ups ask for two to six values each; texts are this project's own.

    With ``once`` no text is read twice: document ``number`` owns a stretch of all books, laid in one drawn order. It is
    the number of tokens that all documents take.

    Raises:
        DataUnavailableError: the books have fewer.
    """

    def __init__(self, books: Mapping[str, np.ndarray], tokenizer: TextTokenizer, weights: Weights, once: int = 0):
        super().__init__(books, tokenizer, weights)
        order = random.Random(0).sample(self.books, len(self.books)) if once else []
        self._text, self._next = np.concatenate(order) if order else None, 0
        if (found := sum(map(len, self.books))) < once:
            raise DataUnavailableError(f"{found:,} tokens of books; {once:,} are needed to read none twice")

    def document(self, rng: random.Random, length: int, lookups: float, number: int = 0) -> Document:
        """Return ids ``[length]`` (int64) and weights ``[length]`` (float32) of one document."""
        self._next = number * length
        several = _SHARE * lookups
        if rng.random() >= several:
            # The others keep their share of all documents.
            return super().document(rng, length, (lookups - several) / (1 - several))
        return self.joined(self._several(rng, length), length)

    def slice(self, rng: random.Random, length: int) -> np.ndarray:
        """Return ``length`` ids from a random place, or the document's own next ones."""
        if self._text is None:
            return super().slice(rng, length)
        first, self._next = self._next, self._next + length
        return self._text[first : self._next]

    def _several(self, rng: random.Random, length: int) -> list[Piece]:
        """Records of keys with several values each, strewn into text, then questions for all values of a key."""
        kind = rng.choice(KINDS)
        forms = rng.sample(_RECORDS, rng.choice((1, 1, 2)))
        question = rng.choice(_QUESTIONS)
        digits = rng.choice((4, 5, 6, 7, 7))
        keys = self._distinct(self._keys(rng), rng, rng.choice((1, 2, 4, 12, 24)))
        owners = [key for key in keys for _ in range(rng.randint(2, 6))]
        rng.shuffle(owners)
        records = [(key, self._value(rng, digits)) for key in owners]
        pieces: list[Piece] = []
        for key in rng.sample(keys, min(len(keys), rng.choice((1, 4, 12)))):
            # In the order of the text.
            *first, last = [value for owner, value in records if owner == key]
            pieces += [
                (self.encode(question.format(k=key, kind=kind)), 0.0),
                (self.encode(f" {', '.join(first)} and {last}."), self.weights.answer),
            ]
        joint = rng.choice((" ", "\n"))
        texts = [joint + rng.choice(forms).format(k=key, v=value, kind=kind) for key, value in records]
        room = length - sum(len(ids) for ids, _ in pieces)
        return [*self._strewn(rng, texts, room, dense=False), *pieces]
