"""PG-19's books by id: text files, the hub's parquet, and what is said where a book is missing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.datasets.books import read_books


def write_parquet(file: Path, books: dict[str, str]) -> None:
    """Write books in the columns of the hub's PG-19."""
    columns = {
        "short_book_title": [f"Title of {book}" for book in books],
        "publication_date": [1890] * len(books),
        "url": [f"http://www.gutenberg.org/ebooks/{book}" for book in books],
        "text": list(books.values()),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)


def test_text_files_go_before_parquet_and_both_are_found_at_any_depth(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data" / "test-00000-of-00002.parquet", {str(i): f"parquet {i}" for i in range(20)})
    write_parquet(tmp_path / "data" / "test-00001-of-00002.parquet", {"8608": "another", "860": "the last"})
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "7.txt").write_text("a file")
    assert read_books(tmp_path, ("860", "7", "3")) == {"860": "the last", "7": "a file", "3": "parquet 3"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "data.pg19 names nothing"),
        (Path("absent"), "neither a folder nor a hub id"),
        (Path(), r"lacks 99; .*curl --create-dirs .*\{99\}\.txt"),
    ],
)
def test_a_missing_book_names_its_command(source: Path | None, said: str, tmp_path: Path) -> None:
    (tmp_path / "860.txt").write_text("here")
    place = tmp_path if source == Path() else source
    with pytest.raises(DataUnavailableError, match=said):
        read_books(place, ("860", "99"))


def test_parquet_of_other_columns_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "other.parquet")
    with pytest.raises(DataUnavailableError, match=r"could not be read.*url"):
        read_books(tmp_path, ("860",))


def test_the_hub_is_asked_where_no_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def offline(*place: str, **options: object) -> None:
        assert place == ("org/books",) and options["revision"] == "abc"
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataUnavailableError, match=r"could not be read from org/books: ConnectionError: no network"):
        read_books(Path("org/books@abc"), ("860",))
