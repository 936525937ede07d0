"""Time cells by hand, all or some, without Snakemake, and print them: ``python -m longdecode.analysis.speed``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from longdecode.analysis.cells import speed_table
from longdecode.engine.errors import LongDecodeError
from longdecode.evals.run_config import load_run_config
from longdecode.evals.stats import Spread
from longdecode.evals.throughput.harness import SpeedCell
from longdecode.evals.throughput.measure import measure_speed
from longdecode.evals.throughput.spec import OPS, jobs_of

_FILTERS = {"jobs": "kernels, models, ... (default: all)", "variants": f"variants, methods or ops: {', '.join(OPS)}"}
_FILTERS |= dict.fromkeys(("stages", "contexts", "batches", "budgets"), "as tables print them")
_SHOWN = ["method", "variant", "stage", "context", "batch", "budget", "op_sizes", "median_us", "ratio"]
_SHOWN += ["fraction", "gb_per_s"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the jobs asked for, print a line a record and a table at the end."""
    asked = parser().parse_args(arguments)

    def chosen(cell: SpeedCell) -> bool:
        mine: dict[str, set[str]] = {
            "variants": {cell.method, cell.variant}, "stages": {cell.stage}, "contexts": {str(cell.context)},
            "batches": {str(cell.batch)}, "budgets": {cell.budget.text},
        }  # fmt: skip
        return all(not (wanted := getattr(asked, name)) or values & {*wanted} for name, values in mine.items())

    try:
        run = load_run_config(asked.config)
        folder, fresh = asked.output or Path("results") / run.profile / "speed", []
        for name in asked.jobs or jobs_of(run.throughput):
            fresh += measure_speed(run, name, folder / f"{name}.parquet", choose=chosen)
        table = speed_table(fresh, Spread())[_SHOWN].dropna(axis=1, how="all")
        print(table.to_string(index=False, float_format="{:,.3f}".format, na_rep="") if fresh else "nothing was timed")
    except LongDecodeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="python -m longdecode.analysis.speed", description=__doc__)
    found.add_argument("--config", type=Path, default=Path("config/h200.yaml"), help="a configuration file")
    found.add_argument("--output", type=Path, help="folder of the parquet files (default: results/<profile>/speed)")
    for name, about in _FILTERS.items():
        found.add_argument(f"--{name}", nargs="+", help=about)
    return found


if __name__ == "__main__":
    main()
