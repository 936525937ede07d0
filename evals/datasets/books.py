"""PG-19's books by id, from a local folder or from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longdecode.evals.datasets.reader import SOURCES, DataSet, HubId, as_text, read_text

UNSEEN = ("860", "4047", "5962", "7412", "9931", "12204", "26493", "28444")
"""PG-19 books that no model of this project was trained on; training/long_context/books.yaml sets them aside."""


def read_books(source: Path | None, wanted: Sequence[str]) -> dict[str, str]:
    """Return the texts of books of PG-19's test split, by id, in the order of ``wanted``.

    Args:
        source: a folder with ``<id>.txt`` or with PG-19's parquet files at any depth; ``hub``; or a hub id, with
            or without ``@revision``, whose test split has the columns ``url`` and ``text``; ``None`` where the
            configuration names nothing.
        wanted: ids of Project Gutenberg.

    Raises:
        DataUnavailableError: a book is not there; the message holds the command that fetches it.
    """
    data = SOURCES["pg19"]
    place = data.locate(source)
    texts: dict[str, str] = {}
    if isinstance(place, HubId):
        texts = _chosen(data, wanted, place.repo, revision=place.revision, split="test")
    else:
        files = {file.stem: file for file in sorted(place.rglob("*.txt"))}
        texts = {book: read_text(data, files[book]) for book in wanted if book in files}
        parquet = [str(file) for file in sorted(place.rglob("*.parquet"))]
        if parquet and len(texts) < len(wanted):
            texts = _chosen(data, wanted, "parquet", data_files=parquet, split="train") | texts
    if missing := [book for book in wanted if book not in texts]:
        raise data.unavailable(f"{source} lacks {', '.join(missing)}")
    return {book: texts[book] for book in wanted}


def _chosen(data: DataSet, wanted: Sequence[str], *source: str, **options: Any) -> dict[str, str]:
    """Return the wanted books of a source of the datasets library; the last part of a book's address is its id."""
    texts: dict[str, str] = {}
    with data.reading(f"PG-19 could not be read from {source[0]}"):
        from datasets import load_dataset

        for row in load_dataset(*source, **options, streaming=True):
            book = str(row["url"]).rstrip("/").rpartition("/")[2].partition(".")[0]
            if book in wanted:
                texts[book] = as_text(row["text"], blank=False)
            if len(texts) == len(set(wanted)):
                break
    return texts
