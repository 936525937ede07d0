"""Read data files: text, JSON documents, rows of JSON or csv; a fault is one line with file, line and remedy."""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdecode.engine.errors import DataUnavailableError

Remedy = Callable[[str], DataUnavailableError]
"""Makes the error from what is wrong: it adds the command that fetches the data set."""
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"), (codecs.BOM_UTF32_BE, "UTF-32"), (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)  # fmt: skip
_GZIP = b"\x1f\x8b"
_NULS_OF_UTF16 = 10
"""More than a tenth of zero bytes is UTF-16: JSON's own characters and digits are ASCII."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row with its place, whose fields are read by type; ``raw`` is its line, ``offset`` where that begins."""

    values: Mapping[str, Any]
    where: str
    remedy: Remedy
    raw: bytes = b""
    offset: int = 0

    def fault(self, why: str) -> DataUnavailableError:
        """Return the error that says what is wrong with this row."""
        return self.remedy(f"{self.where} {why}")

    def value(self, key: str) -> Any:
        """Return a field of any type but null."""
        if self.values.get(key) is None:
            raise self.fault(f"lacks {key!r}")
        return self.values[key]

    def text(self, key: str) -> str:
        """Return a field that must be a string."""
        value = self.value(key)
        if not isinstance(value, str):
            raise self.fault(f"has {shown(value)} as {key!r}; a string is expected")
        if not is_unicode(value):
            raise self.fault(f"has half of a surrogate pair in {key!r}, which is no Unicode text")
        return value

    def optional_text(self, key: str) -> str | None:
        """Return a string, or ``None`` where the field is missing or null."""
        return None if self.values.get(key) is None else self.text(key)

    def answer(self, key: str) -> str:
        """Return a string that is not empty, or a finite number as it is written."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
            raise self.fault(f"has {shown(value)} as {key!r}; a string or a number is expected")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.fault(f"has {shown(value)} as {key!r}; a finite number is expected")
        return str(value).strip()

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a field that must be a list of strings, and not an empty one."""
        value = self.value(key)
        if (
            not isinstance(value, list | tuple)
            or not value
            or not all(isinstance(item, str) and is_unicode(item) for item in value)
        ):
            raise self.fault(f"has {shown(value)} as {key!r}; a list of strings is expected")
        return tuple(value)

    def inner(self, key: str) -> Row:
        """Return a field that must be an object."""
        value = self.value(key)
        if not isinstance(value, Mapping):
            raise self.fault(f"has {shown(value)} as {key!r}; an object is expected")
        return Row(value, f"{self.where}, {key}", self.remedy)


def json_rows(lines: Iterable[bytes], name: str, remedy: Remedy) -> Iterator[Row]:
    """Yield the objects of a file that has one on each line; blank lines are passed over.

    Args:
        lines: the file, open in binary mode.
        name: what to call it in errors.
        remedy: makes the error.

    Raises:
        DataUnavailableError: no row at all, a line in another encoding than UTF-8, or one that is no JSON object.
    """
    empty, offset = True, 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            empty = False
            where = f"{name}, line {number}"
            yield Row(_json_object(_decoded(line, name, remedy, number), where, remedy), where, remedy, line, offset)
        offset += len(line)
    if empty:
        raise remedy(f"{name} is empty")


def _json_object(text: str, where: str, remedy: Remedy) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith("["):  # an array over several lines
            raise _array(where, remedy) from None
        raise remedy(f"{where} cannot be read as JSON: {one_line(error)}") from None
    if isinstance(value, list):
        raise _array(where, remedy)
    if not isinstance(value, dict):
        raise remedy(f"{where} is {shown(value)}; an object, {{...}}, is expected")
    return value


def csv_table(file: Path, remedy: Remedy) -> list[tuple[str, list[str]]]:
    """Return the lines of a csv file, its header if there is one among them, each with its place.

    Raises:
        DataUnavailableError: the file is empty, in another encoding than UTF-8, or no csv.
    """
    reader = csv.reader(io.StringIO(_decoded(_bytes(file, remedy), str(file), remedy), newline=""))
    try:
        found = [(f"{file}, line {reader.line_num}", values) for values in reader if values]
    except csv.Error as error:
        raise remedy(f"{file}, line {reader.line_num} cannot be read as csv: {one_line(error)}") from None
    if not found:
        raise remedy(f"{file} is empty")
    return found


def json_document(file: Path, remedy: Remedy) -> Any:
    """Return the one JSON value that a file holds.

    Raises:
        DataUnavailableError: the file is empty, in another encoding than UTF-8, or no JSON.
    """
    text = _decoded(_bytes(file, remedy), str(file), remedy)
    if not text.strip():
        raise remedy(f"{file} is empty")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise remedy(f"{file}, line {error.lineno} cannot be read as JSON: {one_line(error)}") from None
    except (ValueError, RecursionError) as error:
        raise remedy(f"{file} cannot be read as JSON: {one_line(error)}") from None


def read_text(file: Path, remedy: Remedy) -> str:
    """Return a file's text, with ``\\n`` between lines.

    Raises:
        DataUnavailableError: the file holds no text, or is in another encoding than UTF-8.
    """
    text = _decoded(_bytes(file, remedy), str(file), remedy).replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise remedy(f"{file} is empty")
    return text


def shown(value: Any) -> str:
    """Return a value as errors show it: its JSON, cut short."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded; JSON's escapes may leave half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, cut short; its type where it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _bytes(file: Path, remedy: Remedy) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise remedy(f"{file} cannot be read: {one_line(error)}") from None


def _decoded(raw: bytes, name: str, remedy: Remedy, line: int = 1) -> str:
    """Return UTF-8 as text, without a byte order mark; ``line`` is the number of the first line."""
    if raw.startswith(_GZIP):
        raise remedy(f"{name} is packed with gzip; unpack it with `gunzip`, or fetch it again")
    encoding = next((encoding for mark, encoding in _MARKS if raw.startswith(mark)), None)
    if encoding is None and raw.count(0) * _NULS_OF_UTF16 > len(raw):
        encoding = "UTF-16BE" if raw.startswith(b"\0") else "UTF-16LE"
    if encoding is None:
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            encoding = "LATIN1"
            line += raw.count(b"\n", 0, error.start)
    guess = "most likely Latin-1" if encoding == "LATIN1" else encoding
    raise remedy(
        f"{name}, line {line} is not UTF-8 but {guess}; convert the file with `iconv -f {encoding} -t UTF-8`, or"
        " fetch it again"
    )


def _array(where: str, remedy: Remedy) -> DataUnavailableError:
    return remedy(f"{where} begins a JSON array; one object a line is expected: convert the file with `jq -c '.[]'`")
