"""Dependence: answers to one prompt stand and fall together, so an interval that counts each of them is too short.

The clusters of a suite are its prompts: 45 look-ups over one text are one cluster. Intervals resample whole prompts;
where fewer than ``MIN_OFF_EDGE`` prompts differ, at the edge, they count answers. Here those answers are thinned by the
design effect that the task's other cells show, as the edge itself shows none.

Source: Kish 1965, section 8.2 (design effect).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from longdecode.evals import stats
from longdecode.evals.records import Record
from longdecode.evals.summary import ALL_TASKS, REFERENCE_METHOD, Cell, Spread, scores_of
from longdecode.reporting import wording
from longdecode.reporting.flips import Place
from longdecode.reporting.solved import MARGIN

Effects = Mapping[tuple[str, str], float]
"""Design effect by model and task."""
Pair = tuple[stats.Scores, stats.Scores]
Topics = tuple[str, str, str, int]
"""Model, suite, task (or ``all``), context."""
_MOST_SAMPLES = 1 << 20


@dataclass(frozen=True, slots=True)
class TooFew:
    """Samples of a cell that cannot show equality at the margin, even where no answer differs from Full's.

    Args:
        samples: samples of the cell.
        half_width: half the interval of a difference of 0, as a share.
        needed: samples with which it would fit the margin.
    """

    samples: int
    half_width: float
    needed: int

    @property
    def words(self) -> str:
        """``n too small: 32 samples give ±10.7 points, 189 needed``."""
        points = wording.number(100 * self.half_width, 1)
        return f"n too small: {self.samples:,} samples give ±{points} points, {self.needed:,} needed"


@dataclass(frozen=True, slots=True)
class Dependence:
    """Hold what dependent answers come to in a run.

    Args:
        effects: design effect of each task whose samples have several answers.
        bounds: interval of the difference to Full of each cell at the edge, with answers thinned.
        too_few: topics and contexts with too few samples.
    """

    effects: Effects = field(default_factory=dict)
    bounds: Mapping[Place, tuple[float, float]] = field(default_factory=dict)
    too_few: Mapping[Topics, TooFew] = field(default_factory=dict)


def dependence(records: Iterable[Record], spread: Spread) -> Dependence:
    """Measure the dependence of a run's answers.

    Args:
        records: all of the run; those that are neither right nor wrong play no part.
        spread: parameters of the summary's intervals.
    """
    cells: dict[Cell, list[Record]] = defaultdict(list)
    unmarked = set()
    for r in records:
        if r.status == "ok":
            cells[Cell(r.model, r.suite, r.context, r.batch, r.budget, r.variant, r.task)].append(r)
            unmarked |= set() if _is_marked(r) else {(r.model, r.task)}
    marked = {cell: rows for cell, rows in cells.items() if (cell.model, cell.task) not in unmarked}
    effects = _effects(marked)
    under_full = {(cell.place, cell.task): rows for cell, rows in cells.items() if rows[0].method == REFERENCE_METHOD}
    wholes: dict[Cell, list[Pair]] = {}
    for cell, rows in sorted(marked.items()):
        full = under_full.get((cell.place, cell.task))
        if full is not None and (pair := _pair(rows, full, effects.get((cell.model, cell.task), 1.0))):
            wholes[cell] = [pair]
            wholes.setdefault(cell._replace(task=ALL_TASKS), []).append(pair)
    tasks = Counter(place for place, _ in under_full)
    bounds: dict[Place, tuple[float, float]] = {}
    too_few: dict[Topics, TooFew] = {}
    for cell, pairs in wholes.items():
        edges = [_at_edge(pair) for pair in pairs]
        if cell.task == ALL_TASKS and (len(pairs) == 1 or len(pairs) < tasks[cell.place]):
            continue
        if cell.budget == "full":
            if found := _too_few(pairs, spread):
                too_few[cell.model, cell.suite, cell.task, cell.context] = found
        elif any(edges):
            # At the edge of every task no interval is drawn.
            resamples, rng = (1 if all(edges) else spread.resamples), stats.generator(spread.seed, "difference", *cell)
            gap = stats.paired_difference(pairs, spread.confidence, resamples, rng)
            bounds[cell.model, cell.suite, cell.task, cell.label, cell.budget, cell.context] = gap.low, gap.high
    return Dependence(effects, bounds, too_few)


def design_effect(scores: stats.Scores) -> float | None:
    """Return the variance of a mean over that of as many independent answers; ``None`` at the edge."""
    values, trials = scores.values, scores.trials
    if trials is None or min(int(np.count_nonzero(values != edge)) for edge in (0, 1)) < stats.MIN_OFF_EDGE:
        return None
    value, total = float(values.mean()), float(trials.sum())
    return float(values.var(ddof=1)) / len(values) * total / (value * (1 - value))


def _effects(cells: Mapping[Cell, Sequence[Record]]) -> dict[tuple[str, str], float]:
    """Return the mean over the cells of a task that show an effect; answers are at best independent."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for cell, rows in cells.items():
        if max(len(r.parts or ()) for r in rows) > 1 and (effect := design_effect(scores_of(rows))) is not None:
            found[cell.model, cell.task].append(effect)
    return {case: max(1.0, float(np.mean(effects))) for case, effects in found.items()}


def _is_marked(record: Record) -> bool:
    """Tell whether a record's answers are right or wrong."""
    marks = {*(record.parts or ()), *(() if record.parts else (record.score,))}
    return record.unit == "fraction" and record.higher_is_better and marks <= {0.0, 1.0}


def _pair(ours: Sequence[Record], reference: Sequence[Record], effect: float) -> Pair | None:
    """Return both sides' scores on the samples that they share, their answers thinned."""
    theirs = {(r.seed, r.sample_index): r for r in reference}
    mine = {key: r for r in ours if (key := (r.seed, r.sample_index)) in theirs}
    keys = sorted(mine)
    return (
        (_thinned([mine[key] for key in keys], effect), _thinned([theirs[key] for key in keys], effect))
        if keys
        else None
    )


def _thinned(records: Sequence[Record], effect: float) -> stats.Scores:
    """Return scores whose answers count as ``1 / effect`` each; a prompt counts as one answer at least."""
    scores = scores_of(records)
    trials: Any = scores.trials
    return replace(scores, trials=None if trials is None else np.maximum(trials / effect, 1.0))


def _at_edge(pair: Pair) -> bool:
    differing = pair[0].clusters[pair[0].values != pair[1].values]
    return len(np.unique(differing)) < stats.MIN_OFF_EDGE


def _too_few(pairs: Sequence[Pair], spread: Spread) -> TooFew | None:
    """Return the half-width of Full against itself where it is wider than the margin, and what would be enough."""

    def half_width(factor: float) -> float:
        grown = [(full, full) for full, _ in (_repeated(pair, factor) for pair in pairs)]
        found = stats.paired_difference(grown, spread.confidence, 1, stats.generator(0))
        return float(-found.low)

    def samples(factor: float) -> int:
        return sum(round(factor * len(full.values)) for full, _ in pairs)

    if (half := half_width(1.0)) <= MARGIN:
        return None
    low, high = 1.0, 2.0
    while half_width(high) > MARGIN and samples(high) < _MOST_SAMPLES:
        low, high = high, 2 * high
    while samples(high) - samples(low) > len(pairs):
        middle = (low + high) / 2
        low, high = (middle, high) if half_width(middle) > MARGIN else (low, middle)
    return TooFew(samples(1.0), half, samples(high))


def _repeated(pair: Pair, factor: float) -> Pair:
    """Return a pair's samples over again until there are ``factor`` times as many."""
    count = round(factor * len(pair[0].values))
    clusters = np.arange(count, dtype=np.int64)
    return tuple(  # type: ignore[return-value]
        stats.Scores(
            np.resize(side.values, count), clusters, None if side.trials is None else np.resize(side.trials, count)
        )
        for side in pair
    )
