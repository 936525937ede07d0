"""Windows of books, or of the model's own texts, as token ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longdecode.engine.errors import DataUnavailableError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.training.long_context.books import SPLITS, load_ids, split_books
from longdecode.training.miniature.books import book_folder


class Books:
    """Books of a folder as token ids: ``train`` and ``unseen``, each at least ``length + 1`` tokens long.

    Books that ``training/long_context/books.yaml`` sets aside are unseen: prompts of long generations come from them.

    Args:
        source: a folder of ``*.txt`` books, the id of a hub data set, or ``*.npz`` with ``train/<name>`` and
            ``unseen/<name>``; ``None`` where the configuration names none.
        tokenizer: the model's; a byte-level one sees ASCII alone, as the miniature does.
        length: tokens of a window.

    Raises:
        DataUnavailableError: there are fewer than two books long enough.
    """

    def __init__(self, source: str | None, tokenizer: TextTokenizer, length: int):
        self.length = length
        self.train: list[np.ndarray]
        self.unseen: list[np.ndarray]
        if source and source.endswith(".npz"):
            self.train, self.unseen = (list(load_ids(Path(source), split).values()) for split in SPLITS)
            return
        folder = book_folder(source)
        encoded: dict[str, np.ndarray] = {}
        for path in sorted(folder.glob("*.txt")):
            text = path.read_text(encoding="utf-8")
            if tokenizer.byte_level:
                text = text.encode("ascii", "ignore").decode("ascii")
            ids = np.array(tokenizer.encode(text), dtype=np.int32)
            if len(ids) > length:
                encoded[path.stem] = ids
        splits = split_books(list(encoded))
        self.train, self.unseen = ([encoded[name] for name in splits[split]] for split in SPLITS)
        if not (self.train and self.unseen):
            raise DataUnavailableError(
                f"{folder}: {len(encoded)} books have over {length} tokens; two or more are needed, one of them unseen"
            )

    def window(self, seed: int, step: int, row: int) -> np.ndarray:
        """Return a training window ``[length]``, a function of the three numbers alone."""
        return self.cut(self.train, random.Random(f"heads {seed} {step} {row}"))

    def unseen_windows(self, seed: int, count: int) -> list[np.ndarray]:
        """Return windows of unseen books, the books in turn."""
        rng = random.Random(f"unseen {seed}")
        return [self.cut([self.unseen[index % len(self.unseen)]], rng) for index in range(count)]

    def cut(self, books: Sequence[np.ndarray], rng: random.Random, length: int | None = None) -> np.ndarray:
        """Return a window of one of the books, at a random place; of the training's length if none is given."""
        book, length = rng.choice(books), length or self.length
        start = rng.randrange(len(book) - length)
        return book[start : start + length].astype(np.int64)
