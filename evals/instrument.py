"""Is the miniature a working instrument? Checks on a run's own records, with their numbers, before its tables count."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from longdecode.engine.errors import GateError
from longdecode.evals.budgets import token_share
from longdecode.evals.manifest import seal
from longdecode.evals.record_files import record_files
from longdecode.evals.records import Record
from longdecode.evals.run_config import InstrumentSpec, RunConfig
from longdecode.evals.store import read_records, replacing
from longdecode.evals.tasks.registry import folder_of, suite_names, suite_tasks

LOOKUP_SUITES = ("mini_recall", "mini_longgen")
SOLVED_SUITES = ("mini_recall", "mini_longgen", "mini_reason")

Outcome = Literal["passed", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what must hold, whether it does, and the numbers that say so."""

    name: str
    requires: str
    outcome: Outcome
    numbers: dict[str, Any] = field(default_factory=dict)


def check_instrument(config: RunConfig, records_dir: Path, output: Path) -> None:
    """Run every check over the records of a run and write the outcomes as JSON.

    A check whose cells the run does not have is written as ``not run``; it neither passes nor fails.

    Args:
        config: the run; thresholds and budgets are under its key ``instrument``.
        records_dir: folder of the run's parquet files.
        output: the JSON file, written whole or not at all, whether or not checks fail.

    Raises:
        GateError: a check failed; the message lists each failure with its numbers.
    """
    # Earlier configurations of the profile may have left records of labels or suites that this one no longer has.
    paths = [file.path(records_dir) for file in record_files(config)]
    records = [record for path in paths if path.exists() for record in read_records(path, Record)]
    checks = {model: run_checks(config.instrument, [r for r in records if r.model == model]) for model in config.models}
    failures = [(model, check) for model in checks for check in checks[model] if check.outcome == "failed"]
    content = {
        "passed": not failures,
        "thresholds": asdict(config.instrument),
        "checks": [{"model": model, **asdict(check)} for model in checks for check in checks[model]],
    }
    _write_json(output, content)
    seal(output.parent, [output])
    if failures:
        lines = [f"  {model}: {check.name}: {check.requires}; got {check.numbers}" for model, check in failures]
        raise GateError("\n".join([f"{len(failures)} instrument checks failed (see {output}):", *lines]))


def run_checks(spec: InstrumentSpec, records: Sequence[Record]) -> list[Check]:
    """Every check over one model's records."""
    ok = [record for record in records if record.status == "ok"]
    return [
        *_full_solves(spec, records),
        *_streaming_fails(spec, ok),
        *_quest_rises(spec, ok),
        _quest_falls_along(spec, ok),
        _loss_falls_with_context(spec, ok),
    ]


def _full_solves(spec: InstrumentSpec, records: Sequence[Record]) -> list[Check]:
    """Full attention solves each task at each length: what a method then loses is the method's loss.

    That holds for tasks with one right answer, and for others where ``full_min_by_task`` names a threshold.
    """
    full = [record for record in records if record.variant == spec.full_label]
    solved = {task: task for suite in SOLVED_SUITES for task in suite_tasks(suite)}
    for suite in suite_names():  # the same questions under their other protocol
        if (folder := folder_of(suite)[0]) in SOLVED_SUITES and folder != suite:
            solved |= dict(zip(suite_tasks(suite), suite_tasks(folder), strict=True))
    checks = []
    for task in dict.fromkeys((*solved, *spec.full_min_by_task)):
        own = spec.full_min_by_task.get(solved.get(task, task), spec.full_min)
        least = spec.full_min_by_task.get(task, own)
        requires = f"{spec.full_label} scores at least {least}"
        asked = [record for record in full if record.task == task and record.unit == "fraction"]
        for context in sorted({record.context for record in asked}):
            cell = [record for record in asked if record.context == context]
            name = f"full_solves/{task}/{context}"
            scores = _scores(cell)
            if not scores:
                checks.append(Check(name, requires, "not run", {"status": cell[0].status, "reason": cell[0].reason}))
                continue
            checks.append(_check(name, requires, fmean(scores) >= least, score=fmean(scores), n=len(scores)))
    return checks or [Check("full_solves", f"{spec.full_label} scores at least {spec.full_min}", "not run")]


def _streaming_fails(spec: InstrumentSpec, ok: Sequence[Record]) -> list[Check]:
    """Sinks and recent tokens alone do not answer look-ups: the answers are in the middle, so selection is needed.

    The look-up tasks of a context are averaged: a needle drawn at random lies in the recent window now and then.
    """
    requires = f"{spec.streaming_label} at budget {spec.streaming_budget} scores under {spec.streaming_max} on look-ups"
    cells = [
        record
        for record in ok
        if record.variant == spec.streaming_label
        and record.suite in LOOKUP_SUITES
        and _fraction(record) == spec.streaming_budget
    ]
    checks = []
    for context in sorted({record.context for record in cells}):
        by_task = _means((record.task, record) for record in cells if record.context == context)
        mean = fmean(by_task.values())
        checks.append(
            _check(f"streaming_fails/{context}", requires, mean < spec.streaming_max, score=mean, by_task=by_task)
        )
    return checks or [Check("streaming_fails", requires, "not run")]


def _quest_rises(spec: InstrumentSpec, ok: Sequence[Record]) -> list[Check]:
    """A larger budget helps a selecting method: no step down at any context, and a gain over all of them."""
    cells = [
        record
        for record in ok
        if record.variant == spec.quest_label and record.suite == "mini_longgen" and _fraction(record) is not None
    ]
    requires = f"{spec.quest_label} never falls by more than {spec.rise_tolerance} from one budget to the next"
    gains = f"{spec.quest_label} scores more at the largest budget than at the smallest, over all contexts"
    if len({record.budget for record in cells}) < 2:
        return [Check("quest_rises", requires, "not run"), Check("quest_gains", gains, "not run")]
    checks = []
    for context in sorted({record.context for record in cells}):
        curve = _curve(record for record in cells if record.context == context)
        scores = list(curve.values())
        steady = all(later >= earlier - spec.rise_tolerance for earlier, later in pairwise(scores))
        checks.append(_check(f"quest_rises/{context}", requires, steady, by_budget=curve))
    curve = _curve(cells)
    scores = list(curve.values())
    return [*checks, _check("quest_gains", gains, scores[-1] > scores[0], by_budget=curve)]


def _quest_falls_along(spec: InstrumentSpec, ok: Sequence[Record]) -> Check:
    """At a tight budget errors grow along the generation, which is what long generation is there to show."""
    name = "quest_falls_along_the_generation"
    requires = (
        f"at some budget up to {spec.fall_budget_max}, {spec.quest_label} on {spec.fall_task} answers the first third"
        " of the questions better than the last"
    )
    thirds: dict[str, list[float]] = {}
    cells = [record for record in ok if record.variant == spec.quest_label and record.task == spec.fall_task]
    for budget in _budgets(cells):
        marks = [record.parts for record in cells if _fraction(record) == budget and record.parts]
        if marks and budget <= spec.fall_budget_max:
            thirds[str(budget)] = [fmean(mark for parts in marks for mark in _third(parts, i)) for i in range(3)]
    if not thirds:
        return Check(name, requires, "not run")
    return _check(name, requires, any(first > last for first, _, last in thirds.values()), by_thirds=thirds)


def _loss_falls_with_context(spec: InstrumentSpec, ok: Sequence[Record]) -> Check:
    """The later in a narrative, the more of its facts have been told: a model that uses its context loses less."""
    name = "loss_falls_with_position"
    requires = (
        f"{spec.full_label}'s loss on {spec.loss_task} is lower after the longest context than after the shortest"
    )
    cells = [record for record in ok if record.variant == spec.full_label and record.task == spec.loss_task]
    losses = {str(context): loss for context, loss in sorted(_means((r.context, r) for r in cells).items())}
    if len(losses) < 2:
        return Check(name, requires, "not run", {"by_context": losses})
    in_order = list(losses.values())
    return _check(name, requires, in_order[-1] < in_order[0], by_context=losses)


def _check(name: str, requires: str, holds: bool, **numbers: Any) -> Check:
    return Check(name, requires, "passed" if holds else "failed", numbers)


def _fraction(record: Record) -> float | None:
    """The budget as a fraction of the context, where the configuration gave it as one."""
    return token_share(record.budget)


def _budgets(records: Iterable[Record]) -> list[float]:
    return sorted({fraction for record in records if (fraction := _fraction(record)) is not None})


def _curve(records: Iterable[Record]) -> dict[str, float]:
    """Mean score by fractional budget, smallest first."""
    cells = list(records)
    means = _means((_fraction(record), record) for record in cells)
    return {str(budget): means[budget] for budget in _budgets(cells)}


def _means(keyed: Iterable[tuple[Any, Record]]) -> dict[Any, float]:
    groups: dict[Any, list[Record]] = {}
    for key, record in keyed:
        groups.setdefault(key, []).append(record)
    return {key: fmean(_scores(group)) for key, group in groups.items()}


def _scores(records: Iterable[Record]) -> list[float]:
    return [record.score for record in records if record.score is not None]


def _third(parts: Sequence[float], index: int) -> Sequence[float]:
    return parts[len(parts) * index // 3 : len(parts) * (index + 1) // 3]


def _write_json(path: Path, content: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
