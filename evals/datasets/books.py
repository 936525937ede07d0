"""PG-19's books by id, from a local folder or from the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.datasets.data_file import one_line, read_text, shown
from longdecode.evals.datasets.source import HubId, read_source

HUB = "emozilla/pg19-test"
"""PG-19's test split as one parquet file of 24.9 MB."""
_SOURCE = "https://storage.googleapis.com/deepmind-gutenberg/test"


def read_books(source: Path | None, wanted: Sequence[str]) -> dict[str, str]:
    """Return the texts of books of PG-19's test split, by id, in the order of ``wanted``.

    Args:
        source: a folder with ``<id>.txt`` or with PG-19's parquet files at any depth, or a hub id, ``org/name`` or
            ``org/name@revision``, whose test split has the columns ``url`` and ``text``; ``None`` where the
            configuration names nothing.
        wanted: ids of Project Gutenberg.

    Raises:
        DataUnavailableError: a book is not there; the message holds the command that fetches it.
    """
    if source is None:
        raise _unavailable("the configuration's data.pg19 names nothing", wanted)
    place = read_source(source)
    if place is None:
        raise _unavailable(f"data.pg19 is {str(source)!r}, neither a folder nor a hub id (org/name)", wanted)
    found = _from_hub(place, wanted) if isinstance(place, HubId) else _from_folder(place, wanted)
    if missing := [book for book in wanted if book not in found]:
        raise _unavailable(f"{source} lacks {', '.join(missing)}", missing)
    return {book: found[book] for book in wanted}


def _from_folder(folder: Path, wanted: Sequence[str]) -> Mapping[str, str]:
    files = {file.stem: file for file in sorted(folder.rglob("*.txt"))}
    remedy = partial(_unavailable, wanted=wanted)
    texts = {book: read_text(files[book], remedy) for book in wanted if book in files}
    parquet = [] if len(texts) == len(wanted) else sorted(folder.rglob("*.parquet"))
    if not parquet:
        return texts
    from pyarrow.parquet import ParquetFile

    def rows() -> Iterator[Mapping[str, Any]]:
        for file in parquet:
            for batch in ParquetFile(file).iter_batches(8, columns=["url", "text"]):
                yield from batch.to_pylist()

    try:
        return _chosen(rows(), wanted) | texts
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unavailable(f"{folder} holds parquet files that are not PG-19's ({one_line(error)})", wanted) from error


def _from_hub(place: HubId, wanted: Sequence[str]) -> Mapping[str, str]:
    try:
        from datasets import load_dataset

        return _chosen(load_dataset(place.repo, revision=place.revision, split="test", streaming=True), wanted)
    except Exception as error:  # the hub's errors, those of its transport and those of the file system share no base
        raise _unavailable(
            f"data.pg19 is {place.repo!r}, no folder here, and the hub could not be read: "
            f"{type(error).__name__}: {one_line(error)}",
            wanted,
        ) from error


def _chosen(rows: Any, wanted: Sequence[str]) -> dict[str, str]:
    """Return the wanted books; a book's id is the last part of its address at Project Gutenberg."""
    texts: dict[str, str] = {}
    for row in rows:
        book = str(row["url"]).rstrip("/").rpartition("/")[2].partition(".")[0]
        if book in wanted:
            if not isinstance(row["text"], str) or not row["text"].strip():
                raise ValueError(f"book {book} has {shown(row['text'])} as its text")
            texts[book] = row["text"]
            if len(texts) == len(set(wanted)):
                break
    return texts


def _unavailable(reason: str, wanted: Sequence[str]) -> DataUnavailableError:
    fetch = f"curl --create-dirs -o 'books/#1.txt' '{_SOURCE}/{{{','.join(wanted)}}}.txt'"
    return DataUnavailableError(
        f"{reason}; fetch the books with {fetch} and set data.pg19 to books, or to the hub's {HUB}"
    )
