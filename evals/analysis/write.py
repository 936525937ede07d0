"""Write the tables that pages quote, once, after the run: comparisons.csv, measures.csv and claims.csv."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from longdecode.evals.analysis.claims import claims_table
from longdecode.evals.analysis.comparisons import comparisons_table
from longdecode.evals.analysis.declaration import load_declarations
from longdecode.evals.analysis.measures import measures_table
from longdecode.evals.analysis.query import Tables
from longdecode.evals.analysis.tables import ANALYSIS_TABLES
from longdecode.evals.manifest import listed, require, seal
from longdecode.evals.record_files import RecordFile
from longdecode.evals.records import Record
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import read_records, write_table
from longdecode.evals.summary import Spread


def write_analysis(config_path: Path, results: Path, papers: Path) -> list[Path]:
    """Write the tables to a results folder, each whole or not at all, and return their paths.

    ``comparisons.csv`` and ``measures.csv`` come from records, ``claims.csv`` from all tables of the run. A pilot's
    comparisons have no verdict, and it speaks to no claim.

    Args:
        config_path: the run's configuration, for its cells, confidence, resamples and seed.
        results: the folder with records, summary.csv and speed.csv, as far as the run has them.
        papers: the folder of the papers' declarations.

    Raises:
        ManifestError: a file changed since it was written.
        DeclarationError: a declaration contradicts itself.
        PairError: two variants were scored on different prompts.
        QueryError: a claim names an unknown column.
    """
    config = yaml.safe_load(config_path.read_text(encoding="utf-8")) or {}
    require(results, listed(results) - {results / name for name in ANALYSIS_TABLES})
    declared = load_declarations(papers)
    requests = [request for paper in declared.values() for request in paper.pairs]
    pools = {name: tasks for paper in declared.values() for name, tasks in paper.pools.items()}
    spread = Spread(RunConfig.confidence, RunConfig.bootstrap_resamples, config.get("seed", 0))
    records = [record for path in _files(config, results / "records") for record in read_records(path, Record)]
    paths = [results / name for name in ANALYSIS_TABLES]
    pilot = bool(config.get("pilot"))
    compared = comparisons_table(records, requests, pools, spread)
    write_table(paths[0], compared.assign(verdict=None) if pilot else compared)
    write_table(paths[1], measures_table(results, records, requests, pools, spread))
    write_table(paths[2], claims_table({} if pilot else declared, Tables.read(results)))
    seal(results, paths)
    return paths


def _files(config: Mapping[str, Any], folder: Path) -> list[Path]:
    """Return the files of records that a configuration names; one with keys of an earlier revision names them too."""
    small = config.get("jobs", "suite") != "suite"
    named = (
        RecordFile(model, label, suite, context).path(folder)
        for model in config.get("models") or {}
        for label in config.get("methods") or {}
        for suite, spec in (config.get("suites") or {}).items()
        for context in (spec["contexts"] if small else (None,))
    )
    return sorted(path for path in named if path.exists())


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables of results folders."""
    parser = argparse.ArgumentParser(prog="python -m longdecode.evals.analysis.write", description=main.__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--papers", type=Path, default=Path("reporting/papers"))
    given = parser.parse_args(arguments)
    for folder in given.results:
        print(*write_analysis(folder / "config.yaml", folder, given.papers), sep="\n")


if __name__ == "__main__":
    main()
