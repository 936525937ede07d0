"""Read rows of LongBench v1 and LongBench-E, which share an archive on the hub, and of LongBench v2."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from longdecode.engine.errors import DataUnavailableError
from longdecode.evals.datasets import rows as plain_rows
from longdecode.evals.datasets.data_file import Row, json_rows, one_line
from longdecode.evals.datasets.source import HubId, read_source

HUB_REPO = "zai-org/LongBench"
HUB_REVISION = "5e628be450b7e67fb7ae6e201bd6d8f7056f7672"
"""The data set's commit that papers' figures since 2023 rest on; its data.zip has 113,932,529 bytes and the SHA-256
cb45b11a4133c6bc1d6a44b0f8e701335ff1e543195db1103472e575857f7f64."""
_PINNED = {name.lower(): HUB_REVISION for name in (HUB_REPO, "THUDM/LongBench")}  # the repository's name, then and now
_ARCHIVE = "data.zip"
FETCH = (
    f"curl -L -o data.zip https://huggingface.co/datasets/{HUB_REPO}/resolve/{HUB_REVISION}/{_ARCHIVE} && "
    "unzip data.zip -d longbench"
)
_V2 = plain_rows.RowSet(
    "longbench_v2", "", ("data.json", "data.jsonl"), "zai-org/LongBench-v2", None, "train"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LongBenchRow:
    """One sample as published: the question or instruction, its context, references, class names if there are any."""

    input: str
    context: str
    answers: tuple[str, ...]
    all_classes: tuple[str, ...] | None


def read_v2_rows(source: Path | None, count: int) -> list[LongBenchRow]:
    """Return the first ``count`` questions of LongBench v2, the choices after each, with the right one's letter.

    Args:
        source: a folder with ``data.json`` or ``data.jsonl``, or ``hub``; ``None`` where the configuration names none.

    Raises:
        DataUnavailableError: the set is not here or cannot be read; the message says how to fetch it.
    """
    return [
        LongBenchRow(
            "\n".join([row.text("question"), *(f"({letter}) {row.text(f'choice_{letter}')}" for letter in "ABCD")]),
            row.text("context"), (row.answer("answer"),), None,
        )
        for row in plain_rows.read_rows(_V2, source)[:count]
    ]  # fmt: skip


def read_rows(source: Path | None, dataset: str, count: int) -> list[LongBenchRow]:
    """The first ``count`` rows of a data set, or all it has.

    Args:
        source: a folder with ``<dataset>.jsonl`` at any depth or with ``data.zip``, or a hub id, ``org/name`` or
            ``org/name@revision``; ``None`` where the configuration names nothing.
        dataset: LongBench's own name, such as ``qmsum``, or LongBench-E's, such as ``qasper_e``.

    Raises:
        DataUnavailableError: the file is not here and cannot be fetched, or is not LongBench's; the message holds the
            command that fetches it.
    """
    with _lines(source, dataset) as (name, lines):
        try:
            return [_row(row) for row in islice(json_rows(lines, name, _unavailable), count)]
        except (OSError, zipfile.BadZipFile, zlib.error) as error:
            raise _unavailable(f"{name} cannot be read: {one_line(error)}") from error


@contextmanager
def _lines(source: Path | None, dataset: str) -> Iterator[tuple[str, IO[bytes]]]:
    """The open file of a data set, and what to call it in errors."""
    if source is None:
        raise _unavailable("the configuration's data.longbench names nothing")
    place = read_source(source)
    if place is None:
        raise _unavailable(f"data.longbench is {str(source)!r}, neither a folder nor a hub id (org/name)")
    if isinstance(place, HubId):
        archive = _fetch(place)
    else:
        files = sorted(place.rglob(f"{dataset}.jsonl"), key=lambda file: (len(file.parts), file))
        if files:
            with files[0].open("rb") as handle:
                yield str(files[0]), handle
            return
        archive = place / _ARCHIVE
        if not archive.is_file():
            raise _unavailable(f"no {dataset}.jsonl and no {_ARCHIVE} in {place}")
    if not zipfile.is_zipfile(archive):
        raise _unavailable(f"{archive} is no zip archive: empty, cut off or another file")
    with zipfile.ZipFile(archive) as zipped:
        members = [name for name in zipped.namelist() if Path(name).name == f"{dataset}.jsonl"]
        if not members:
            raise _unavailable(f"{archive} holds no {dataset}.jsonl")
        with zipped.open(members[0]) as raw:
            yield f"{archive}:{members[0]}", raw


def _fetch(place: HubId) -> Path:
    revision = place.revision or _PINNED.get(place.repo.lower())
    if revision is None:
        raise _unavailable(
            f"data.longbench is {place.repo!r}, a hub id without a revision: write {place.repo}@<commit>"
        )
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(place.repo, _ARCHIVE, repo_type="dataset", revision=revision))
    except Exception as error:  # the hub's errors, those of its transport and those of the file system share no base
        raise _unavailable(
            f"data.longbench is {place.repo!r}, no folder here, and {_ARCHIVE} at {revision} could not be fetched from "
            f"the hub: {type(error).__name__}: {error}"
        ) from error


def _row(row: Row) -> LongBenchRow:
    classes = None if row.values.get("all_classes") is None else row.texts("all_classes")
    return LongBenchRow(row.text("input"), row.text("context"), row.texts("answers"), classes)


def _unavailable(reason: str) -> DataUnavailableError:
    return DataUnavailableError(f"{reason}; fetch the data with {FETCH} and set data.longbench to longbench")
