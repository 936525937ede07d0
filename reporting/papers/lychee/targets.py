"""Targets that were set for this paper: those of speed from targets.yaml, those of quality from the records."""

from __future__ import annotations

from collections.abc import Sequence

from longdecode.evals import stats
from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import Block, Prose, Targets
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.lychee import heads
from longdecode.reporting.papers.lychee.common import (
    METHOD,
    SUITES,
    WORDS,
    contexts_of,
    full_of,
    hole,
    label_of,
    main_budget,
    points_interval,
    points_text,
    records_of,
    resamples,
)
from longdecode.reporting.speed.targets import Verdict
from longdecode.reporting.wording import DASH

NEAR_FULL = -1.0


def blocks(inputs: PaperInputs) -> list[Block]:
    """One table of every target, absent ones too."""
    rows = [*inputs.targets, *_quality(inputs)]
    found: list[Block] = [Prose(WORDS["targets"]["text"]), Targets(rows)]
    missing = not inputs.targets or any(row.level == "absent" for row in rows)
    return [*found, hole(inputs, "Some targets have no number in this run.", "all")] if missing else found


def _quality(inputs: PaperInputs) -> list[Verdict]:
    models = [model for model in inputs.results.models if label_of(inputs, METHOD, model)]
    model = "miniature" if "miniature" in models else next(iter(models), None)
    found = []
    for longest in (False, True):
        where = "longest context of each suite" if longest else "all contexts"
        found.append(_roles(inputs, model, longest, where))
        found.append(_near_full(inputs, model, longest, where))
    return sorted(found, key=lambda row: row.what)


def _roles(inputs: PaperInputs, model: str | None, longest: bool, where: str) -> Verdict:
    """HardKuma's roles against random ones of equal count: the interval must lie above 0."""
    one = None if model is None else heads.ablation(inputs, model, longest)
    budget = "10 %" if one is None else wording.budget(one.budget)
    what = f"Miniature, {' and '.join(SUITES)}, {budget}: HardKuma roles minus random ones, {where}"
    gap = heads.gap(inputs, one, heads.RANDOM, one.data[0]) if one is not None and one.data else None
    if gap is None:
        return Verdict(what, "interval > 0", DASH, DASH, "", "absent", "not measured")
    words = "met" if gap.low > 0 else "missed"
    return Verdict(what, "interval > 0", DASH, *_shown(gap), words, words)


def _near_full(inputs: PaperInputs, model: str | None, longest: bool, where: str) -> Verdict:
    """The method minus Full at the budget nearest to a tenth; a stretch target alone."""
    goal = f"≥ {wording.number(NEAR_FULL, 0)} point"
    found = None if model is None else _to_full(inputs, model, longest)
    budget = "10 %" if found is None else wording.budget(found[0])
    what = f"Miniature, {' and '.join(SUITES)}, {budget}: {METHOD} minus Full, {where}"
    if found is None:
        return Verdict(what, "shown", goal, DASH, "", "absent", "not measured")
    near = 100 * found[1].value >= NEAR_FULL
    return Verdict(
        what, "shown", goal, *_shown(found[1]), *(("stretch", "stretch target met") if near else ("met", "shown"))
    )


def _to_full(inputs: PaperInputs, model: str, longest: bool) -> tuple[str, stats.Difference] | None:
    label = label_of(inputs, METHOD, model)
    records = []
    for suite in SUITES:
        contexts: Sequence[int] = contexts_of(inputs, model, suite)
        records += records_of(inputs, model, [suite], contexts[-1:] if longest else contexts)
    full = full_of(records)
    mine = [r for r in records if r.label == label]
    budget = main_budget(sorted({r.budget for r in mine}))
    if not full or budget is None:
        return None
    ours = pairs.scored([r for r in mine if r.budget == budget])
    gap = pairs.difference(ours, full, inputs.results.confidence, resamples(inputs), model, "to full", budget, longest)
    return budget, gap


def _shown(gap: stats.Difference) -> tuple[str, str]:
    return f"{points_text(gap.value)} points", points_interval(gap.low, gap.high)
