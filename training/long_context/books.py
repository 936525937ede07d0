"""Public-domain books as token ids.

The file is all that training needs of the books: a compressed npz of ids, ``train/<id>`` and ``unseen/<id>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import yaml

from longdecode.engine.disk import FileLock
from longdecode.engine.errors import DataUnavailableError
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.evals.datasets.books import read_books
from longdecode.evals.store import replacing
from longdecode.training.miniature.books import book_folder

MANIFEST = Path(__file__).resolve().parent / "books.yaml"
Split = Literal["train", "unseen"]
SPLITS: tuple[Split, ...] = get_args(Split)
UNSEEN_EVERY = 10
"""Of books none of which the manifest sets aside, every tenth one, the first among them, is never trained on."""
_WAIT_SECONDS = 600.0


def manifest() -> Mapping[Split, Sequence[str]]:
    """Return the ids of the books of each split."""
    raw = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    return {split: [str(book) for book in raw[split]] for split in SPLITS}


def split_books(names: Sequence[str]) -> Mapping[Split, Sequence[str]]:
    """Return books by split, in their order: those the manifest sets aside, or else every tenth, are unseen."""
    unseen = set(manifest()["unseen"]) & set(names) or set(names[::UNSEEN_EVERY])
    return {"train": [x for x in names if x not in unseen], "unseen": [x for x in names if x in unseen]}


def ids_of_books(source: Path | None, model: Path, file: Path, every: bool = False) -> Path:
    """Return ``file``, written with the ids of all books of the manifest unless it is there.

    Args:
        source: a configuration's ``data.pg19``: a folder with ``<id>.txt`` or PG-19's parquet, or a hub id.
        model: folder with the tokenizer.
        file: the file.
        every: instead of the manifest's, all ``*.txt`` of the folder; of a hub id, 200 of its training books.

    Raises:
        DataUnavailableError: the file is not there, and neither are the books.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file.with_suffix(".lock"))  # trainings side by side share one file
    lock.acquire("writes the books' ids", wait_seconds=_WAIT_SECONDS)
    try:
        if not file.is_file():
            with replacing(file) as partial, partial.open("wb") as stream:
                np.savez_compressed(stream, **_encoded(source, load_tokenizer(model), every))
    finally:
        lock.release()
    return file


def _encoded(source: Path | None, tokenizer: TextTokenizer, every: bool) -> dict[str, Any]:
    if not source:
        raise DataUnavailableError(
            "data.pg19 names no folder of books; training/long_context/books.yaml lists those needed"
        )
    splits = manifest()
    if every:
        source = book_folder(str(source))
        splits = split_books(sorted(file.stem for file in source.glob("*.txt")))
    return {
        f"{split}/{book}": np.array(tokenizer.encode(text), dtype=np.uint32)
        for split, names in splits.items()
        for book, text in read_books(source, names).items()
    }


def load_ids(file: Path, split: Split) -> dict[str, np.ndarray]:
    """Return the ids of a split's books, ``[tokens]`` int64 by book id."""
    with np.load(file) as arrays:
        names = [name for name in arrays.files if name.startswith(f"{split}/")]
        return {name.partition("/")[2]: arrays[name].astype(np.int64) for name in names}
