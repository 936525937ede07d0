"""Public-domain books as token ids: ``python -m longdecode.training.long_context.books BOOKS MODEL OUTPUT``.

The file is all that training needs of the books: a compressed npz of ids, ``train/<id>`` and ``unseen/<id>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.datasets.books import read_books
from longdecode.training.files import run_commands

MANIFEST = Path(__file__).resolve().parent / "books.yaml"
Split = Literal["train", "unseen"]


def manifest() -> Mapping[Split, Sequence[str]]:
    """Return the ids of the books of each split."""
    raw = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    return {split: [str(book) for book in raw[split]] for split in ("train", "unseen")}


def every_book(folder: Path) -> Mapping[Split, Sequence[str]]:
    """Return the names of all ``*.txt`` of a folder: a tenth of them, and those the manifest sets aside, as unseen."""
    names = sorted(file.stem for file in folder.glob("*.txt"))
    unseen = {*names[::10], *manifest()["unseen"]}
    return {"train": [x for x in names if x not in unseen], "unseen": [x for x in names if x in unseen]}


def tokenise(source: Path, model: Path, output: Path, every: bool = False) -> None:
    """Write the ids of all books of the manifest.

    Args:
        source: a folder with ``<id>.txt`` or PG-19's parquet, or a hub id.
        model: folder with the tokenizer.
        output: the file to write.
        every: instead of the manifest's, all ``*.txt`` of the folder.
    """
    from longdecode.engine.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model)
    arrays: dict[str, Any] = {}
    for split, names in (every_book(source) if every else manifest()).items():
        for book, text in read_books(source, names).items():
            ids = np.array(tokenizer.encode(text))
            arrays[f"{split}/{book}"] = ids.astype(np.min_scalar_type(max(ids.max(), 256)))
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f"{output.name}.partial.npz")
    np.savez_compressed(partial, **arrays)
    partial.replace(output)


def load_ids(file: Path, split: Split) -> dict[str, np.ndarray]:
    """Return the ids of a split's books, ``[tokens]`` int64 by book id.

    Raises:
        DataUnavailableError: the file is not there.
    """
    if not file.is_file():
        raise DataUnavailableError(
            f"no {file}; `python -m longdecode.training.long_context.books BOOKS MODEL {file}` writes it"
        )
    with np.load(file) as arrays:
        names = [name for name in arrays.files if name.startswith(f"{split}/")]
        return {name.partition("/")[2]: arrays[name].astype(np.int64) for name in names}


if __name__ == "__main__":
    run_commands(tokenise)
