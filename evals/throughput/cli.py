"""``python -m longdecode.evals.throughput.cli``: run throughput jobs by hand, all or some of their cells.

The same jobs as in the workflow, with the same records; snakemake is not needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.records import Stage
from longdecode.evals.run_config import load_run_config
from longdecode.evals.throughput.harness import SpeedCell
from longdecode.evals.throughput.measure import measure_speed
from longdecode.evals.throughput.spec import OPS
from longdecode.evals.throughput.summary import shown, speed_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs asked for, print a line a record and a table at the end."""
    asked = _parser().parse_args(arguments)

    def chosen(cell: SpeedCell) -> bool:
        wanted = (
            (asked.variants, {cell.method, cell.variant}), (asked.stages, {cell.stage}),
            (asked.contexts, {cell.context}), (asked.batches, {cell.batch}), (asked.budgets, {cell.budget.text}),
        )  # fmt: skip
        return all(not values or mine & {*values} for values, mine in wanted)

    try:
        run = load_run_config(asked.config)
        run = replace(run, device=asked.device or run.device)
        folder, fresh = asked.output or Path("results") / run.profile / "speed", []
        for name in asked.jobs or (run.throughput.jobs if run.throughput else ()):
            fresh += measure_speed(run, name, folder / f"{name}.parquet", choose=chosen, leased=asked.leased)
        print(shown(speed_table(fresh, run.confidence, run.bootstrap_resamples)))
    except LongDecodeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m longdecode.evals.throughput.cli", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("config/h200.yaml"), help="a configuration file")
    parser.add_argument("--output", type=Path, help="folder of the parquet files (default: results/<profile>/speed)")
    parser.add_argument("--device", help="instead of the configuration's")
    parser.add_argument("--leased", action="store_true", help="the caller holds the GPU's lease")
    parser.add_argument("--jobs", nargs="+", metavar="JOB", help="kernels, models, ... (default: all)")
    # The second name is what revisions before this one understand, which `compare` runs with the same arguments.
    parser.add_argument("--variants", "--subjects", nargs="+", help=f"variants, methods or ops: {', '.join(OPS)}")
    parser.add_argument("--stages", nargs="+", help=f"some of: {', '.join(get_args(Stage))}")
    parser.add_argument("--contexts", nargs="+", type=int)
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--budgets", nargs="+", help="as tables print them: 1024, 0.1, full")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
