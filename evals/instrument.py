"""Checks that tell whether the miniature is a working instrument: on a run's records, before its tables count."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import pandas as pd

from longdecode.evals.budgets import token_share
from longdecode.evals.records import Record
from longdecode.evals.run_config import RunConfig, record_files
from longdecode.evals.specs import InstrumentSpec
from longdecode.evals.store import read_records, write_text
from longdecode.evals.tasks.registry import folder_of

LOOKUP_SUITES = ("mini_recall", "mini_longgen")
SOLVED_SUITES = (*LOOKUP_SUITES, "mini_reason")
STREAMING_MAX, RISE_TOLERANCE = 0.15, 0.02
_COLUMNS = ["suite", "task", "context", "variant", "budget", "unit", "status", "reason", "score"]

CheckOutcome = Literal["passed", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what must hold, whether it does, and the numbers that say so."""

    name: str
    requires: str
    outcome: CheckOutcome
    numbers: dict[str, Any] = field(default_factory=dict)


def check_instrument(config: RunConfig, records_dir: Path, output: Path) -> None:
    """Run every check over the records of a run and write the outcomes as JSON.

    A check whose cells the run does not have is written as ``not run``; it neither passes nor fails.

    Args:
        config: the run; thresholds are under its key ``instrument``.
        records_dir: folder of the run's parquet files.
        output: the JSON file, written whether or not checks fail; the report's stage ends a run where one did.
    """
    # Earlier configurations of the profile may have left records of variants or suites that this one no longer has.
    paths = [file.path(records_dir) for file in record_files(config)]
    records = [record for path in paths if path.exists() for record in read_records(path, Record)]
    found = {model: run_checks(config.instrument, [r for r in records if r.model == model]) for model in config.models}
    checks = [{"model": model, **asdict(check)} for model, own in found.items() for check in own]
    passed = all(check["outcome"] != "failed" for check in checks)
    content = {"passed": passed, "thresholds": asdict(config.instrument), "checks": checks}
    write_text(output, json.dumps(content, indent=1) + "\n")


def run_checks(spec: InstrumentSpec, records: Sequence[Record]) -> list[Check]:
    """Every check over one model's records."""
    frame = pd.DataFrame([[getattr(r, name) for name in _COLUMNS] for r in records], columns=_COLUMNS)
    frame["share"] = frame["budget"].map(token_share).astype(float)
    by_variant = {name: frame[frame["variant"] == name] for name in ("full", "streaming", "quest")}
    quest = by_variant["quest"][by_variant["quest"]["status"] == "ok"]
    return [
        *_full_solves(spec, by_variant["full"]),
        *_streaming_fails(spec.streaming_budget, by_variant["streaming"]),
        *_quest_rises(quest[quest["suite"] == "mini_longgen"]),
    ]


def _full_solves(spec: InstrumentSpec, full: pd.DataFrame) -> Iterator[Check]:
    """Full attention solves each task at each length: what a method then loses is the method's loss.

    That holds for tasks with one right answer, under either protocol, and for others where ``full_min_by_task`` names a
    threshold.
    """
    asked = []
    cells: Any = full[full["unit"] == "fraction"].groupby(["suite", "task", "context"])
    for (suite, task, context), cell in cells:
        folder, question = folder_of(suite)
        own = task.removesuffix(f"_{question}")
        named = [spec.full_min_by_task[name] for name in (task, own) if name in spec.full_min_by_task]
        if named or folder in SOLVED_SUITES:
            least, score, n = (*named, spec.full_min)[0], cell["score"].mean(), int(cell["score"].count())
            numbers = {"score": score, "n": n} if n else dict(cell.iloc[0][["status", "reason"]])
            holds = score >= least if n else None
            asked.append(_check(f"full_solves/{task}/{context}", f"full scores at least {least}", holds, **numbers))
    yield from asked or [_check("full_solves", f"full scores at least {spec.full_min}", None)]


def _streaming_fails(budget: float, streaming: pd.DataFrame) -> Iterator[Check]:
    """Sinks and recent tokens alone do not answer look-ups: the answers are in the middle, so selection is needed.

    The look-up tasks of a context are averaged: a needle drawn at random lies in the recent window now and then.
    """
    requires = f"streaming at budget {budget} scores under {STREAMING_MAX} on look-ups"
    asked = streaming[streaming["suite"].isin(LOOKUP_SUITES) & (streaming["share"] == budget)]
    if asked.empty:
        yield _check("streaming_fails", requires, None)
    for context, cells in asked.groupby("context"):
        by_task = cells.groupby("task")["score"].mean().to_dict()
        score = fmean(by_task.values())
        yield _check(f"streaming_fails/{context}", requires, score < STREAMING_MAX, score=score, by_task=by_task)


def _quest_rises(quest: pd.DataFrame) -> Iterator[Check]:
    """A larger budget helps a selecting method: no step down at any context, and a gain over all of them."""
    requires = f"quest never falls by more than {RISE_TOLERANCE} from one budget to the next"
    gains = "quest scores more at the largest budget than at the smallest, over all contexts"
    curve = _by_share(quest)
    if len(curve) < 2:
        yield from (_check("quest_rises", requires, None), _check("quest_gains", gains, None))
        return
    for context, cells in quest.groupby("context"):
        scores = _by_share(cells)
        steady = all(later >= earlier - RISE_TOLERANCE for earlier, later in pairwise(scores.values()))
        yield _check(f"quest_rises/{context}", requires, steady, by_budget=scores)
    first, *_, last = curve.values()
    yield _check("quest_gains", gains, last > first, by_budget=curve)


def _by_share(cells: pd.DataFrame) -> dict[str, float]:
    """Mean score by budget, smallest first."""
    return {str(key): float(mean) for key, mean in cells.groupby("share")["score"].mean().dropna().items()}


def _check(name: str, requires: str, holds: bool | None, **numbers: Any) -> Check:
    return Check(name, requires, "not run" if holds is None else "passed" if holds else "failed", numbers)
