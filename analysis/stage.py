"""Turn the records of a run into the tables that pages and README quote; nothing else computes a statistic.

The last of them, claims.csv, answers the claims of papers from the others: print beside ours, and one word for what
came out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from longdecode.analysis.cells import all_cells, require_alike, scored_cells, speed_table, summary_table
from longdecode.analysis.comparisons import comparisons_table, orders_table, pareto_table, ranks_table
from longdecode.analysis.declaration import (
    AmbiguousQueryError,
    Claim,
    Declaration,
    DeclarationError,
    Found,
    PrintedTable,
    Tables,
    load_declarations,
)  # fmt: skip
from longdecode.analysis.measures import measures_table
from longdecode.engine.errors import ConfigError
from longdecode.evals import manifest
from longdecode.evals.fairness import require_records, untuned_beside_tuned
from longdecode.evals.fingerprint import require_settings
from longdecode.evals.records import Record, SpeedRecord
from longdecode.evals.run_config import RESULT_TABLES, load_run_config, record_files
from longdecode.evals.stats import Spread
from longdecode.evals.store import read_folder, read_records, write_table

READ = ("locality.csv", "overlap.csv")
"""Files beside the tables that are read; what else was measured has a folder of its own."""
AGREEMENT = ("model", "variant", "task", "context", "budget", "n", "same output", "same score")
PAPERS = Path(__file__).parents[1] / "reporting" / "papers"
CLAIM_COLUMNS = (
    "paper", "claim", "published", "like_for_like", "low", "high", "unit", "conditions", "bound", "best_variant",
    "best", "verdict", "why", "source", "run", "revision",
)  # fmt: skip
ClaimVerdict = Literal["reproduced", "partly", "not reproduced", "not comparable", "cannot tell", "not run"]
UNPROVEN = 0.05
"""Corrected p-value above which a sign is not proven."""
MOST_OF_IT = 0.5
"""Share of the printed effect from which on a claim holds partly."""


def write_tables(folder: Path) -> list[Path]:
    """Write the tables of a run, once, after it; each whole or not at all. Returns their paths.

    A pilot's comparisons have no verdict, and it speaks to no claim. Where a variant was not tuned as those beside it,
    the summary has a column ``untuned`` that says what was not, and its comparisons have no verdict.

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
    run = load_run_config(config_path, check_params=False)  # as its jobs did
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
    told = compared[compared.status == "ok"].itertuples()
    held = [r.Index for r in told if {(r.model, r.a), (r.b_model, r.b)} & untuned.keys()]
    compared.loc[held, ["status", "verdict"]] = "untuned", None
    tables = (
        summary.assign(untuned=marks) if marks.notna().any() else summary,
        speed_table(timed, spread),
        compared.assign(verdict=None) if run.pilot else compared,
        measures_table(folder, scored, timed, requests, pools, spread),
        pareto_table(scored, timed, spread),
        ranks_table({} if run.pilot else scored, spread),
        orders_table(PAPERS.parent / "orders.yaml", {} if run.pilot else scored, run.profile, spread),
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


@dataclass(frozen=True, slots=True)
class Printed:
    """Say what print has of a claim: text, where it was read, unit, digits; no number where print has only words."""

    text: str
    mark: str
    unit: str
    digits: int
    number: float | None


def claims_table(papers: Mapping[str, Declaration], tables: Tables, profile: str) -> pd.DataFrame:
    """Return a row for every claim of every paper; what was not run, or fits several rows, says so.

    A claim has one answer among the committed runs: that of the run it names. A run that no claim names answers all.

    Raises:
        QueryError: a claim's query names an unknown column.
    """
    named = {claim.run for paper in papers.values() for claim in paper.claims}
    rows = [
        _claim_row(name, paper, claim, tables, claim.run == profile or profile not in named)
        for name, paper in papers.items()
        for claim in paper.claims
    ]
    return pd.DataFrame(rows, columns=list(CLAIM_COLUMNS))


def claim_verdict(printed: float | None, claim: Claim, found: Found | None, digits: int) -> ClaimVerdict:
    """Return what came out of a claim under the paper's own conditions.

    At least so much: ``reproduced`` where the interval reaches the printed figure (as rounded there), ``partly`` where
    it reaches half of the printed effect, ``not reproduced`` where it stays below; of words without a number the sign
    alone decides, where its corrected p-value proves it. At most so much: ``reproduced`` where the whole interval lies
    below, ``not reproduced`` where none of it does. About so much: as at least so much, but ``partly`` where the whole
    interval lies beyond the printed figure. ``cannot tell``: there is no interval, it holds no effect as well as half
    of the printed one, or forks of one training each or an untuned variant stand behind it. The best variant has no
    say.
    """
    if found is None:
        return "not run"
    if not claim.comparable:
        return "not comparable"
    told = math.isfinite(found.low) and math.isfinite(found.high) and found.row.get("status") != "untuned"
    if not told or (claim.trainings or 2) < 2:
        return "cannot tell"
    rounding, by_sign = 0.0 if printed is None else 0.5 * 10.0**-digits, printed is None
    printed = claim.no_effect if printed is None else printed
    if claim.direction == "at_most":
        if found.high <= printed + rounding:
            return "reproduced"
        return "not reproduced" if found.low > printed + rounding else "cannot tell"
    sign = 1.0 if printed >= claim.no_effect else -1.0
    least, most = sorted((sign * found.low, sign * found.high))
    goal, nothing = sign * printed, sign * claim.no_effect
    if most < nothing + MOST_OF_IT * (goal - nothing):
        return "not reproduced"
    if least <= nothing or (by_sign and found.row.get("p_holm", 0.0) > UNPROVEN):
        return "cannot tell"
    if most < goal - rounding or (claim.direction == "about" and least > goal + rounding):
        return "partly"
    return "reproduced"


def printed_of(paper: Declaration, claim: Claim) -> Printed:
    """Return what print says of a claim; a difference of two printed numbers is taken here, and its mark has both.

    Raises:
        DeclarationError: not one row has it, or a difference is of words.
    """
    table, column = paper.tables[str(claim.published["table"])], str(claim.published["column"])
    asked = {name: value for name, value in claim.published.items() if name not in ("table", "column")}
    row = _only(claim, table, column, asked)
    text, mark, digits = table.text(row, column), table.mark(row, column), row.get("digits", table.digits)
    number = None if isinstance(row[column], str) else float(row[column])
    if number is None or not claim.minus:
        return Printed(text, mark, table.unit, digits, number)
    other = _only(claim, table, column, asked | claim.minus)
    gap = number - float(other[column])
    marks = dict.fromkeys([*mark.split("; "), *table.mark(other, column).split("; ")])
    signed = f"{gap:+,.{digits}f}".replace("-", "\u2212")
    both = f"{'; '.join(marks)}: {text} \u2212 {table.text(other, column)}"
    return Printed(signed, both, table.unit, digits, gap)


def _only(claim: Claim, table: PrintedTable, column: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the one row of a printed table that has these keys and a number, or words, in the column."""
    rows = [row for row in table.rows if asked.items() <= row.items() and row.get(column) is not None]
    if len(rows) != 1 or (claim.minus and isinstance(rows[0][column], str)):
        raise DeclarationError(f"{claim.claim}: {dict(asked)} names {len(rows)} rows with a number in {column}")
    return rows[0]


def _claim_row(name: str, paper: Declaration, claim: Claim, tables: Tables, answers: bool) -> dict[str, Any]:
    printed = printed_of(paper, claim)
    found, best, bound, why = None, None, None, ""
    if answers:
        try:
            found, best, bound = map(tables.find, (claim.like, claim.best, claim.bound))
            if found is None and claim.instead and (found := tables.find(claim.instead.query)):
                claim = claim.model_copy(update=claim.instead.model_dump(include={"comparable", "conditions", "why"}))
        except AmbiguousQueryError as error:
            why = f"Not read: {error}."
    elif claim.run:
        why = f"The run {claim.run} answers it."
    if found:
        why = claim.why.format(bound=bound.value if bound else math.nan, **found.row)
    return {
        "paper": name, "claim": claim.claim, "published": printed.text, "conditions": claim.conditions,
        "like_for_like": found and found.value, "low": found and found.low, "high": found and found.high,
        "unit": found.unit if found else printed.unit, "bound": bound and bound.value,
        "best_variant": best and _variant(best, found), "best": best and best.value, "why": why,
        "source": printed.mark, "run": claim.run,
        "verdict": claim_verdict(printed.number, claim, found, printed.digits),
        "revision": found and found.row.get("revision"),
    }  # fmt: skip


def _variant(best: Found, like: Found | None) -> str:
    """Return a variant with the task, context and batch at which it is best, where those of like for like differ."""
    other = like.row if like else {}
    places = [
        f"{name} {value if isinstance(value, str) else format(int(value), ',')}"
        for name in ("task", "context", "batch")
        if not pd.isna(value := best.row.get(name)) and value != other.get(name)
    ]
    return ", ".join([best.variant, *places])
