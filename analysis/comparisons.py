"""Make comparisons.csv, pareto.csv, ranks.csv and orders.csv: variants in pairs, loss beside speed, ranks.

A row of comparisons.csv has interval, corrected p-value and verdict; one of pareto.csv, how surely its variant is on
the front of loss and speed; one of ranks.csv, the ranks that a variant may have; one of orders.csv, whether two methods
stand here as others print them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import yaml

from longdecode.analysis import cells as grouped
from longdecode.analysis.cells import ALL_TASKS, Cell, Cells, TaskStatus
from longdecode.analysis.declaration import PairRequest
from longdecode.evals import stats
from longdecode.evals.records import BaseRecord, SpeedRecord
from longdecode.evals.run_config import REFERENCE_METHOD
from longdecode.evals.stats import Floats, Interval, Spread, generator

COLUMNS = (
    "a", "b", "model", "b_model", "suite", "task", "context", "batch", "budget", "b_budget", "n", "a_value", "b_value",
    "difference", "low", "high", "unit", "better", "p", "p_holm", "margin", "verdict", "status", "revision",
)  # fmt: skip
_FAMILY = ["b", "b_model", "suite", "task", "context", "batch", "budget", "b_budget"]
"""Columns that the variants of one table share; Holm's correction is over the rows of such a table."""
PARETO_COLUMNS = (
    "model", "suite", "task", "context", "batch", "variant", "budget", "budget_tokens", "n", "loss", "unit",
    "steps_of", "times_full", "front_share",
)  # fmt: skip
RANK_COLUMNS = (
    "model", "suite", "context", "variant", "budget", "tasks", "bytes_share", "rank_low", "rank_high", "worst_task",
    "worst_low", "worst_high",
)  # fmt: skip
ORDER_COLUMNS = (
    "source", "a", "b", "a_printed", "b_printed", "suite", "context", "budget", "n", "a_loss", "b_loss", "share",
    "outcome",
)  # fmt: skip
DRAWS = 2000
_BYTES = ("kv_bytes_per_step", "metadata_bytes_per_step")
SEVERAL = " + "
"""Stands between the names of models that are trainings of one fork, where their mean is meant."""

CellPair = tuple[Cell, Cell]
Statuses = Mapping[tuple[Any, ...], TaskStatus]


def comparisons_table(
    cells: Cells, requests: Sequence[PairRequest], pools: Mapping[str, Sequence[str]], spread: Spread
) -> pd.DataFrame:
    """Return every pair that a page or text quotes: a row a task, one named ``all`` for a suite's mean, one a pool.

    The unit is the prompt (the book, the problem). A suite's mean is over the tasks that full attention can do. A task
    that it cannot do keeps its row, without p-value and verdict. Two models (forks of one checkpoint) differ by their
    training too, so that one training of each tells nothing; of several, the interval holds their spread as well. Two
    variants on the same forks do not differ by training.

    Args:
        cells: scored samples.
        requests: pairs beside those with full attention.
        pools: by name, tasks whose mean is compared too.
        spread: confidence, bootstrap draws and seed.

    Raises:
        CellError: two sides were scored on different prompts.
    """
    cells = with_trainings(cells, requests)
    statuses = grouped.task_statuses(cells, spread)
    pairs = list(dict.fromkeys([*against_full(cells), *_requested(cells, requests)]))
    groups = [(a.task, [(a, b)]) for a, b in pairs] + list(means(pairs, cells, statuses, pools))
    rows = [row for task, members in groups if (row := _pair_row(members, task, cells, statuses, spread))]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"p_holm": float})
    for _, table in frame[frame["p"].notna()].groupby(_FAMILY, sort=False):
        frame.loc[table.index, "p_holm"] = stats.holm(table["p"].tolist())
    frame["verdict"] = [_verdict(row, spread) for row in frame.to_dict("records")]
    order = ["model", "suite", "task", "context", "batch", "b_model", "b"]
    return frame.sort_values(order, kind="stable", ignore_index=True)


def with_trainings(cells: Cells, requests: Iterable[PairRequest]) -> Cells:
    """Return the cells, and those of each mean over trainings that requests name: over those that ran, two or more.

    A sample there has the mean score, and the scores as its parts; the cell's model names the trainings.

    Raises:
        CellError: two trainings were scored on different prompts.
    """
    found = dict(cells)
    for name in sorted({name for r in requests for name in (r.a_model, r.b_model) if name and SEVERAL in name}):
        for place in dict.fromkeys(cell._replace(model=name) for cell in cells if cell.model in name.split(SEVERAL)):
            ran = {m: cells[here] for m in name.split(SEVERAL) if (here := place._replace(model=m)) in cells}
            if len(ran) < 2:
                continue
            first, *others = ran.values()
            for other in others:
                grouped.paired_units(first, other)
            found[place._replace(model=SEVERAL.join(ran))] = {
                sample: r.model_copy(update={"score": np.mean(scores), "parts": scores})
                for sample, r in first.items()
                if len(scores := [each[sample].score or 0.0 for each in ran.values() if sample in each]) == len(ran)
            }
    return found


def over_trainings(found: Interval, trainings: Sequence[Floats], confidence: float) -> tuple[Interval, float]:
    """Widen an interval over prompts to the one over trainings, where that is wider, and return the latter's p-value.

    Two trainings a side leave one or two degrees of freedom, three two to four. Trainings that agree widen nothing.

    Args:
        found: the value, a mean over trainings or a difference of two, with its interval over prompts.
        trainings: by side its values, ``[trainings]``; a checkpoint, which is not a training of ours, has one.
        confidence: of both intervals.
    """
    own, p = stats.student_interval(found.value, trainings, confidence)
    if math.isnan(own.low):
        return found, p
    return Interval(found.value, float(np.minimum(found.low, own.low)), float(np.maximum(found.high, own.high))), p


def against_full(cells: Cells) -> Iterator[CellPair]:
    """Yield every cell of another variant with the cell of full attention at the same place."""
    fulls = {cell[:5]: cell for cell, samples in cells.items() if grouped.method_of(samples) == REFERENCE_METHOD}
    for cell, samples in cells.items():
        if grouped.method_of(samples) != REFERENCE_METHOD and cell[:5] in fulls:
            yield cell, fulls[cell[:5]]


def _requested(cells: Cells, requests: Iterable[PairRequest]) -> Iterator[CellPair]:
    """Yield the pairs that requests ask for, at the same suite, task, context and batch."""
    places: dict[tuple[object, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        places[cell[1:5]].append(cell)
    for request in requests:
        for here in places.values():
            ours = [a for a in here if a.variant in request.a]  # looked for once: places have hundreds of cells
            yield from ((a, b) for a in ours for b in here if b.variant == request.b and _asked(request, a, b))


def _asked(request: PairRequest, a: Cell, b: Cell) -> bool:
    models = _is_of(a.model, request.a_model or a.model) and _is_of(b.model, request.b_model or a.model)
    return models and (request.any_budget or b.budget in (a.budget, "full"))


def _is_of(model: str, asked: str) -> bool:
    """True for the model asked for, or the mean over those of several trainings that ran."""
    several = SEVERAL in model and SEVERAL in asked
    return model == asked or (several and {*model.split(SEVERAL)} <= {*asked.split(SEVERAL)})


def means(
    pairs: Iterable[CellPair], cells: Cells, statuses: Statuses, pools: Mapping[str, Sequence[str]], fewest: int = 2
) -> Iterator[tuple[str, list[CellPair]]]:
    """Yield the pairs behind each mean: over a suite's tasks that full attention can do, and over each pool's.

    A pair of variants that lacks one of the tasks has no mean, as has a mean of fewer tasks than ``fewest``. Where full
    attention did not run on a model, its tasks are those of other models.
    """
    suites: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for place, status in statuses.items():
        if status != "baseline_fails":
            suites[place[:2] + place[3:]].add(place[2])
            suites[(None, *place[1:2], *place[3:])].add(place[2])
    groups: dict[CellPair, list[CellPair]] = defaultdict(list)
    for a, b in pairs:
        groups[a._replace(task=ALL_TASKS), b._replace(task=ALL_TASKS)].append((a, b))
    for (_, b), members in groups.items():
        if (suite := suites.get(b[:2] + b[3:5], suites.get((None, b[1], *b[3:5])))) is None:
            continue
        for name, wanted in {**{n: set(tasks) for n, tasks in pools.items()}, ALL_TASKS: suite}.items():
            kept = sorted(pair for pair in members if pair[0].task in wanted)
            kinds = {(r.unit, r.higher_is_better) for pair in kept for side in pair for r in cells[side].values()}
            if len(wanted) >= fewest and {a.task for a, _ in kept} == wanted and len(kinds) == 1:
                yield name, kept


def _pair_row(
    members: Sequence[CellPair], task: str, cells: Cells, statuses: Statuses, spread: Spread
) -> dict[str, Any] | None:
    """Return one row, or nothing where timeouts leave no sample that both sides have scored."""
    a, b = members[0]
    units = [grouped.paired_units(cells[ours], cells[theirs]) for ours, theirs in members]
    if not all(len(ours) for ours, _ in units):
        return None
    records = [r for pair in members for side in pair for r in cells[side].values()]
    points = records[0].unit == "fraction"
    scale, unit = (100.0, "points") if points else (1.0, records[0].unit)
    gaps = [ours - theirs for ours, theirs in units]
    identity = (spread.seed, task, *a, *b)
    found = stats.paired_interval(gaps, grouped.is_bounded(records), spread, generator("interval", *identity))
    p = stats.sign_flip_p(gaps, spread.resamples, generator("p", *identity))
    status: TaskStatus | Literal["one_training"] = statuses.get(b[:5], "ok") if len(members) == 1 else "ok"
    if a.model != b.model and SEVERAL in a.model + b.model:
        trainings = [_by_training(side, cells) for side in zip(*members, strict=True)]
        found, of_trainings = over_trainings(found, trainings, spread.confidence)
        p = max(p, of_trainings)
    elif a.model != b.model and status != "baseline_fails":
        status = "one_training"
    a_value, b_value = (scale * float(stats.mean_of_groups(*side)) for side in zip(*units, strict=True))
    return a._asdict() | {
        "a": a.variant, "b": b.variant, "b_model": b.model, "task": task, "b_budget": b.budget,
        "n": sum(map(len, gaps)), "a_value": a_value, "b_value": b_value,
        "difference": scale * found.value, "low": scale * found.low, "high": scale * found.high, "unit": unit,
        "better": "higher" if records[0].higher_is_better else "lower", "margin": stats.MARGINS.get(unit),
        "p": np.nan if status == "baseline_fails" else p, "status": status,
        "revision": "; ".join(sorted({r.provenance.short_revision for r in records})),
    }  # fmt: skip


def _by_training(side: Sequence[Cell], cells: Cells) -> Floats:
    """Return a side's mean over tasks by training, ``[trainings]``."""

    def scores(cell: Cell) -> list[list[float]]:
        return [(r.parts if SEVERAL in cell.model else None) or [r.score or 0.0] for r in cells[cell].values()]

    return np.asarray(np.mean([np.mean(scores(cell), axis=0) for cell in side], axis=0))


def _verdict(row: Mapping[Any, Any], spread: Spread) -> stats.Verdict | None:
    """Return a row's verdict; none on a task that full attention cannot do."""
    if row["status"] == "baseline_fails":
        return None
    if row["status"] == "one_training":
        return "cannot tell"
    higher, margin = row["better"] == "higher", stats.MARGINS.get(row["unit"])
    return stats.judge(row["low"], row["high"], row["p_holm"], margin, higher, row["n"], 1 - spread.confidence)


def pareto_table(cells: Cells, timed: Iterable[SpeedRecord], spread: Spread) -> pd.DataFrame:
    """Return a row for each variant that was scored and timed with the same parameters, budget and context.

    Steps of a shape with random weights stand beside each model's losses, whatever the parameters: roles, say, are a
    model's own. Rows of one model, suite, context, timed model and batch are rivals; full attention (no loss, 1 time
    as fast) is one.
    ``front_share`` is the share of bootstrap draws in which no other is as good at both and better at one. A draw
    resamples prompts, the same for all rivals, and timed rounds. A suite stands as its mean, or as its only task.

    Args:
        cells: scored samples.
        timed: speed records of the same run.
        spread: the seed of the draws.
    """
    speeds: dict[object, list[tuple[str, int, Floats]]] = defaultdict(list)
    for r in timed:
        is_step = r.bench == "decode" and r.stage == "step" and r.reference == REFERENCE_METHOD
        if is_step and len(ratios := grouped.clean_ratios(r)):
            speeds[_setup(r, r.weights == "random")].append((r.model, r.batch, ratios))
    places: dict[tuple[Any, ...], list[tuple[dict[str, Any], Floats, Floats]]] = defaultdict(list)
    for _, members in means(against_full(cells), cells, grouped.task_statuses(cells, spread), {}, fewest=1):
        cell, first = members[0][0], next(iter(cells[members[0][0]].values()))
        for steps_of, batch, ratios in (*speeds[_setup(first)], *speeds[_setup(first, shape=True)]):
            sign = -1.0 if first.higher_is_better else 1.0
            scale, unit = (100 * sign, "points") if first.unit == "fraction" else (sign, first.unit)
            gaps, losses = drawn_differences(members, cells, spread)
            rng = generator(spread.seed, "front speed", *cell, batch)
            drawn = np.median(ratios[rng.integers(len(ratios), size=(DRAWS, len(ratios)))], axis=1)
            row = cell._asdict() | {
                "task": cell.task if len(members) == 1 else ALL_TASKS, "batch": batch, "unit": unit,
                "n": sum(map(len, gaps)), "loss": scale * stats.mean_of_groups(*gaps),
                "budget_tokens": first.budget_tokens, "steps_of": steps_of, "times_full": np.median(ratios),
            }  # fmt: skip
            places[cell.model, cell.suite, cell.context, steps_of, batch].append(
                (row, scale * losses.mean(axis=0), drawn)
            )
    rows = []
    for rivals in places.values():
        found, losses, times = zip(*rivals, strict=True)
        shares = stats.front_shares(np.array([np.zeros(DRAWS), *losses]), np.array([np.ones(DRAWS), *times]))
        rows += [row | {"front_share": share} for row, share in zip(found, shares[1:], strict=True)]
    return pd.DataFrame(rows, columns=list(PARETO_COLUMNS)).astype({"budget_tokens": "Int64"})


def _setup(r: BaseRecord, shape: bool = False) -> tuple[object, ...]:
    """Return what must be the same where a variant is scored and where it is timed, on the model or on a shape."""
    return (r.variant, r.context, r.budget_tokens, *(() if shape else (r.model, str(r.params))))


def drawn_differences(members: Sequence[CellPair], cells: Cells, spread: Spread) -> tuple[list[Floats], Floats]:
    """Return the paired differences of each task, and bootstrap draws of their means, ``[tasks, draws]``.

    A draw depends on task and number of prompts alone, so that rivals share their prompts.
    """
    gaps = [np.subtract(*grouped.paired_units(cells[a], cells[b])) for a, b in members]
    drawn = []
    for (a, _), gap in zip(members, gaps, strict=True):
        rng = generator(spread.seed, "front", a.task, a.context, len(gap))
        drawn.append(gap[rng.integers(len(gap), size=(DRAWS, len(gap)))].mean(axis=1))
    return gaps, np.array(drawn)


def ranks_table(cells: Cells, spread: Spread) -> pd.DataFrame:
    """Return a row for each variant and budget of a suite of several tasks: its ranks by mean and by worst task.

    All variants and budgets of one model and context are rivals. A draw resamples prompts, the same for all. Ranks are
    ranges: two rows have ranks apart only where their difference is proven, corrected over all pairs. ``bytes_share``
    is what a step reads of the cache, the selector's bytes included, over what Full reads.

    Args:
        cells: scored samples.
        spread: confidence, and the seed of the draws.
    """
    rows = []
    for (model, suite, context), rivals in _places(cells, spread).items():
        losses = [_losses(members, cells, spread) for members in rivals]
        drawn = np.array([each for _, each in losses])  # [variants, tasks, draws]
        by = (drawn.mean(axis=1), drawn.max(axis=1))
        ranks = (np.transpose(stats.rank_ranges(each, 1 - spread.confidence)) for each in by)
        for members, (lost, _), by_mean, by_worst in zip(rivals, losses, *ranks, strict=True):
            cell, worst = members[0][0], members[int(np.argmax(lost))][0].task
            ours, full = (_bytes_read(side, cells) for side in zip(*members, strict=True))
            key = (model, suite, context, cell.variant, cell.budget, len(members))
            rows.append((*key, ours / full if full else np.nan, *by_mean, worst, *by_worst))
    return pd.DataFrame(rows, columns=list(RANK_COLUMNS))


def _places(cells: Cells, spread: Spread) -> Mapping[tuple[Any, ...], list[list[CellPair]]]:
    """Return by model, suite and context the pairs with Full of each variant that ran all telling tasks."""
    places = defaultdict[tuple[Any, ...], list[list[CellPair]]](list)
    for _, members in means(against_full(cells), cells, grouped.task_statuses(cells, spread), {}):
        places[members[0][0].model, members[0][0].suite, members[0][0].context].append(members)
    return {place: rivals for place, rivals in places.items() if len({len(members) for members in rivals}) == 1}


def _losses(members: list[CellPair], cells: Cells, spread: Spread) -> tuple[Floats, Floats]:
    """Return the losses to Full, ``[tasks]``, and their draws, ``[tasks, draws]``."""
    first = next(iter(cells[members[0][0]].values()))
    scale = (-1.0 if first.higher_is_better else 1.0) * (100.0 if first.unit == "fraction" else 1.0)
    gaps, drawn = drawn_differences(members, cells, spread)
    return scale * np.array([gap.mean() for gap in gaps]), scale * drawn


def _bytes_read(side: tuple[Any, ...], cells: Cells) -> float:
    """Return the mean bytes of the cache that a step of these cells reads, the selector's included."""
    return float(np.mean([sum(r.measures.get(b, 0.0) for b in _BYTES) for c in side for r in cells[c].values()]))


def orders_table(path: Path, cells: Cells, profile: str, spread: Spread) -> pd.DataFrame:
    """Return a row for each pair of methods that a source prints an order of, where this run scored both.

    ``share`` of the draws has the first lose less here. The order is the ``same`` where 97.5 % have, ``reversed`` where
    at most 2.5 % have, else one ``cannot tell``.

    Args:
        path: the declared orders, best first, and the run, context and budget that stand beside them.
        cells: scored samples.
        profile: the run's name.
        spread: the seed of the draws.
    """
    declared = yaml.safe_load(path.read_text(encoding="utf-8"))
    here = _places(cells, spread) if declared["run"] == profile else {}
    return pd.DataFrame(_orders(declared, here, cells, spread), columns=list(ORDER_COLUMNS))


def _orders(
    declared: Mapping[str, Any], here: Mapping[tuple[Any, ...], list[list[CellPair]]], cells: Cells, spread: Spread
) -> Iterator[tuple[Any, ...]]:
    for name, source in declared["sources"].items():
        place = source["suite"], declared["context"], declared["budget"]
        scored = {
            members[0][0].variant: members
            for (_, suite, context), rivals in here.items()
            for members in rivals
            if (suite, context, members[0][0].budget) == place
        }
        for a, b in combinations([method for method in source["printed"] if method in scored], 2):
            (ours, drawn), (theirs, others) = (_losses(scored[method], cells, spread) for method in (a, b))
            share = float((drawn.mean(axis=0) < others.mean(axis=0)).mean())
            outcome = "same" if share >= 0.975 else "reversed" if share <= 0.025 else "cannot tell"
            n = sum(len(cells[cell]) for cell, _ in scored[a])
            printed = (source["printed"][a], source["printed"][b])
            yield name, a, b, *printed, *place, n, ours.mean(), theirs.mean(), share, outcome
