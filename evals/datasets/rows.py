"""Rows of a data set: from a local folder, or from the hub at a pinned revision."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.datasets.data_file import Remedy, Row, csv_table, json_document, json_rows, one_line, shown

FROM_HUB = "hub"
"""Value of a ``data`` key to have every set fetched from its own repository of the hub."""


@dataclass(frozen=True, slots=True)
class RowSet:
    """The place of a set.

    Attributes:
        data: key of the configuration's ``data`` that names the folder, or ``hub``.
        folder: sub-folder of the set, which holds one of ``files`` (jsonl, packed or not, a JSON array in .json,
            or csv) or a snapshot of the repository.
        files: names of files, in order of preference.
        hub_id: repository on the hub.
        revision: its commit; ``None`` where it is not known to us.
        split: split of the repository.
        config: configuration of the repository.
        gated: the repository asks for its terms to be accepted first.
    """

    data: str
    folder: str
    files: tuple[str, ...]
    hub_id: str
    revision: str | None
    split: str
    config: str | None = None
    gated: bool = False


def read_rows(place: RowSet, source: Path | None) -> list[Row]:
    """Return every row of a set, at least one, in the set's own order.

    Args:
        place: the set.
        source: the folder, or ``hub``; ``None`` where the configuration gives neither.

    Raises:
        DataUnavailableError: the set is not here or cannot be read; the message says how to fetch it.
    """
    if source is None:
        raise unavailable(place, f"the configuration's data.{place.data} names no folder")
    if str(source) == FROM_HUB and not source.is_dir():
        return _from_hub(place, place.hub_id, place.revision)
    folder = source / place.folder
    for file in (folder / name for name in place.files):
        if file.is_file():
            return _from_file(place, file)
    if not folder.is_dir():
        raise unavailable(place, f"there is no folder {folder}")
    return _from_hub(place, str(folder), None)


def unavailable(place: RowSet, why: str) -> DataUnavailableError:
    """Return the error that says why a set cannot be read and which command fetches it."""
    revision = f" --revision {place.revision}" if place.revision else ""
    fetch = f"hf download --repo-type dataset {place.hub_id}{revision} --local-dir {place.data}/{place.folder}"
    terms = f"accept its terms at https://huggingface.co/datasets/{place.hub_id}, log in with `hf auth login`, "
    return DataUnavailableError(
        f"{why}; {terms if place.gated else ''}fetch the set with `{fetch}` and set data.{place.data} to {place.data}, "
        "or set it to hub"
    )


def _from_file(place: RowSet, file: Path) -> list[Row]:
    remedy = partial(unavailable, place)
    if file.suffix == ".csv":
        (_, names), *table = csv_table(file, remedy)
        if not table:
            raise remedy(f"{file} has a header and no row")
        for where, values in table:
            if len(values) > len(names):
                raise remedy(
                    f"{where} has {len(values)} fields and the header {len(names)}; a text with a comma needs quotes"
                )
        return [Row(dict(zip(names, values, strict=False)), where, remedy) for where, values in table]
    if file.suffix == ".json":
        return _from_array(json_document(file, remedy), file, remedy)
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
            return list(json_rows(lines, str(file), remedy))
    except (OSError, EOFError, zlib.error) as error:
        raise remedy(f"{file} cannot be read: {one_line(error)}") from error


def _from_array(found: object, file: Path, remedy: Remedy) -> list[Row]:
    if not isinstance(found, list) or not found:
        raise remedy(f"{file} holds {shown(found)}; a JSON array of objects is expected")
    for number, value in enumerate(found, 1):
        if not isinstance(value, dict):
            raise remedy(f"{file}, row {number} is {shown(value)}; an object, {{...}}, is expected")
    return [Row(value, f"{file}, row {number}", remedy) for number, value in enumerate(found, 1)]


def _from_hub(place: RowSet, source: str, revision: str | None) -> list[Row]:
    """Return rows by the datasets library: of the hub itself, or of a folder that is a snapshot of it."""
    import datasets  # seconds to import

    remedy = partial(unavailable, place)
    try:
        rows = list(datasets.load_dataset(source, place.config, split=place.split, revision=revision))
    except Exception as error:  # the hub's errors, those of its transport and those of the library share no base
        raise remedy(f"{source} cannot be loaded: {one_line(error)}") from error
    if not rows:
        raise remedy(f"{source} has no row")
    return [Row(row, f"{source}, row {number}", remedy) for number, row in enumerate(rows, 1)]
