"""RULER's word counts: the ten common words of a numbered list, and the three frequent words of a coded text.

Source: github NVIDIA/RULER, scripts/data/synthetic/common_words_extraction.py and freq_words_extraction.py. Deviation:
the coded text is as long as fits, where the original stops at a multiple of a 32nd of the length.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace

from longdecode.evals.generators.ruler_question import COMMON_WORDS, FREQUENT_WORDS, RulerQuestion, fill

COMMON = 10
CODED_LETTERS = 6
LEAST_CODED_WORDS = 100
"""With fewer the third and the fourth word may come equally often."""
_ZETA_2 = math.pi**2 / 6  # word k of a coded text comes with probability k**-2 over this


@dataclass(frozen=True, slots=True)
class Repeats:
    """Count the repeats of common and other words, in the list and in the example before it."""

    common: int
    other: int
    example_words: int
    example_common: int
    example_other: int


SHORT = Repeats(6, 1, 20, 3, 1)
LONG = Repeats(30, 3, 40, 10, 3)
LONG_FROM_TOKENS = 4096


def common_words(rng: random.Random, size: int, words: Sequence[str], repeats: Repeats) -> RulerQuestion:
    """A list of ``size`` different words, ten of them repeated more, after a worked example.

    Args:
        words: vocabulary of at least ``size`` words.
    """
    example, listed = _list(rng, repeats.example_words, words, repeats.example_common, repeats.example_other)
    context, answers = _list(rng, size, words, repeats.common, repeats.other)
    shown = fill(COMMON_WORDS, (), context=example).text + " " + _numbered(listed) + "\n"
    question = fill(COMMON_WORDS, answers, context=context)
    return replace(question, prompt=shown + question.prompt)


def frequent_words(rng: random.Random, size: int, vocabulary: int) -> RulerQuestion:
    """A coded text of about ``size`` words, whose frequencies fall with the square of their rank; the first is dots.

    Args:
        vocabulary: different words to draw from.
    """
    words: set[str] = set()
    while len(words) < vocabulary:
        words.add("".join(rng.choices(string.ascii_lowercase, k=CODED_LETTERS)))
    ranked = sorted(words)
    rng.shuffle(ranked)
    ranked[0] = "..."
    coded = [word for rank, word in enumerate(ranked, start=1) for _ in range(int(size * rank**-2 / _ZETA_2))]
    rng.shuffle(coded)
    return fill(FREQUENT_WORDS, tuple(ranked[1:4]), context=" ".join(coded))


def _list(rng: random.Random, size: int, words: Sequence[str], common: int, other: int) -> tuple[str, tuple[str, ...]]:
    chosen = rng.sample(words, size)
    listed = chosen[:COMMON] * common + chosen[COMMON:] * other
    rng.shuffle(listed)
    return _numbered(listed), tuple(chosen[:COMMON])


def _numbered(words: Sequence[str]) -> str:
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, start=1))
