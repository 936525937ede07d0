"""Prompts of long generations: the first tokens of books, or of a generated narrative."""

from __future__ import annotations

import random
from pathlib import Path

from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals.datasets.books import read_books
from longdecode.evals.generation.spec import Source
from longdecode.evals.generators.narrative import narrative
from longdecode.evals.tokenizing import TextTokenizer

BOOKS = ("26493", "4047", "7412", "5962", "9931", "860", "28444")
"""Books of PG-19's test split that no model of this project was trained on, each over 250,000 characters."""


def prompts(
    source: Source, data: Path | None, count: int, tokens: int, seed: int, tokenizer: TextTokenizer
) -> dict[str, tuple[int, ...]]:
    """Return ``count`` prompts of exactly ``tokens`` token ids, by book.

    Raises:
        DataUnavailableError: a book is not there; the message holds the command that fetches it.
        UnsupportedCellError: a text is too short, or there are fewer books.
    """
    most = 16 * tokens + 1024  # characters; no tokenizer needs as many for tokens of English
    if source == "narrative":
        texts = {f"narrative-{n}": _narrative(seed, n, most) for n in range(count)}
    else:
        if count > len(BOOKS):
            raise UnsupportedCellError(f"{count} books are asked for; {len(BOOKS)} are set aside: {', '.join(BOOKS)}")
        texts = dict(read_books(data, BOOKS[:count]))
    found = {}
    for name, text in texts.items():
        if tokenizer.byte_level:
            text = text.encode("ascii", "ignore").decode("ascii")
        ids = tokenizer.prompt_ids(text[:most])[:tokens]
        if len(ids) < tokens:
            raise UnsupportedCellError(f"book {name} has {len(ids)} tokens, the prompt needs {tokens}")
        found[name] = ids
    return found


def _narrative(seed: int, number: int, size: int) -> str:
    return narrative(random.Random(f"generation {seed} {number}"), size, 0).prompt
