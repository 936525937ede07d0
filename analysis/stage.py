"""Turn the records of a run into the tables that pages, README and claims quote; nothing else computes a statistic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from longdecode.analysis.cells import all_cells, require_alike, scored_cells, summary_table
from longdecode.analysis.claims import claims_table
from longdecode.analysis.comparisons import comparisons_table, pareto_table
from longdecode.analysis.measures import measures_table
from longdecode.analysis.speed import speed_table
from longdecode.engine.errors import ConfigError
from longdecode.evals import manifest
from longdecode.evals.fairness import require_records, untuned_beside_tuned
from longdecode.evals.fingerprint import require_settings
from longdecode.evals.records import Record, SpeedRecord
from longdecode.evals.run_config import RESULT_TABLES, load_run_config, record_files
from longdecode.evals.stats import Spread
from longdecode.evals.store import read_folder, read_records, write_table
from longdecode.reporting.papers.declaration import Tables, load_declarations

READ = ("locality.csv", "overlap.csv")
"""Files beside the tables that are read; what else was measured has a folder of its own."""
AGREEMENT = ("model", "variant", "task", "context", "budget", "n", "same output", "same score")
PAPERS = Path(__file__).parents[1] / "reporting" / "papers"


def write_tables(folder: Path) -> list[Path]:
    """Write the tables of a run, once, after it; each whole or not at all. Returns their paths.

    A pilot's comparisons have no verdict, and it speaks to no claim. Where a variant was not tuned as those beside it,
    the summary has a column ``untuned`` that says what was not.

    Args:
        folder: the results of a run: its config.yaml and records, and what else it measured.

    Raises:
        ConfigError: a tuning record that the configuration names is not there.
        ManifestError: a file changed since it was written.
        CellError: records that cannot stand in one table.
        DeclarationError: a paper's declaration contradicts itself.
        QueryError: a claim names an unknown column.
    """
    config_path, paths = folder / "config.yaml", [folder / name for name in RESULT_TABLES]
    run = load_run_config(config_path)
    require_records(run)
    manifest.require(folder, (path for path in manifest.listed(folder) if path.parent != folder or path.name in READ))
    spread = Spread(seed=run.seed)
    declared = load_declarations(PAPERS)
    requests = [request for paper in declared.values() for request in paper.pairs]
    pools = {name: tasks for paper in declared.values() for name, tasks in paper.pools.items()}
    records = []
    for path in sorted(file.path(folder / "records") for file in record_files(run)):
        if path.exists():
            records += (found := read_records(path, Record))
            require_settings(run, path, found)
    require_alike(records)
    timed = read_folder(folder / "speed", SpeedRecord)
    cells = all_cells(records)
    scored = scored_cells(cells)
    compared = comparisons_table(scored, requests, pools, spread)
    summary, untuned = summary_table(cells, spread), untuned_beside_tuned(run)
    marks = pd.Series([untuned.get(place) for place in zip(summary.model, summary.variant, strict=True)], dtype=object)
    tables = (
        summary.assign(untuned=marks) if marks.notna().any() else summary,
        speed_table(timed, spread),
        compared.assign(verdict=None) if run.pilot else compared,
        measures_table(folder, scored, timed, requests, pools, spread),
        pareto_table(scored, timed, spread),
    )
    for path, table in zip(paths, tables, strict=False):
        write_table(path, table)
    write_table(paths[-1], claims_table({} if run.pilot else declared, Tables.read(folder), run.profile))
    manifest.seal(folder, paths)
    return paths


def agreement(before: Path, after: Path) -> Iterator[tuple[str, ...]]:
    """Yield a row a cell that two runs have both scored: samples, and shares with the same output and the same score.

    Columns ``AGREEMENT``. An output is the same where each of its tokens is.

    Raises:
        ConfigError: there is no such cell.
    """
    cell, sample = list(AGREEMENT[:5]), ["seed", "sample_index"]
    names = [*cell, *sample, "output_sha256", "score"]
    runs = ([r for r in read_folder(run / "records", Record) if r.has_result] for run in (before, after))
    first, second = (pd.DataFrame([[getattr(r, name) for name in names] for r in run], columns=names) for run in runs)
    both = first.merge(second, on=[*cell, *sample], suffixes=("", "_after"))
    if both.empty:
        raise ConfigError(f"{before} and {after}: no prompt that both have scored, in their records/")
    for place, rows in both.groupby(cell, sort=False):
        same = (f"{(rows[name] == rows[f'{name}_after']).mean():.1%}" for name in names[-2:])
        yield *map(str, place), str(len(rows)), *same
