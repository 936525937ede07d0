"""Make pareto.csv: loss and measured speed of the same variants, and how surely each is on the front of both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from longdecode.evals.analysis.cells import ALL_TASKS, Cells, paired_units, task_statuses
from longdecode.evals.analysis.comparisons import Pair, against_full, means
from longdecode.evals.records import BaseRecord, SpeedRecord
from longdecode.evals.run_config import REFERENCE_METHOD
from longdecode.evals.stats import Floats, Spread, front_shares, generator
from longdecode.evals.throughput.summary import good_times

COLUMNS = (
    "model", "suite", "task", "context", "batch", "variant", "budget", "budget_tokens", "n", "loss", "unit",
    "times_full", "front_share",
)  # fmt: skip
DRAWS = 2000


def pareto_table(cells: Cells, timed: Iterable[SpeedRecord], spread: Spread) -> pd.DataFrame:
    """Return a row for each variant that was scored and timed with the same parameters, budget and context.

    Rows of one model, suite, context and timed batch are rivals; full attention (no loss, 1 time as fast) is one.
    ``front_share`` is the share of bootstrap draws in which no other is as good at both and better at one. A draw
    resamples prompts, the same for all rivals, and timed rounds. A suite stands as its mean, or as its only task.

    Args:
        cells: scored samples.
        timed: speed records of the same run.
        spread: the seed of the draws.
    """
    speeds: dict[object, list[tuple[int, Floats]]] = defaultdict(list)
    for r in timed:
        ratios = np.array([full / us for us, full in good_times(r.samples) if full is not None])
        if r.bench == "decode" and r.stage == "step" and r.reference == REFERENCE_METHOD and len(ratios):
            speeds[_setup(r)].append((r.batch, ratios))
    places: dict[tuple[Any, ...], list[tuple[dict[str, Any], Floats, Floats]]] = defaultdict(list)
    for _, members in means(against_full(cells), cells, task_statuses(cells, spread), {}, fewest=1):
        cell, first = members[0][0], next(iter(cells[members[0][0]].values()))
        for batch, ratios in speeds.get(_setup(first), ()):
            sign = -1.0 if first.higher_is_better else 1.0
            scale, unit = (100 * sign, "points") if first.unit == "fraction" else (sign, first.unit)
            n, loss, losses = _drawn_losses(members, cells, spread)
            rng = generator(spread.seed, "front speed", *cell, batch)
            drawn = np.median(ratios[rng.integers(len(ratios), size=(DRAWS, len(ratios)))], axis=1)
            row = cell._asdict() | {
                "task": cell.task if len(members) == 1 else ALL_TASKS, "batch": batch, "n": n, "loss": scale * loss,
                "unit": unit, "budget_tokens": first.budget_tokens, "times_full": np.median(ratios),
            }  # fmt: skip
            places[cell.model, cell.suite, cell.context, batch].append((row, scale * losses, drawn))
    rows = [row for rivals in places.values() for row in _with_shares(rivals)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"budget_tokens": "Int64"})


def _setup(r: BaseRecord) -> tuple[object, ...]:
    """Return what must be the same where a variant is scored and where it is timed."""
    return r.model, r.variant, str(r.params), r.context, r.budget_tokens


def _drawn_losses(members: Sequence[Pair], cells: Cells, spread: Spread) -> tuple[int, float, Floats]:
    """Return units, mean difference to Full, and its bootstrap draws."""
    gaps = [np.subtract(*paired_units(cells[a], cells[b])) for a, b in members]
    draws = []
    for (a, _), gap in zip(members, gaps, strict=True):
        # The draw depends on task and number of prompts alone, so that rivals share their prompts.
        index = generator(spread.seed, "front", a.task, a.context, len(gap)).integers(len(gap), size=(DRAWS, len(gap)))
        draws.append(gap[index].mean(axis=1))
    return sum(map(len, gaps)), float(np.mean([gap.mean() for gap in gaps])), np.mean(draws, axis=0)


def _with_shares(rivals: Sequence[tuple[dict[str, Any], Floats, Floats]]) -> Iterable[dict[str, Any]]:
    rows, losses, speeds = zip(*rivals, strict=True)
    shares = front_shares(np.array([np.zeros(DRAWS), *losses]), np.array([np.ones(DRAWS), *speeds]))
    return [row | {"front_share": share} for row, share in zip(rows, shares[1:], strict=True)]
