"""Windows of books, or of the model's own texts, as token ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from longdecode.engine.errors import DataUnavailableError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.training.long_context.books import load_ids, manifest
from longdecode.training.miniature.books import book_folder

UNSEEN_EVERY = 10
"""Of a folder without any book that the project sets aside, every tenth one in order of names, the first among them, is
never trained on."""


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
        if source is None:
            raise DataUnavailableError(
                "the configuration's data.pg19 is not set; set it to a folder of *.txt books or to a hub id such as "
                "emozilla/pg19"
            )
        self.length = length
        self.train: list[np.ndarray] = []
        self.unseen: list[np.ndarray] = []
        if source.endswith(".npz"):
            self.train, self.unseen = (list(load_ids(Path(source), split).values()) for split in ("train", "unseen"))
            return
        folder = book_folder(source)
        paths = sorted(folder.glob("*.txt"))
        set_aside = {book for book in manifest()["unseen"] if any(path.stem == book for path in paths)}
        for path in paths:
            text = path.read_text(encoding="utf-8")
            if tokenizer.byte_level:
                text = text.encode("ascii", "ignore").decode("ascii")
            ids = np.array(tokenizer.encode(text), dtype=np.int32)
            if len(ids) > length:
                found = len(self.train) + len(self.unseen)
                unseen = path.stem in set_aside if set_aside else found % UNSEEN_EVERY == 0
                (self.unseen if unseen else self.train).append(ids)
        if not (self.train and self.unseen):
            found = len(self.train) + len(self.unseen)
            raise DataUnavailableError(
                f"{folder}: {found} books have over {length} tokens; two or more are needed, one of them unseen"
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
