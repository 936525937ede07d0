"""Look-up documents that ask for all values of a key: what a fork learns beside single look-ups."""

from __future__ import annotations

import random

import numpy as np

from longdecode.training.long_context.documents import KINDS, Library, Piece

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
    """A library of which a third of the look-ups ask for two to six values each; texts are this project's own."""

    def document(self, rng: random.Random, length: int, lookups: float) -> tuple[np.ndarray, np.ndarray]:
        """Return ids ``[length]`` (int64) and weights ``[length]`` (float32) of one document."""
        several = _SHARE * lookups
        if rng.random() >= several:
            # The others keep their share of all documents.
            return super().document(rng, length, (lookups - several) / (1 - several))
        return self.joined(self._several(rng, length), length)

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
