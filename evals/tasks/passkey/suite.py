"""Passkey retrieval at fixed depths, generated for any tokenizer and length."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from longdecode.evals.generators.passkey import QUESTION, passkey_text
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.generated import filling, sample_rng

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

DEPTHS = (0, 25, 50, 75, 100)
"""Percent of the filler that comes before the key, one task each."""
DIGITS = 5


class Passkey(Task):
    """Five digits hidden at one depth; the question is decoded through the method, which has to find them.

    Args:
        depth: percent of the filler before the key, 0 to 100.

    Source: as for ``evals.generators.passkey``; a completion is right where its first number is the key.
    """

    suite = "passkey"
    version = 1
    kind: Literal["generate", "loss"] = "generate"
    metric = "accuracy"
    unit = "fraction"
    higher_is_better = True
    data_source: Literal["generated", "real"] = "generated"
    stop_at_eos = True

    def __init__(self, depth: int):
        self.name = f"passkey_depth_{depth}"
        self.depth = depth

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Hide one key each in as much filler as fits.

        Raises:
            UnsupportedCellError: not even one line of filler fits.
        """
        asked = len(tokenizer.encode(QUESTION))
        keys = [self._key(sample_rng(self.name, context_tokens, seed, index)) for index in range(count)]

        def make(index: int, lines: int) -> str:
            return self._text(keys[index] if index >= 0 else "1" * DIGITS, lines)

        def tokens(text: str) -> int:
            return len(tokenizer.prompt_ids(text)) + asked

        # The original generates as many tokens as the key has digits: enough, whatever the tokenizer joins.
        texts = filling(self, make, tokens, 1, count, context_tokens, DIGITS)
        return [
            Sample(index, text, QUESTION, DIGITS, None, key)
            for index, (key, text) in enumerate(zip(keys, texts, strict=True))
        ]

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """1 where the completion's first number is the key, else 0."""
        found = re.search(r"\d+", completion)
        return Score(float(found is not None and found.group() == sample.meta))

    def _text(self, key: str, lines: int) -> str:
        before = round(lines * self.depth / 100)
        return passkey_text(key, before, lines - before)

    def _key(self, rng: random.Random) -> str:
        return str(rng.randrange(10 ** (DIGITS - 1), 10**DIGITS))


def _task(depth: int) -> Callable[[Data], Task]:
    return lambda data: Passkey(depth)


SUITE = Suite({f"passkey_depth_{depth}": _task(depth) for depth in DEPTHS}, question="decoded")
