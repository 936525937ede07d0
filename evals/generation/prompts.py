"""Prompts of long generations: the first tokens of books, or of a generated narrative for models of bytes."""

from __future__ import annotations

import random
from pathlib import Path

from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.datasets.books import read_books
from longdecode.evals.generators.narrative import narrative

BOOKS = ("26493", "4047", "7412", "5962", "9931", "860", "28444")
"""Books of PG-19's test split that no model of this project was trained on, each over 250,000 characters."""


def prompts(
    data: Path | None, count: int, tokens: int, seed: int, tokenizer: TextTokenizer
) -> list[tuple[str, tuple[int, ...]]]:
    """Return ``count`` titles and prompts of exactly ``tokens`` token ids.

    Raises:
        DataUnavailableError: a book is not there; the message holds the command that fetches it.
        UnsupportedCellError: a text is too short, or there are fewer books.
    """
    most = 16 * tokens + 1024  # characters; no tokenizer needs as many for tokens of English
    if tokenizer.byte_level:
        drawn = (random.Random(f"generation {seed} {number}") for number in range(count))
        texts = {f"narrative-{number}": narrative(rng, most, 0).prompt for number, rng in enumerate(drawn)}
    elif count > len(BOOKS):
        raise UnsupportedCellError(f"{count} books are asked for; {len(BOOKS)} are set aside: {', '.join(BOOKS)}")
    else:
        texts = dict(read_books(data, BOOKS[:count]))
    found = [(title, tokenizer.prompt_ids(text[:most])[:tokens]) for title, text in texts.items()]
    for title, ids in found:
        if len(ids) < tokens:
            raise UnsupportedCellError(f"book {title} has {len(ids)} tokens, the prompt needs {tokens}")
    return found
