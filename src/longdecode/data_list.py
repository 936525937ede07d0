"""The suites' data: what each suite asks, where its data comes from, under which licence, and whether it is here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from longdecode.evals.config_values import read_yaml
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.evals.tasks.registry import SUITES, describe, get_suite

if TYPE_CHECKING:
    from longdecode.evals.run_config import RunConfig

LICENCES = {
    "longbench": "MIT, its parts as their authors say",
    "longbench_v2": "Apache-2.0",
    "gpqa": "CC BY 4.0, gated; do not publish records",
    "pg19": "public domain in the USA",
    "prose": "yours",
}
"""Licences that one word can say; those of collections are with their parts."""
SOURCES = REPOSITORY / "evals" / "datasets" / "sources.yaml"


def data_rows(run: RunConfig | None) -> list[tuple[str, ...]]:
    """Return a row a suite and data set; with a configuration, of its suites alone, and whether each set is here."""
    sets = read_yaml(SOURCES).values()
    rows: list[tuple[str, ...]] = []
    for suite in SUITES.folders() if run is None else run.suites:
        asks = str(describe(suite).get("summary", "")).partition(". ")[0].rstrip(".")
        for name in get_suite(suite).data or (None,):
            hubs = dict.fromkeys(one.get("hub_id", "docs/benchmarks.md") for one in sets if one["key"] == name)
            source = ", ".join(hubs) if name else "generated here"
            licence = LICENCES.get(name, "as their authors say") if name else "Apache-2.0"
            rows.append((suite, asks, name or "-", source, licence, _here(name, run)))
    return rows


def _here(name: str | None, run: RunConfig | None) -> str:
    if name is None:
        return "yes"
    place = run.data.get(name) if run else None
    if place is None:
        return "not named" if run else "-"
    return "yes" if Path(place).is_dir() else f"no folder {place}: fetched from the hub"
