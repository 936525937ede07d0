"""Do two runs on the same prompts agree, apart from rounding? Paired differences beside the noise that rounding makes.

``python -m longdecode.evals.agreement BEFORE AFTER --floor ONE OTHER`` compares two folders of records, say of two
revisions, and holds the differences against those of two runs that differ in rounding alone: the same revision once
through its Triton kernels and once through plain torch (``LONGDECODE_KERNELS=naive``).
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from longdecode.engine.errors import LongDecodeError
from longdecode.evals import stats
from longdecode.evals.records import Record
from longdecode.evals.storage import read_folder, write_table


class DifferentDataError(LongDecodeError):
    """Two runs that were made on different prompts cannot be compared."""


CONFIDENCE = 0.95
RESAMPLES = 4000
COLUMNS = ("model", "variant", "suite", "metric", "n", "same_output", "same_score", "difference", "low", "high")

_Sample = tuple[str, str, str, str, str, str, int, int, int]


def agreement(first: Iterable[Record], second: Iterable[Record]) -> pd.DataFrame:
    """Compare two runs on the samples that both scored, one row a model, label, suite and metric.

    ``same_output`` and ``same_score`` are shares of the samples; ``difference`` is the mean of second minus first in
    the score's own unit, with a bootstrap interval over prompts, whose budgets are resampled together.

    Raises:
        DifferentDataError: one sample number stands for two prompts, or the runs share no sample.
    """
    one, other = ({_key(record): record for record in records if record.status == "ok"} for records in (first, second))
    if one and other and not one.keys() & other.keys():
        raise DifferentDataError(f"the runs share no sample: one begins with {min(one)}, the other with {min(other)}")
    groups: dict[tuple[str, str, str, str], list[_Sample]] = defaultdict(list)
    for key in sorted(one.keys() & other.keys()):
        if one[key].prompt_sha256 != other[key].prompt_sha256:
            raise DifferentDataError(f"the runs have different prompts at {key}; compare runs of one data set and seed")
        groups[key[:4]].append(key)
    rows = []
    for group, keys in groups.items():
        pairs = [(one[key], other[key]) for key in keys]
        scores = np.array([[a.score, b.score] for a, b in pairs], dtype=np.float64)
        prompts = np.unique(["/".join(map(str, (key[4], *key[6:]))) for key in keys], return_inverse=True)[1]
        difference = stats.paired_difference(
            [(stats.Scores(scores[:, 1], prompts), stats.Scores(scores[:, 0], prompts))],
            CONFIDENCE, RESAMPLES, stats.generator("agreement", *group),
        )  # fmt: skip
        same_output = float(np.mean([a.output_ids == b.output_ids for a, b in pairs]))
        same_score = float(np.mean(scores[:, 0] == scores[:, 1]))
        values = (len(pairs), same_output, same_score, difference.value, difference.low, difference.high)
        rows.append((*group, *values))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def within_floor(compared: pd.DataFrame, floor: pd.DataFrame) -> pd.DataFrame:
    """``compared`` with what rounding alone does beside it, and whether each difference is explained by it.

    Adds ``floor``, the largest difference that the floor's intervals of the same suite and metric reach, and
    ``agrees``: the interval of the difference covers zero, or the difference is no larger than the floor.
    """
    reach = (
        floor.assign(reach=floor[["low", "high"]].abs().max(axis=1))
        .groupby(["model", "suite", "metric"])["reach"]
        .max()
    )
    joined = compared.join(reach.rename("floor"), on=["model", "suite", "metric"])
    covers = (joined["low"] <= 0) & (joined["high"] >= 0)
    return joined.assign(agrees=covers | (joined["difference"].abs() <= joined["floor"]))


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison; 0 where every row agrees or no floor was given, 1 where one does not."""
    parser = argparse.ArgumentParser(prog="python -m longdecode.evals.agreement", description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--floor", type=Path, nargs=2, metavar=("ONE", "OTHER"))
    parser.add_argument("--output", type=Path, help="write the table as CSV")
    given = parser.parse_args(arguments)
    table = agreement(*(read_folder(folder, Record) for folder in (given.first, given.second)))
    if table.empty:
        print(f"no sample is in both {given.first} and {given.second}", file=sys.stderr)
        return 1
    if given.floor:
        table = within_floor(table, agreement(*(read_folder(folder, Record) for folder in given.floor)))
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4f}"))
    if given.output:
        write_table(given.output, table)
    return int(given.floor is not None and not table["agrees"].all())


def _key(record: Record) -> _Sample:
    return (
        record.model, record.variant, record.suite, record.metric, record.task, record.budget, record.context,
        record.seed, record.sample_index,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
