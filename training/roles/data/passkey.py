"""Multi-passkey retrieval: word sequences hidden in a long text, all of them asked for behind it."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from pathlib import Path

from longdecode.engine.errors import DataUnavailableError, UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.generators.prose import filler
from longdecode.training.roles.data.batch import SampleSource, TargetSample

NATO = (
    "alfa bravo charlie delta echo foxtrot golf hotel india juliett kilo lima mike november oscar papa quebec romeo"
    " sierra tango uniform victor whiskey xray yankee zulu"
).split()
DEPTHS, DEPTH_LOW, DEPTH_HIGH = 1000, 0.05, 0.95
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth"
    " sixteenth"
).split()
MAX_PASSKEYS = len(_ORDINALS)
BOOK_TOKENS = 2_000_000
"""Tokens of books that are read: many stretches of the longest context, in a few seconds."""

Haystack = Callable[[random.Random, int], tuple[int, ...]]
"""Gives exactly this many tokens of running text."""


class Passkey(SampleSource):
    """Ten passkeys of 32 NATO words at random depths of a long text; ten questions with their answers as targets.

    The context has exactly the tokens asked for, the targets stand behind it. The wording is this project's.

    Args:
        haystack: what hides them.
        passkeys: how many.
        words: length of each.

    Source: DuoAttention (arXiv 2410.10819), section 2.2, for counts, lengths and depths.
    """

    def __init__(self, tokenizer: TextTokenizer, haystack: Haystack, passkeys: int = 10, words: int = 32):
        if not 1 <= passkeys <= MAX_PASSKEYS:
            raise UnsupportedCellError(f"{passkeys} passkeys; 1 to {MAX_PASSKEYS} are possible")
        self.tokenizer = tokenizer
        self.haystack = haystack
        self.passkeys = passkeys
        self.words = words

    def sample(self, rng: random.Random, context_tokens: int) -> TargetSample:
        """One sample.

        Raises:
            UnsupportedCellError: the passkeys alone are longer than the context.
        """
        encode = self.tokenizer.encode
        keys = [" ".join(rng.choices(NATO, k=self.words)) for _ in range(self.passkeys)]
        named = list(zip(_ORDINALS, keys, strict=False))
        needles = [encode(f"\nKeep in mind: the {name} passkey of the vault is {key}.\n") for name, key in named]
        opening = self.tokenizer.first_ids + encode("Here is a long text.\n\n")
        closing = encode("\n\nThe text ends here.\n")
        room = context_tokens - len(opening) - len(closing) - sum(map(len, needles))
        if room < 0:
            raise UnsupportedCellError(
                f"passkey: {self.passkeys} passkeys of {self.words} words take {context_tokens - room} tokens; the "
                f"context is {context_tokens} (fewer questions, or longer contexts, are needed)"
            )
        body = _insert(self.haystack(rng, room), needles, _depths(rng, self.passkeys))
        questions = "".join(f"\nWhat is the {name} passkey of the vault? It is {key}." for name, key in named)
        return TargetSample(opening + body + closing, encode(questions))


def generated_haystack(tokenizer: TextTokenizer) -> Haystack:
    """Generated prose, new for every sample."""

    def make(rng: random.Random, tokens: int) -> tuple[int, ...]:
        text = ""
        ids: tuple[int, ...] = ()
        while len(ids) < tokens:
            text += filler(rng, max(64, 6 * (tokens - len(ids))))
            ids = tokenizer.encode(text)
        return ids[:tokens]

    return make


def book_haystack(tokenizer: TextTokenizer, folder: Path, tokens_needed: int) -> tuple[Haystack, list[str]]:
    """A stretch of the books ``*.txt`` below ``folder``, one behind the other, whose start is drawn; and their names.

    Raises:
        DataUnavailableError: the books are shorter than the longest context.
    """
    ids, names = array("I"), list[str]()
    for book in sorted(folder.rglob("*.txt")):
        ids.extend(tokenizer.encode(book.read_text(encoding="utf-8", errors="replace")))
        names.append(book.name)
        if len(ids) >= BOOK_TOKENS:
            break
    if len(ids) < tokens_needed:
        raise DataUnavailableError(f"the books below {folder} have {len(ids)} tokens; {tokens_needed} are needed")

    def make(rng: random.Random, tokens: int) -> tuple[int, ...]:
        start = rng.randint(0, len(ids) - tokens)
        return tuple(ids[start : start + tokens])

    return make, names


def _depths(rng: random.Random, count: int) -> list[float]:
    step = (DEPTH_HIGH - DEPTH_LOW) / (DEPTHS - 1)
    return [DEPTH_LOW + step * index for index in sorted(rng.sample(range(DEPTHS), count))]


def _insert(text: tuple[int, ...], needles: list[tuple[int, ...]], depths: list[float]) -> tuple[int, ...]:
    pieces: list[int] = []
    last = 0
    for needle, depth in zip(needles, depths, strict=True):
        at = round(depth * len(text))
        pieces += (*text[last:at], *needle)
        last = at
    return (*pieces, *text[last:])
