"""Loss on real books that the miniature has never seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals.datasets.books import read_books
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.generated import sample_rng
from longdecode.evals.tasks.mini_book.narrative import CONTINUATION_TOKENS, LossTask
from longdecode.evals.tasks.windows import has_tokens, window

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

HELD_OUT = ("12204", "860")
"""Books of PG-19's test split that no training run of the miniature reads."""


class MiniBookPg19(LossTask):
    """Loss on the last 256 bytes of windows of held-out PG-19 books, the books in turn.

    Args:
        source: a folder or hub id, as ``read_books`` takes it.

    Source: Rae et al. 2020 (Compressive Transformers, arXiv 1911.05507) for the data.
    """

    name = "mini_book_pg19"
    data_source: Literal["generated", "real"] = "real"

    def __init__(self, source: Path | None):
        self.source = source

    def samples(
        self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer | None = None
    ) -> list[Sample]:
        """Cut ``count`` windows of ``context_tokens``, each at a random place of its book.

        Raises:
            UnsupportedCellError: no held-out book is as long as the context, or the context is shorter than the
                continuation.
            DataUnavailableError: the books are not here; the message says how to fetch them.
        """
        if context_tokens <= CONTINUATION_TOKENS:
            raise UnsupportedCellError(
                f"{self.name} needs more than {CONTINUATION_TOKENS} tokens, not {context_tokens}"
            )
        prompt_tokens = context_tokens - CONTINUATION_TOKENS
        # The tasks count bytes as characters, and the miniature has seen plain ASCII only.
        texts = [book.encode("ascii", "ignore").decode("ascii") for book in read_books(self.source, HELD_OUT).values()]
        books = [text for text in texts if has_tokens(text, context_tokens, tokenizer)]
        if not books:
            raise UnsupportedCellError(f"{self.name}: no held-out book has {context_tokens} tokens")
        samples = []
        for index in range(count):
            rng = sample_rng(self.name, context_tokens, seed, index)
            prompt, tail = window(books[index % len(books)], rng, prompt_tokens, CONTINUATION_TOKENS, tokenizer)
            samples.append(Sample(index, prompt, tail, 0, None, None))
        return samples
