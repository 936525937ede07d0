"""Windows of a text by tokens, cut at spaces, so that both sides of a cut are encoded as they were together."""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING

from longdecode.evals.tasks.generated import counts_bytes

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

_MOST_CHARS_A_TOKEN = 12
"""Longer means over a window do not occur in prose."""
_CHARS_A_TOKEN = 6
"""Nearly always enough of a text to hold the tokens asked for."""
_MARGIN = 32
"""Tokens that must follow, so that where a piece was cut off changes none of those asked for."""


def tail_start(text: str, tokens: int, tokenizer: TextTokenizer | None) -> int:
    """Return where the longest end of ``text`` begins that has at most ``tokens`` tokens, at a space."""
    if tokenizer is None or counts_bytes(tokenizer):
        return max(0, len(text) - tokens)
    return _tail_start(text, tokens, tokenizer)


@functools.lru_cache(maxsize=64)
def _tail_start(text: str, tokens: int, tokenizer: TextTokenizer) -> int:
    far = max(0, len(text) - tokens * _MOST_CHARS_A_TOKEN)
    start = len(text) - len(tokenizer.decode(tokenizer.encode(text[far:])[-tokens:]))
    while 0 < start < len(text) and (text[start] != " " or len(tokenizer.encode(text[start:])) > tokens):
        start += 1
    return start


def head_end(text: str, start: int, tokens: int, tokenizer: TextTokenizer | None) -> int:
    """Return where the longest piece of ``text`` from ``start`` ends that has at most ``tokens`` tokens, at a space."""
    if tokenizer is None or counts_bytes(tokenizer):
        return min(len(text), start + tokens)
    piece = text[start : start + tokens * _CHARS_A_TOKEN]
    if len(ids := tokenizer.encode(piece)) <= tokens + _MARGIN:
        piece = text[start : start + tokens * _MOST_CHARS_A_TOKEN]
        ids = tokenizer.encode(piece)
    end = len(tokenizer.decode(ids[:tokens])) if len(ids) > tokens else len(piece)
    while end > 0 and (
        (end < len(piece) and piece[end] != " ") or (len(ids) > tokens and len(tokenizer.encode(piece[:end])) > tokens)
    ):
        end -= 1
    return start + end


def has_tokens(text: str, tokens: int, tokenizer: TextTokenizer | None) -> bool:
    """Tell whether ``window`` can cut windows of ``tokens`` from ``text``."""
    if tokenizer is None or counts_bytes(tokenizer):
        return len(text) >= tokens
    return tail_start(text, tokens + 1, tokenizer) > 0


def window(
    text: str, rng: random.Random, prompt_tokens: int, tail_tokens: int, tokenizer: TextTokenizer | None
) -> tuple[str, str]:
    """Cut a prompt and its continuation at a random place of a text that ``has_tokens`` enough."""
    wanted = prompt_tokens + tail_tokens
    if tokenizer is None or counts_bytes(tokenizer):
        start = rng.randint(0, len(text) - wanted)
        cut = start + prompt_tokens
        return text[start:cut], text[cut : start + wanted]
    start = rng.randint(0, tail_start(text, wanted + 1, tokenizer))
    start = text.rfind(" ", 0, start) + 1
    cut = head_end(text, start, prompt_tokens - len(tokenizer.first_ids), tokenizer)
    return text[start:cut], text[cut : head_end(text, cut, tail_tokens, tokenizer)]
