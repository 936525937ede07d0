"""Public-domain books, from a local folder or a dataset on the hub."""

from __future__ import annotations

from pathlib import Path

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.store import write_text

HUB_BOOKS = 200
TRAINING_SETS = {"emozilla/pg19-test": "emozilla/pg19"}
"""Data sets of the hub that hold books to be asked about alone, and where their training books are."""


def book_folder(source: str | Path | None) -> Path:
    """A local folder of ``*.txt`` books for ``source``.

    Args:
        source: a configuration's ``data.pg19``: an existing folder, or the id of a hub dataset with a column ``text``
            (``emozilla/pg19`` is PG-19 in parquet, and what is read for its test split too, which tasks ask about) or
            ``chapter`` (``kmfoda/booksum``); the first 200 rows of its training split are then kept under the hub's
            cache folder.

    Raises:
        DataUnavailableError: nothing is named, or neither a folder with books nor a dataset that can be reached.
    """
    if not source:
        raise DataUnavailableError(
            "the configuration's data.pg19 is not set; set it to a folder of *.txt books or to a hub id such as "
            "emozilla/pg19"
        )
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not any(folder.glob("*.txt")):
            raise DataUnavailableError(f"{folder} holds no *.txt files")
        return folder
    return _from_hub(TRAINING_SETS.get(str(source), str(source)))


def _from_hub(dataset_id: str) -> Path:
    from huggingface_hub.constants import HF_HOME

    target = Path(HF_HOME) / "longdecode" / dataset_id.replace("/", "--")
    if len(list(target.glob("*.txt"))) == HUB_BOOKS:
        return target
    try:
        from datasets import load_dataset

        books = load_dataset(dataset_id, split="train", streaming=True)
        for index, book in enumerate(books.take(HUB_BOOKS)):
            write_text(target / f"hub{index:04d}.txt", book.get("text") or book["chapter"])
    except Exception as error:
        raise DataUnavailableError(
            f"'{dataset_id}' is neither a local folder nor a hub dataset that can be read from here ({error});"
            f" try: huggingface-cli download --repo-type dataset {dataset_id}"
        ) from error
    return target
