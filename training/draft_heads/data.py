"""Windows of books as token ids, and the pair table that heads are compared with."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.errors import DataUnavailableError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.training.long_context.books import manifest
from longdecode.training.miniature.books import book_folder

UNSEEN_EVERY = 10
"""Of a folder without any book that the project sets aside, every tenth one in order of names, the first among them, is
never trained on."""


class Books:
    """Books of a folder as token ids: ``train`` and ``unseen``, each at least ``length + 1`` tokens long.

    Books that ``training/long_context/books.yaml`` sets aside are unseen: prompts of long generations come from them.

    Args:
        source: a folder of ``*.txt`` books, or the id of a hub data set; ``None`` where the configuration names none.
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
        folder = book_folder(source)
        self.train: list[np.ndarray] = []
        self.unseen: list[np.ndarray] = []
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
        self.length = length
        if not (self.train and self.unseen):
            found = len(self.train) + len(self.unseen)
            raise DataUnavailableError(
                f"{folder}: {found} books have over {length} tokens; two or more are needed, one of them unseen"
            )

    def window(self, seed: int, step: int, row: int) -> np.ndarray:
        """Return a training window ``[length]``, a function of the three numbers alone."""
        return self._cut(self.train, random.Random(f"heads {seed} {step} {row}"))

    def unseen_windows(self, seed: int, count: int) -> list[np.ndarray]:
        """Return windows of unseen books, the books in turn."""
        rng = random.Random(f"unseen {seed}")
        return [self._cut([self.unseen[index % len(self.unseen)]], rng) for index in range(count)]

    def _cut(self, books: Sequence[np.ndarray], rng: random.Random) -> np.ndarray:
        book = rng.choice(books)
        start = rng.randrange(len(book) - self.length)
        return book[start : start + self.length].astype(np.int64)


class PairTable:
    """The three tokens that most often stand ``distance`` places after a token, counted in books.

    It sees what a head's position shows at the least, the token there, and is what a head must beat.
    """

    def __init__(self, books: Sequence[np.ndarray], distance: int, vocab: int):
        pairs = np.concatenate([book[:-distance].astype(np.int64) * vocab + book[distance:] for book in books])
        keys, counts = np.unique(pairs, return_counts=True)
        order = np.lexsort((keys, -counts, keys // vocab))
        keys = keys[order]
        first = keys // vocab
        rank = np.arange(len(keys)) - np.searchsorted(first, first, side="left")
        self.best = torch.full((vocab, 3), -1, dtype=torch.int64)
        kept = rank < 3
        self.best[first[kept], rank[kept]] = torch.from_numpy(keys[kept] % vocab)

    def hits(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        """Tell if each wanted token ``[N]`` is the first, among the first two, or three: ``[N, 3]`` bool."""
        return (self.best[tokens] == wanted[:, None]).cumsum(dim=1) > 0
