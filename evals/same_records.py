"""Compare two runs cell by cell: are prompts, outputs and scores the same, and if not, by how much do scores differ?

``python -m longdecode.evals.same_records FIRST SECOND`` takes two files of records or two folders, say of
two revisions. It prints a row for each cell and ends with 1 where a cell is not the same in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import typer

from longdecode.evals.records import Record, hash_output
from longdecode.evals.store import read_folder, read_records

CELL = ["model", "suite", "task", "context", "batch", "budget", "variant"]
_SAMPLE = [*CELL, "seed", "sample_index"]
_SAME = ["same_prompt", "same_output", "same_score"]


def compare_runs(first: Iterable[Record], second: Iterable[Record]) -> pd.DataFrame:
    """Return one row a cell: samples of either run, shares that agree, and the mean of second minus first.

    A sample that one run lacks agrees in nothing. Two statuses without a score agree where they are the same.
    """
    both = _frame(first).merge(_frame(second), on=_SAMPLE, how="outer", suffixes=("", "_"), indicator="side")
    there = both.side == "both"
    for name in ("prompt", "output", "score"):
        ours, theirs = both[name], both[f"{name}_"]
        alike = (ours == theirs) | (ours.isna() & theirs.isna())
        both[f"same_{name}"] = there & alike & (both.status == both.status_)
    both["difference"] = both.score_ - both.score
    cells = both.groupby(CELL, sort=True)
    return cells[_SAME].mean().assign(n=cells.size(), difference=cells.difference.mean()).reset_index()


def _frame(records: Iterable[Record]) -> pd.DataFrame:
    columns = [*_SAMPLE, "status", "score", "prompt", "output"]
    rows = [
        (*(getattr(r, name) for name in columns[:-2]), r.prompt_sha256, r.output_sha256 or hash_output(r.output_ids))
        for r in records
    ]
    return pd.DataFrame(rows, columns=columns).astype({"score": float})


def main(first: Path, second: Path) -> None:
    """Print how two runs compare."""
    found = [read_folder(path, Record) if path.is_dir() else read_records(path, Record) for path in (first, second)]
    table = compare_runs(*found)
    print(table.to_string(index=False, float_format="{:.4f}".format))
    same = bool((table[_SAME] == 1).all(axis=None)) and not table.empty
    print(f"{len(table)} cells: {'the same in both' if same else 'not the same'}")
    raise typer.Exit(not same)


if __name__ == "__main__":
    typer.run(main)
