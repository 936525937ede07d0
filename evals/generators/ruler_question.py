"""Share a question with its templates, and the largest haystack that fits a length, among RULER's generators.

Source: Hsieh et al. 2024 (RULER, arXiv 2404.06654); github NVIDIA/RULER, scripts/data/synthetic/constants.py for the
texts, which are the benchmark's own, and for the tokens to generate.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from longdecode.engine.errors import CheckpointError

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


@dataclass(frozen=True, slots=True)
class RulerQuestion:
    """A prompt, the beginning of its answer (RULER writes it after a model's chat template), and what must follow.

    ``question_chars`` is how many characters at the prompt's end come after the haystack's last line.
    """

    prompt: str
    answer_prefix: str
    answers: tuple[str, ...]
    question_chars: int

    @property
    def text(self) -> str:
        """Prompt and answer prefix as one: the ``input`` of RULER's own files."""
        return self.prompt + self.answer_prefix


@dataclass(frozen=True, slots=True)
class RulerTemplate:
    """Texts of one kind of task, with ``{...}`` for what a question fills in, and the tokens it may generate."""

    prompt: str
    answer_prefix: str
    max_new_tokens: int


NIAH = RulerTemplate(
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {kind} afterwards.\n{context}\nWhat are all the special magic {kind} for {query} mentioned in the provided "
    "text?",
    " The special magic {kind} for {query} mentioned in the provided text are",
    128,
)
NIAH_ONE = RulerTemplate(
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {kind} afterwards.\n{context}\nWhat is the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text is",
    128,
)
VARIABLE_TRACKING = RulerTemplate(
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find "
    "all variables that are assigned the value {query} in the text above.",
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {query}, they are: ",
    30,
)
COMMON_WORDS = RulerTemplate(
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?",
    " Answer: The top 10 words that appear most often in the list are:",
    120,
)
FREQUENT_WORDS = RulerTemplate(
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
    "three most frequently appeared words in the above coded text?",
    " Answer: According to the coded text above, the three most frequently appeared words are:",
    50,
)
DOCUMENTS = RulerTemplate(
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "The following are given documents.\n\n{context}\n\nAnswer the question based on the given documents. Only give me "
    "the answer and do not output any other words.\n\nQuestion: {query}",
    " Answer:",
    32,
)

_Made = TypeVar("_Made")
_MOST_SIZES_A_TOKEN = 32
"""No unit of a haystack, a character at least, is so short that a token holds more of them."""
_LEAST_LIMIT = 4096
"""Tokens that count as the limit where it is smaller: what has to be in a text may take more than a small limit has."""
_MOST_STALLS = 4
"""Doublings in a row that add no token; chance alone may make one of them."""
_SHRINK = 64  # a question that came out too long loses one part in so many of its haystack

Make = Callable[[random.Random, int], RulerQuestion]
"""A question from random numbers and a haystack size; the size's unit is the generator's (words, lines, documents)."""


def largest_fitting(tokens: Callable[[int], int], limit: int, smallest: int, largest: int | None = None) -> int:
    """The largest haystack size whose question has at most ``limit`` tokens, by bisection.

    Args:
        tokens: tokens of a question by size; grows with it, but for chance.
        smallest: the size below which the question makes no sense.
        largest: the size beyond which there is no more haystack; ``None`` where it has no end.

    Raises:
        ValueError: even the smallest does not fit.
        CheckpointError: a text that doubles again and again never fills the limit, so the tokenizer cuts or drops text.
    """
    least = tokens(smallest)
    if least > limit:
        raise ValueError(f"the smallest question takes {least} tokens of {limit}")
    low, high, most = smallest, smallest + 1, _MOST_SIZES_A_TOKEN * max(limit, smallest, _LEAST_LIMIT)
    last, stalled = 0, 0
    while (largest is None or high <= largest) and (count := tokens(high)) <= limit:
        stalled = stalled + 1 if 0 < count <= last else 0
        if largest is None and (high > most or stalled == _MOST_STALLS):
            raise CheckpointError(
                f"a text {high / smallest:.0f} times the smallest has {count} tokens and does not fill {limit}: the "
                "tokenizer cuts or drops text"
            )
        low, high, last = high, 2 * high, count
    if largest is not None:
        high = min(high, largest + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if tokens(middle) <= limit:
            low = middle
        else:
            high = middle
    return low


def shrunk_to_fit(make: Callable[[int], _Made], size: int, smallest: int, fits: Callable[[_Made], bool]) -> _Made:
    """Make a question of ``size``, or of the next smaller size that fits where chance made this one longer.

    Raises:
        ValueError: not even the smallest fits.
    """
    while not fits(made := make(size)):
        if size <= smallest:
            raise ValueError("a question of the smallest haystack is too long")
        size = max(smallest, size - max(1, size // _SHRINK))
    return made


def fill(template: RulerTemplate, answers: tuple[str, ...], **values: object) -> RulerQuestion:
    """A question from a template; braces inside the values are text."""
    question = template.prompt.partition("{context}")[2].format(**values).lstrip("\n")
    prefix = template.answer_prefix.format(**values)
    return RulerQuestion(template.prompt.format(**values), prefix, answers, len(question))
