"""Training and held-out documents of a fork: a function of seed, step and row alone, so that training resumes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from longdecode.engine.tokenizer import load_tokenizer
from longdecode.evals.training_spec import ForkTraining
from longdecode.training.forks.lookups import ForkLibrary
from longdecode.training.long_context.documents import Document

Maker = Callable[[random.Random, int, float, int], Document]
"""Make a document of a length, a look-up with a certain probability; the last argument is the document's number."""


def makers(run: ForkTraining, folder: Path, data: Mapping[str, Any], scratch: Path) -> tuple[Maker, Maker]:
    """Return makers of training and of held-out documents.

    Args:
        run: settings.
        folder: the checkpoint, for its tokenizer.
        data: folders of data sets by name; books are ``pg19``.
        scratch: folder for the books' token ids.

    Raises:
        DataUnavailableError: the books are not there.
    """
    return _miniature() if run.data == "miniature" else _books(run, folder, data.get("pg19"), scratch)


def _books(run: ForkTraining, folder: Path, books: Path | None, scratch: Path) -> tuple[Maker, Maker]:
    from longdecode.training.long_context.books import Split, ids_of_books, load_ids
    from longdecode.training.long_context.documents import Weights

    once = run.length + 1 if run.data == "library" else 0
    ids, tokenizer = ids_of_books(books, folder, scratch / f"{run.data}.npz", once > 0), load_tokenizer(folder)

    def library(split: Split, documents: int) -> ForkLibrary:
        return ForkLibrary(load_ids(ids, split), tokenizer, Weights(0.3, 4.0), documents * once)

    return library("train", run.steps * run.rows).document, library("unseen", run.held_out).document


def _miniature() -> tuple[Maker, Maker]:
    """Look-ups, and generated stories in place of books; held-out ones are drawn with seeds of their own."""
    from longdecode.training.miniature.documents import Library, document

    library = Library(None)

    def make(rng: random.Random, length: int, lookups: float, number: int) -> Document:
        ids, weights = document(rng, {"lookups": lookups, "story": 1 - lookups}, length, library)
        return ids.astype(np.int64), weights

    return make, make
