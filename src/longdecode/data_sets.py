"""The suites' data: sources, licences, sizes and hashes; fetch it into one layout, and check what is there.

A folder of data has a folder for each key of a configuration's ``data``, and each of these one for each set:
``data/math/gsm8k``, as the commands of evals/datasets/sources.yaml make it.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from longdecode.doctor import reached
from longdecode.engine.errors import ConfigError, DataUnavailableError, UnsupportedCellError
from longdecode.evals.config_values import read_yaml
from longdecode.evals.datasets.reader import SOURCES, DataSet
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.evals.sweep import SIZES
from longdecode.evals.tasks.registry import SUITES, describe, get_suite, get_task

DOWNLOADS: Mapping[str, Mapping[str, Any]] = read_yaml(REPOSITORY / "evals" / "datasets" / "downloads.yaml")
CHECKED_AT = 8192
"""Bytes of the prompts that a check makes: enough for a row of every set that fits any model."""


def sets_of(key: str) -> dict[str, DataSet]:
    """Return the sets that a key of ``data`` places, by name."""
    return {name: data for name, data in SOURCES.items() if data.key == key}


def data_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row a suite and data set."""
    for suite in SUITES.folders():
        asks = str(describe(suite).get("summary", "")).partition(". ")[0].rstrip(".")
        for key in get_suite(suite).data:
            sets = sets_of(key)
            source = ", ".join(dict.fromkeys(data.hub_id or "docs/benchmarks.md" for data in sets.values()))
            licence = "; ".join(dict.fromkeys(DOWNLOADS[name]["licence"] for name in sets))
            pins = "\n".join(f"{name} {_pin(name, data)}" for name, data in sets.items())
            yield suite, asks, key, source, licence, _megabytes(SIZES["data"].get(key, 0)), pins
        if not get_suite(suite).data:
            yield suite, asks, "-", "generated here", "Apache-2.0", "-", "-"


def _pin(name: str, data: DataSet) -> str:
    """Return the SHA-256 of a set's file or of its source, or its commit; a branch fixes nothing, yours have no pin."""
    pin = re.search(r"\b([0-9a-f]{12})[0-9a-f]{28,}", f"{DOWNLOADS[name]} {data.revision} {data.fetch}")
    kind = "made of SHA-256" if "made_of" in DOWNLOADS[name] else "SHA-256" if pin and len(pin[0]) == 64 else "revision"
    return f"{kind} {pin[1]}" if pin else "yours" if data.by_hand else "none"


def fetch(suite: str, folder: Path) -> Iterator[str]:
    """Fetch the data of a suite, or of one key, into ``folder/<key>``; yield a line a set.

    What is there is not fetched again.

    Raises:
        ConfigError: no such suite, its prompts are generated, or no network can be reached.
        DataUnavailableError: a set could not be fetched, or its bytes are not those that are known.
    """
    keys = (suite,) if sets_of(suite) and suite not in SUITES.folders() else get_suite(suite).data
    if not keys:
        raise ConfigError(f"{suite}: its prompts are generated; there is nothing to fetch")
    if refusal := reached():
        raise ConfigError(f"{refusal}; fetch on a machine that has a network, then copy {folder} here")
    for key in keys:
        (place := folder / key).mkdir(parents=True, exist_ok=True)
        for name, data in sets_of(key).items():
            _fetch(name, data, place)
            yield f"{name}: {place / data.folder} ({_hashes(name, data, place)})"
        yield f"in a configuration: data: {{{key}: {place}}}"


def _fetch(name: str, data: DataSet, place: Path) -> None:
    if data.hub_id:
        from huggingface_hub import snapshot_download

        with data.reading(f"{data.hub_id} could not be fetched"):
            snapshot_download(
                data.hub_id, repo_type="dataset", revision=data.revision, local_dir=place / data.folder,
                allow_patterns=DOWNLOADS[name].get("only"),
            )  # fmt: skip
    elif not (place / DOWNLOADS[name]["makes"]).exists():
        done = subprocess.run(
            str(data.fetch), shell=True, cwd=place.parent, capture_output=True, text=True, check=False,
            env=os.environ | {"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))},
        )  # fmt: skip
        if done.returncode:
            raise DataUnavailableError(f"{name}: {done.stderr.strip()[-99:]}; run in {place.parent}: `{data.fetch}`")


def _hashes(name: str, data: DataSet, place: Path) -> str:
    """Compare the files whose hash is known with it, and say what came out."""
    known = {place / path: wanted for path, wanted in DOWNLOADS[name].get("sha256", {}).items()}
    for file, wanted in known.items():
        if file.is_file() and (found := hashlib.sha256(file.read_bytes()).hexdigest()) != wanted:
            raise data.unavailable(f"{file} has the SHA-256 {found[:12]}, not {wanted[:12]}: another version")
    return "hash as known" if any(map(Path.is_file, known)) else "no hash known"


def check(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row a suite whose data lies in a folder: tasks that can be read, size, hashes, the first fault.

    Every task makes one prompt of bytes, by the code that a run has.

    Raises:
        ConfigError: the folder has no folder of any key.
    """
    from longdecode.engine.tokenizer import load_tokenizer

    suites = {name: {key: folder / key for key in get_suite(name).data} for name in SUITES.folders()}
    here = {name: {key: place for key, place in found.items() if place.is_dir()} for name, found in suites.items()}
    if not any(here.values()):
        keys = ", ".join(dict.fromkeys(key for found in suites.values() for key in found))
        raise ConfigError(f"{folder}: no data set in it (folders: {keys}); `longdecode data fetch SUITE` makes one")
    tokenizer = load_tokenizer(REPOSITORY / "models" / "miniature" / "weights")

    def fault(act: Callable[..., object], *given: object) -> str:
        try:
            act(*given)
        except (DataUnavailableError, UnsupportedCellError) as error:  # of the latter it is read, but too long in bytes
            return str(error) if isinstance(error, DataUnavailableError) else ""
        return ""

    for name, data in ((name, data) for name, data in here.items() if data):
        tasks = [get_task(task, data, name) for task in get_suite(name).tasks]
        unread = list(filter(None, (fault(task.samples, CHECKED_AT, 1, 0, tokenizer) for task in tasks)))
        sets = [(*named, place) for key, place in data.items() for named in sets_of(key).items()]
        faults = [*unread, *filter(None, (fault(_hashes, *one) for one in sets))]
        size = sum(file.stat().st_size for place in data.values() for file in place.rglob("*") if file.is_file())
        yield name, f"{len(tasks) - len(unread)} of {len(tasks)}", _megabytes(size), faults[0] if faults else "ok"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f}" if size else "-"
