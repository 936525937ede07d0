"""Labelled texts for many-shot classification: TREC, BANKING77, CLINC150 and NLU, from a folder or from the hub."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from longdecode.evals.datasets.data_file import Remedy, Row
from longdecode.evals.datasets.rows import FROM_HUB, RowSet, read_rows, unavailable

Part = Literal["train", "test"]
HELD_OUT = 0.1
"""Share of each label's rows that a set without a test split is asked about."""
_PARQUET = "refs/convert/parquet"  # the hub's own copy of sets whose repository holds a script


@dataclass(frozen=True, slots=True)
class LabelledText:
    """One row; a label is a name or a number, whatever the copy at hand has."""

    text: str
    label: str


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """One set: its place, and the fields that may hold a row's label, the first that a copy has.

    ``tests`` is false for a set without a test split.
    """

    place: RowSet
    labels: tuple[str, ...]
    tests: bool = True


def _place(folder: str, hub_id: str, revision: str | None = None, config: str | None = None) -> RowSet:
    return RowSet("icl", folder, (), hub_id, revision, "train", config)


_TREC = _place("trec", "CogComp/trec", _PARQUET)
SETS: Mapping[str, LabelledSet] = {
    "trec_coarse": LabelledSet(_TREC, ("coarse_label",)),
    "trec_fine": LabelledSet(_TREC, ("fine_label",)),
    "banking77": LabelledSet(_place("banking77", "mteb/banking77"), ("category", "label")),
    "clinc150": LabelledSet(_place("clinc150", "clinc/clinc_oos", None, "plus"), ("intent",)),
    "nlu": LabelledSet(_place("nlu", "xingkunliuxtracta/nlu_evaluation_data", _PARQUET), ("label",), tests=False),
}


def read_texts(name: str, part: Part, source: Path | None) -> list[LabelledText]:
    """Return the texts of one part of a set, in the set's own order.

    A set without a test split gives a tenth of each label's texts to ``test``, drawn once and for all.

    Args:
        name: a key of ``SETS``.
        part: what is shown with labels, or what is asked.
        source: a folder with ``trec/``, ``banking77/``, ``clinc150/`` and ``nlu/``, or ``hub``.

    Raises:
        DataUnavailableError: the set is not here or cannot be read; the message says how to fetch it.
    """
    found = SETS[name]
    place = replace(found.place, split=part if found.tests else "train")
    rows = _rows(place, source)
    texts = [_text(row, found) for row in rows]
    return texts if found.tests else _divided(texts, part)


def _rows(place: RowSet, source: Path | None) -> Iterable[Row]:
    """Return the rows of a split: files named after it, ``<split>*``, or TREC's own; else the hub's form."""
    folder = source / place.folder if source is not None and str(source) != FROM_HUB else None
    files = sorted(folder.glob(f"{place.split}*")) if folder is not None else []
    if folder is not None and place.folder == "trec":
        files += sorted(folder.glob("TREC_*")) if place.split == "test" else []
        if lines := [file for file in files if file.suffix == ".label"]:
            return _trec_rows(lines[0], partial(unavailable, place))
    named = tuple(file.name for file in files if file.suffix in (".jsonl", ".csv"))
    return read_rows(replace(place, files=named), source)


def _trec_rows(file: Path, remedy: Remedy) -> list[Row]:
    """Read TREC's own lines, ``COARSE:fine question``; the original is in Latin-1."""
    rows = []
    for number, line in enumerate(file.read_text(encoding="latin-1").split("\n"), 1):
        label, _, text = line.partition(" ")
        if text:
            values = {"text": text, "coarse_label": label.partition(":")[0], "fine_label": label}
            rows.append(Row(values, f"{file}, line {number}", remedy))
    if not rows:
        raise remedy(f"{file} is empty")
    return rows


def _text(row: Row, found: LabelledSet) -> LabelledText:
    key = next((field for field in found.labels if row.values.get(field) is not None), None)
    if key is None:
        raise row.fault(f"has no {' or '.join(found.labels)} (it has {', '.join(map(str, row.values))})")
    return LabelledText(" ".join(row.text("text").split()), row.answer(key))


def _divided(texts: Iterable[LabelledText], part: Part) -> list[LabelledText]:
    by_label: dict[str, list[LabelledText]] = {}
    for text in texts:
        by_label.setdefault(text.label, []).append(text)
    chosen: list[LabelledText] = []
    for label, own in by_label.items():
        held = set(random.Random(f"held out/{label}").sample(range(len(own)), max(1, round(HELD_OUT * len(own)))))
        chosen += [text for place, text in enumerate(own) if (place in held) == (part == "test")]
    return chosen
