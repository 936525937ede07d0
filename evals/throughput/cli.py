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

from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.evals.names import unknown_name
from longdecode.evals.records import Stage
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.evals.throughput.cells import SpeedCell
from longdecode.evals.throughput.measure import Choose, measure_speed
from longdecode.evals.throughput.spec import KERNELS_JOB, OPS
from longdecode.evals.throughput.summary import summary_table, write_speed_summary


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs asked for, print a line a record and a table at the end."""
    asked = _parser().parse_args(arguments)
    try:
        run = _narrowed(load_run_config(asked.config), asked)
        folder = asked.output or Path("results") / run.profile / "speed"
        jobs = asked.jobs or (run.throughput.jobs if run.throughput else ())
        outputs = []
        fresh = []
        for name in jobs:
            outputs.append(folder / f"{name}.parquet")
            fresh += measure_speed(
                run, name, outputs[-1], choose=_chooser(asked), leased=asked.leased, keep_going=asked.keep_going
            )
        if asked.summary:
            written = sorted(folder.glob("*.parquet"))
            write_speed_summary(written, asked.summary, run)
        print(summary_table(fresh, run))
    except LongDecodeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m longdecode.evals.throughput.cli", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("config/h200.yaml"), help="a configuration file")
    parser.add_argument("--output", type=Path, help="folder of the parquet files (default: results/<profile>/speed)")
    parser.add_argument("--summary", type=Path, help="write speed.csv and its companions there, from all of the folder")
    parser.add_argument("--device", help="instead of the configuration's")
    parser.add_argument("--rounds", type=int, help="instead of the configuration's")
    parser.add_argument("--steps", type=int, help="decode steps a block, instead of the configuration's")
    parser.add_argument("--leased", action="store_true", help="the caller holds the GPU's lease")
    parser.add_argument("--keep-going", action="store_true", help="go on after an error that no status stands for")
    parser.add_argument("--jobs", nargs="+", metavar="JOB", help=f"{KERNELS_JOB} or models (default: all)")
    parser.add_argument("--subjects", nargs="+", help=f"ops or methods: {', '.join(OPS)}, or labels")
    parser.add_argument("--stages", nargs="+", help=f"some of: {', '.join(get_args(Stage))}")
    parser.add_argument("--contexts", nargs="+", type=int)
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--budgets", nargs="+", help="as tables print them: 1024, 0.1, full")
    return parser


def _narrowed(run: RunConfig, asked: argparse.Namespace) -> RunConfig:
    """The configuration with the command line's device, rounds and steps."""
    spec = run.throughput
    if spec is None:
        raise ConfigError(f"{run.source}: no throughput tests are configured (key 'throughput')")
    for name in asked.jobs or ():
        if name not in spec.jobs:
            raise ConfigError(f"--jobs: {unknown_name('job', name, spec.jobs)}")
    changes = {name: value for name in ("rounds", "steps") if (value := getattr(asked, name)) is not None}
    if any(value < 1 for value in changes.values()):
        raise ConfigError(f"--rounds and --steps are 1 or more, got {changes}")
    kernels = replace(spec.kernels, rounds=asked.rounds or spec.kernels.rounds)
    decode = {name: replace(below, **changes) for name, below in spec.decode.items()}
    return replace(run, throughput=replace(spec, kernels=kernels, decode=decode), device=asked.device or run.device)


def _chooser(asked: argparse.Namespace) -> Choose:
    """Keep the cells that pass the filters; a filter left out lets all through."""

    def chosen(cell: SpeedCell) -> bool:
        return (
            (not asked.subjects or cell.subject in asked.subjects or cell.label in asked.subjects)
            and (not asked.stages or cell.stage in asked.stages)
            and (not asked.contexts or cell.context in asked.contexts)
            and (not asked.batches or cell.batch in asked.batches)
            and (not asked.budgets or cell.budget.text in asked.budgets or cell.budget.value is None)
        )

    return chosen


if __name__ == "__main__":
    raise SystemExit(main())
