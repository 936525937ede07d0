"""Write the tables that pages quote, once, after the run: comparisons.csv, measures.csv and claims.csv."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from longdecode.evals.analysis.claims import claims_table
from longdecode.evals.analysis.comparisons import comparisons_table
from longdecode.evals.analysis.declaration import load_declarations
from longdecode.evals.analysis.measures import measures_table
from longdecode.evals.analysis.query import Tables
from longdecode.evals.analysis.tables import ANALYSIS_TABLES
from longdecode.evals.manifest import listed, require, seal
from longdecode.evals.record_files import record_files
from longdecode.evals.records import Record
from longdecode.evals.run_config import load_run_config
from longdecode.evals.storage import read_records, write_table
from longdecode.evals.summary import Spread


def write_analysis(config_path: Path, results: Path, papers: Path) -> list[Path]:
    """Write the tables to a results folder, each whole or not at all, and return their paths.

    ``comparisons.csv`` and ``measures.csv`` come from records, ``claims.csv`` from all tables of the run.

    Args:
        config_path: the run's configuration, for its cells, confidence, resamples and seed.
        results: the folder with records, summary.csv and speed.csv, as far as the run has them.
        papers: the folder of the papers' declarations.

    Raises:
        ManifestError: a file changed since it was written.
        DeclarationError: a declaration contradicts itself.
        PairError: two variants were scored on different prompts.
        QueryError: a claim names an unknown column or several rows.
    """
    config = load_run_config(config_path)
    require(results, listed(results) - {results / name for name in ANALYSIS_TABLES})
    declared = load_declarations(papers)
    requests = [request for paper in declared.values() for request in paper.pairs]
    pools = {name: tasks for paper in declared.values() for name, tasks in paper.pools.items()}
    spread = Spread(config.confidence, config.bootstrap_resamples, config.seed)
    files = sorted(file.path(results / "records") for file in record_files(config))
    records = [record for path in files if path.exists() for record in read_records(path, Record)]
    paths = [results / name for name in ANALYSIS_TABLES]
    write_table(paths[0], comparisons_table(records, requests, pools, spread))
    write_table(paths[1], measures_table(results, records, requests, pools, spread))
    write_table(paths[2], claims_table(declared, Tables.read(results)))
    seal(results, paths, config_path)
    return paths


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
