"""Turn the records of a run into the tables that pages, README and claims quote; nothing else computes a statistic."""

from __future__ import annotations

from pathlib import Path

TABLES = ("summary.csv", "speed.csv", "comparisons.csv", "measures.csv", "pareto.csv", "claims.csv")
"""Tables of a results folder; one that a run has no data for has no rows."""


def write(folder: Path) -> list[Path]:
    """Write the tables of a run, once, after it; each whole or not at all. Returns their paths.

    Args:
        folder: the results of a run: its config.yaml and records, and what else it measured.

    Raises:
        ManifestError: a file changed since it was written.
        CellError: records that cannot stand in one table.
        DeclarationError: a paper's declaration contradicts itself.
        QueryError: a claim names an unknown column.
    """
    # The plan of a run needs the names above and no statistics library.
    from longdecode.evals.analysis.stage import write_tables

    return write_tables(folder)
