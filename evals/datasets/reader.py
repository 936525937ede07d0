"""Read rows of data sets from files or the hub; a fault is one line with file, line and remedy."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.config_values import read_yaml

FROM_HUB = "hub"
"""Value of a ``data`` key to have every set fetched from its own repository of the hub."""
_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?")


class HubId(NamedTuple):
    """A repository of the hub, at a revision if one is known."""

    repo: str
    revision: str | None


@dataclass(frozen=True, slots=True)
class DataSet:
    """The place of a set.

    Attributes:
        key: key of the configuration's ``data`` that names the folder, or ``hub``.
        folder: sub-folder of the set, which holds one of ``files`` or a snapshot of the repository.
        files: names of files in order of preference, or patterns of them: jsonl, packed or not, a JSON array in .json,
            or csv.
        hub_id: repository on the hub; ``None`` where no repository has the set.
        copies: the configuration may name any other repository too, ``org/name`` or ``org/name@revision``.
        revision: its commit, which copies of its name share; ``None`` where it is not known to us.
        split: split of the repository.
        config: configuration of the repository.
        gated: the repository asks for its terms to be accepted first.
        fetch: commands that fetch the set, where no repository of the hub has it.
        by_hand: a command of the user's, where nothing can fetch the set.
    """

    key: str
    folder: str = ""
    files: tuple[str, ...] = ()
    hub_id: str | None = None
    copies: bool = False
    revision: str | None = None
    split: str = "test"
    config: str | None = None
    gated: bool = False
    fetch: str | None = None
    by_hand: str | None = None

    @property
    def command(self) -> str:
        """The command that fetches the set into ``data/<key>``."""
        return self.by_hand or f"longdecode data fetch {self.key}"

    def unavailable(self, why: str) -> DataUnavailableError:
        """Return the error that says why the set cannot be read and which command fetches it."""
        terms = f"accept its terms at https://huggingface.co/datasets/{self.hub_id}, log in with `hf auth login`, "
        hub = f", or set it to {FROM_HUB}" if self.hub_id else ""
        return DataUnavailableError(
            f"{why}; {terms if self.gated else ''}fetch the set with `{self.command}` (files that "
            f"are there stay) and set data.{self.key} to data/{self.key}{hub}"
        )

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Turn whatever stops a reader or a library into the set's error; ``what`` could not be done.

        The errors of the hub, of its transport, of the file system, of parsers and of the libraries share no base.

        Raises:
            DataUnavailableError: something was raised inside.
        """
        try:
            yield
        except DataUnavailableError:
            raise
        except Exception as error:
            message = " ".join(str(error).split())[:300]
            raise self.unavailable(f"{what}: {type(error).__name__}{': ' * bool(message)}{message}") from error

    def place(self, source: Path | None) -> Path:
        """Return the folder of a set that no repository of the hub has; raises as ``locate``."""
        folder = self.locate(source)
        assert isinstance(folder, Path)
        return folder

    def locate(self, source: Path | None) -> Path | HubId:
        """Return the folder that a ``data`` key names, or the repository that it stands for.

        Raises:
            DataUnavailableError: it names nothing, or what is not there.
        """
        if source is None:
            raise self.unavailable(f"the configuration's data.{self.key} names nothing")
        if (folder := source.expanduser()).is_dir():
            return folder
        if str(source) == FROM_HUB and self.hub_id:
            return HubId(self.hub_id, self.revision)
        found = _HUB_ID.fullmatch(source.as_posix()) if self.copies else None
        if found is None:
            wanted = "neither a folder nor a hub id (org/name)" if self.copies else "which is no folder"
            raise self.unavailable(f"data.{self.key} is {source}, {wanted}")
        same = found["repo"].rpartition("/")[2] == str(self.hub_id).rpartition("/")[2]  # or the owner's older name
        return HubId(found["repo"], found["revision"] or (self.revision if same else None))


@dataclass(frozen=True, slots=True)
class Row:
    """One row with its place, whose fields are read by type; ``offset`` is where its line begins in the file."""

    values: Mapping[str, Any]
    where: str
    data: DataSet
    offset: int = 0

    def fault(self, why: str) -> DataUnavailableError:
        """Return the error that says what is wrong with this row."""
        return self.data.unavailable(f"{self.where} {why}")

    def first(self, *keys: str) -> str:
        """Return the first of the keys that has a value, or the first of all: copies of a set name fields otherwise."""
        return next((key for key in keys if self.values.get(key) is not None), keys[0])

    def value(self, key: str, expected: str = "a value", fits: bool | None = None) -> Any:
        """Return a field of any type but null; ``fits`` false raises that it is not what is ``expected``."""
        if self.values.get(key) is None:
            raise self.fault(f"lacks {key!r}")
        if fits is False:
            raise self.fault(f"has {shown(self.values[key])} as {key!r}; {expected} is expected")
        return self.values[key]

    def text(self, key: str, default: str | None = None, *, blank: bool = True) -> str:
        """Return a field that must be Unicode text, maybe ``blank``; or the default where it is missing or null."""
        if default is not None and self.values.get(key) is None:
            return default
        return str(self.value(key, f"a string{'' if blank else ' with text'}", is_text(self.values.get(key), blank)))

    def answer(self, key: str) -> str:
        """Return a string that is not empty, or a finite number as it is written."""
        value = self.values.get(key)
        number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
        fits = number or is_text(value, blank=False)
        return str(self.value(key, "a string or a finite number", fits)).strip()

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a field that must be a list of strings, and not an empty one."""
        value = self.values.get(key)
        fits = isinstance(value, list | tuple) and len(value) > 0 and all(map(is_text, value))
        return tuple(self.value(key, "a list of strings", fits))


SOURCES: Mapping[str, DataSet] = {
    name: DataSet(**{**values, "files": tuple(values.get("files", ()))})
    for name, values in read_yaml(Path(__file__).with_name("sources.yaml")).items()
}
"""Places of all sets."""


def read_rows(data: DataSet, source: Path | None) -> list[Row]:
    """Return every row of a set, at least one, in the set's own order.

    Args:
        data: the set.
        source: the folder, or ``hub``; ``None`` where the configuration gives neither.

    Raises:
        DataUnavailableError: the set is not here or cannot be read; the message says how to fetch it.
    """
    place = data.locate(source)
    if isinstance(place, HubId):
        return _library_rows(data, place.repo, place.revision)
    folder = place / data.folder
    if files := [file for name in data.files for file in sorted(folder.glob(name))]:
        return file_rows(data, files[0])
    if not folder.is_dir() or data.hub_id is None:
        raise data.unavailable(f"{folder} holds no {' or '.join(data.files)}")
    return _library_rows(data, str(folder), None)


def file_rows(data: DataSet, file: Path) -> list[Row]:
    """Return the rows of a file by its ending: .csv, .json (an array), .label (TREC's), else JSON lines, packed or not.

    Raises:
        DataUnavailableError: as for ``read_rows``.
    """
    if file.suffix == ".csv":
        return csv_rows(data, file)
    if file.suffix == ".label":
        return _trec_rows(data, file)
    if file.suffix == ".json":
        return _numbered(data, read_json(data, file), str(file))
    with data.reading(f"{file} cannot be read"), gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
        return list(json_rows(data, lines, str(file)))


def json_rows(data: DataSet, lines: Iterable[bytes], name: str) -> Iterator[Row]:
    """Yield the objects of a file, open in binary mode, that has one on each line; blank lines are passed over.

    Raises:
        DataUnavailableError: no row at all, a line in another encoding than UTF-8, or one that is no JSON object.
    """
    empty, offset = True, 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            empty, where = False, f"{name}, line {number}"
            with data.reading(f"{where} cannot be read as JSON"):
                value = json.loads(line)
            yield _object(data, value, where, offset)
        offset += len(line)
    if empty:
        raise data.unavailable(f"{name} is empty")


def csv_rows(data: DataSet, file: Path, names: Sequence[str] | None = None) -> list[Row]:
    """Return the rows of a csv file; ``names`` are those of its fields, where it has no header.

    Raises:
        DataUnavailableError: the file has no row, is in another encoding than UTF-8, or no csv.
    """
    reader = csv.DictReader(io.StringIO(read_text(data, file), newline=""), names)
    with data.reading(f"{file} cannot be read as csv"):
        rows = [Row(values, f"{file}, line {reader.line_num}", data) for values in reader]
    if not rows:
        raise data.unavailable(f"{file} has a header and no row")
    for row in rows:
        if None in row.values:  # where the reader puts what has no name
            raise row.fault(f"has more than {len(reader.fieldnames or ())} fields; a text with a comma needs quotes")
    return rows


def read_json(data: DataSet, file: Path) -> Any:
    """Return the one JSON value that a file holds.

    Raises:
        DataUnavailableError: the file is empty, in another encoding than UTF-8, or no JSON.
    """
    with data.reading(f"{file} cannot be read as JSON"):
        return json.loads(read_text(data, file))


def read_text(data: DataSet, file: Path) -> str:
    """Return a file's text, with ``\\n`` between lines.

    Raises:
        DataUnavailableError: the file holds no text, or is in another encoding than UTF-8.
    """
    with data.reading(f"{file} cannot be read"):
        text = file.read_text(encoding="utf-8-sig")
    if not text.strip():
        raise data.unavailable(f"{file} is empty")
    return text


def hub_file(data: DataSet, place: HubId, name: str) -> Path:
    """Return one file of a repository of the hub, fetched if it is not here yet.

    Raises:
        DataUnavailableError: it could not be fetched.
    """
    from huggingface_hub import hf_hub_download

    with data.reading(f"{name} of {'@'.join(filter(None, place))} could not be fetched"):
        return Path(hf_hub_download(place.repo, name, repo_type="dataset", revision=place.revision))


def shown(value: Any) -> str:
    """Return a value as errors show it: its JSON, cut short."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_text(value: Any, blank: bool = True) -> bool:
    """Return whether a value is a text, maybe ``blank``, without the half surrogate pairs that JSON's escapes allow."""
    if not isinstance(value, str) or not (blank or value.strip()):
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)


def as_text(value: Any, *, blank: bool = True) -> str:
    """Return a value of a file, for use inside ``DataSet.reading``; raises TypeError where it is no text."""
    if not is_text(value, blank):
        raise TypeError(f"{shown(value)} stands where a string is expected")
    return str(value)


def _object(data: DataSet, value: Any, where: str, offset: int = 0) -> Row:
    if not isinstance(value, dict):
        raise data.unavailable(f"{where} is {shown(value)}; an object, {{...}}, is expected")
    return Row(value, where, data, offset)


def _numbered(data: DataSet, values: Any, name: str) -> list[Row]:
    if not isinstance(values, list) or not values:
        raise data.unavailable(f"{name} holds {shown(values)}; an array of objects is expected")
    return [_object(data, value, f"{name}, row {number}") for number, value in enumerate(values, 1)]


def _trec_rows(data: DataSet, file: Path) -> list[Row]:
    """Read TREC's own lines, ``COARSE:fine question``; the original is in Latin-1."""
    with data.reading(f"{file} cannot be read"):
        lines = [line.partition(" ") for line in file.read_text(encoding="latin-1").split("\n")]
    pairs = [(label, text) for label, _, text in lines if text]
    if not pairs:
        raise data.unavailable(f"{file} has no line 'COARSE:fine question'")
    rows = [{"text": text, "coarse_label": label.partition(":")[0], "fine_label": label} for label, text in pairs]
    return _numbered(data, rows, str(file))


def _library_rows(data: DataSet, source: str, revision: str | None) -> list[Row]:
    """Return rows by the datasets library: of the hub itself, or of a folder that is a snapshot of it."""
    import datasets  # seconds to import

    with data.reading(f"{source} cannot be loaded"):
        rows = list(datasets.load_dataset(source, data.config, split=data.split, revision=revision))
    return _numbered(data, rows, source)
