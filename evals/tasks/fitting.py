"""Fit texts to a context: as much haystack as fits, and windows cut at spaces."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

from longdecode.engine.errors import CheckpointError, UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.tasks.base import Sample, Task, context_of

_MOST_SIZES_A_TOKEN = 32
"""No unit of a haystack, a character at least, is so short that a token holds more of them."""
_LEAST_LIMIT = 4096
"""Tokens that count as the limit where it is smaller: what has to be in a text may take more than a small limit has."""
_SHRINK = 64  # a question that came out too long loses one part in so many of its haystack
_MOST_CHARS_A_TOKEN = 12
"""Longer means over a window do not occur in prose."""


def fill_context(
    task: Task, make: Callable[[int, int], Sample], smallest: int, count: int, context_tokens: int,
    tokenizer: TextTokenizer,
) -> list[Sample]:  # fmt: skip
    """Make ``count`` samples over a haystack that is as large as fits; one size serves all.

    A sample that chance made longer is made again a little smaller.

    Args:
        task: the task, whose template is counted.
        make: makes a sample by its index and haystack size; index -1 is the one on which the size is found.
        smallest: the size below which a question makes no sense.

    Raises:
        UnsupportedCellError: the smallest does not fit; or ``make`` raised ``ValueError``.
    """

    def tokens(sample: Sample) -> int:
        return context_of(sample, task.chat, tokenizer)

    def fitted(index: int, size: int) -> Sample:
        while tokens(made := make(index, size)) > context_tokens:
            if size <= smallest:
                raise ValueError("a question of the smallest haystack is too long")
            size = max(smallest, size - max(1, size // _SHRINK))
        return made

    try:
        size = largest_fitting(lambda size: tokens(make(-1, size)), context_tokens, smallest)
        return [fitted(index, size) for index in range(count)]
    except ValueError as error:
        raise UnsupportedCellError(f"{task.name} does not fit {context_tokens} tokens: {error}") from error


def largest_fitting(tokens: Callable[[int], int], limit: int, smallest: int) -> int:
    """Return the largest haystack size whose question has at most ``limit`` tokens, by bisection.

    Args:
        tokens: tokens of a question by size; grows with it, but for chance.
        smallest: the size below which the question makes no sense.

    Raises:
        ValueError: even the smallest does not fit.
        CheckpointError: no text fills the limit, so the tokenizer cuts or drops text.
    """
    if (least := tokens(smallest)) > limit:
        raise ValueError(f"the smallest question takes {least} tokens of {limit}")
    low, high, most = smallest, smallest + 1, _MOST_SIZES_A_TOKEN * max(limit, smallest, _LEAST_LIMIT)
    while (count := tokens(high)) <= limit:
        if high > most:
            raise CheckpointError(
                f"a text {high / smallest:.0f} times the smallest has {count} tokens and does not fill {limit}: the "
                "tokenizer cuts or drops text"
            )
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if tokens(middle) <= limit:
            low = middle
        else:
            high = middle
    return low


@functools.lru_cache(maxsize=64)
def tail_start(text: str, tokens: int, tokenizer: TextTokenizer) -> int:
    """Return where the longest end of ``text`` begins that has at most ``tokens`` tokens, at a space."""
    if tokenizer.counts_bytes:
        return max(0, len(text) - tokens)
    far = max(0, len(text) - tokens * _MOST_CHARS_A_TOKEN)
    start = len(text) - len(tokenizer.decode(tokenizer.encode(text[far:])[-tokens:]))
    while 0 < start < len(text) and (text[start] != " " or len(tokenizer.encode(text[start:])) > tokens):
        start += 1
    return start


def head_end(text: str, start: int, tokens: int, tokenizer: TextTokenizer) -> int:
    """Return where the longest piece of ``text`` from ``start`` ends that has at most ``tokens`` tokens, at a space."""
    if tokenizer.counts_bytes:
        return min(len(text), start + tokens)
    piece = text[start : start + tokens * _MOST_CHARS_A_TOKEN]
    ids = tokenizer.encode(piece)
    if len(ids) <= tokens:
        return start + len(piece)
    end = len(tokenizer.decode(ids[:tokens]))
    while end > 0 and ((end < len(piece) and piece[end] != " ") or len(tokenizer.encode(piece[:end])) > tokens):
        end -= 1
    return start + end


def has_tokens(text: str, tokens: int, tokenizer: TextTokenizer) -> bool:
    """Return whether ``window`` can cut windows of ``tokens`` from ``text``."""
    return len(text) >= tokens if tokenizer.counts_bytes else tail_start(text, tokens + 1, tokenizer) > 0


def window(
    text: str, rng: random.Random, prompt_tokens: int, tail_tokens: int, tokenizer: TextTokenizer
) -> tuple[str, str]:
    """Cut a prompt and its continuation at a random place of a text that ``has_tokens`` enough."""
    wanted = prompt_tokens + tail_tokens
    if tokenizer.counts_bytes:
        start = rng.randint(0, len(text) - wanted)
    else:
        start = text.rfind(" ", 0, rng.randint(0, tail_start(text, wanted + 1, tokenizer))) + 1
    cut = head_end(text, start, prompt_tokens - len(tokenizer.first_ids), tokenizer)
    return text[start:cut], text[cut : head_end(text, cut, tail_tokens, tokenizer)]
