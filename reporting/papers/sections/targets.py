"""List every target of a paper: those of speed from targets.yaml, those of quality from paired differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import Block, Cells, Prose, Targets, points_interval, points_text
from longdecode.reporting.papers.inputs import PaperInputs, full_of, main_budget
from longdecode.reporting.speed.targets import Verdict
from longdecode.reporting.wording import DASH, budget, number


@dataclass(frozen=True, slots=True)
class Gap:
    """A paired difference at one budget."""

    budget: str
    paired: pairs.Paired


@dataclass(frozen=True, slots=True)
class QualityTarget:
    """A target on a difference of scores, in points.

    Args:
        what: the row's words; ``{suites}``, ``{budget}`` and ``{where}`` are filled in.
        gap: the difference on a model, at all contexts or (``True``) at the longest of each suite.
        target: what the difference must reach; ``None`` sets no target but to be shown.
        stretch: a stricter limit; it counts only where the target is met too.
        sure: the whole interval must lie beyond the target, not the difference alone.
    """

    what: str
    gap: Callable[[PaperInputs, str, bool], Gap | None]
    target: float | None
    stretch: float | None = None
    sure: bool = False


@dataclass(frozen=True, slots=True)
class TargetTable:
    """Fill the part with every target, absent ones too.

    Args:
        quality: the targets on scores; those on speed are in reporting/targets.yaml.
        model: the model they were set for.
        own: targets on what this paper alone measures; each returns its row, or none where the run does not ask it.
        apart: targets of speed are filled by the command ``throughput``, the others by ``forks``; else all by ``all``.
        speed_part: the part that measures the targets of speed; a run that leaves it to another one links there.
        own_part: the part that measures ``own``, likewise.
    """

    quality: tuple[QualityTarget, ...] = ()
    model: str = "miniature"
    own: tuple[Callable[[PaperInputs], Verdict | None], ...] = ()
    apart: bool = False
    speed_part: str = ""
    own_part: str = ""

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return the table, and how to fill it where a number is missing."""
        words = inputs.words("targets")
        no_times, no_own = inputs.elsewhere(self.speed_part), inputs.elsewhere(self.own_part)
        rows = [] if no_own else [row for target in self.own if (row := target(inputs)) is not None]
        rows += [self._row(inputs, target, longest) for target in self.quality for longest in (False, True)]
        timed = list(inputs.targets)
        found: list[Block] = [Prose(words["text"]), *([Targets([*timed, *rows])] if timed or rows else [])]
        if links := [link for link in (no_times, no_own) if link]:
            found.append(Prose(words["elsewhere"].format(parts=", ".join(links))))
        no_speed = (not no_times and not timed) or any(row.level == "absent" for row in timed)
        no_other = any(row.level == "absent" for row in rows)
        if not self.apart:
            return [*found, inputs.missing(words["missing"])] if no_speed or no_other else found
        if no_speed:
            found.append(inputs.missing(words["missing_speed"], "throughput"))
        return [*found, inputs.missing(words["missing"], "forks")] if no_other else found

    def _row(self, inputs: PaperInputs, target: QualityTarget, longest: bool) -> Verdict:
        known = inputs.label(inputs.spec.method, self.model) is not None
        found = target.gap(inputs, self.model, longest) if known else None
        where = "longest context of each suite" if longest else "all contexts"
        share = budget("0.1" if found is None else found.budget)
        what = target.what.format(suites=" and ".join(inputs.spec.suites), budget=share, where=where)
        goals = (_goal(target.target, target.sure), _goal(target.stretch, False))
        if found is None:
            return Verdict(what, *goals, DASH, "", "absent", "not measured")
        gap = found.paired
        measured = f"{points_text(gap.value)} points ({gap.wins} won, {gap.losses} lost)"
        level = "recorded" if target.target is None else "missed"
        if target.target is None or (gap.low if target.sure else gap.value) * 100 > target.target:
            level = "stretch" if _reaches(gap, target.stretch) else "met" if target.target is not None else level
        said = {"stretch": "stretch target met", "recorded": "on record"}.get(level, level)
        return Verdict(what, *goals, measured, points_interval(gap), level, said)


def shown_by_tests(inputs: PaperInputs) -> list[Block]:
    """Return the targets that a test shows and no record: what it tries, and where it is."""
    words = inputs.words("targets")
    rows = [
        [row["what"], row["target"], row["stretch"], row["tried"], row["test"].partition("::")[0]]
        for row in words["tests"]
        if not inputs.elsewhere(row["part"])
    ]
    heads = ("What", "Target", "Stretch", "What the test tries", "Test")
    return [Cells(words["tests_caption"], heads, rows)] if rows else []


def minus_full(inputs: PaperInputs, model: str, longest: bool) -> Gap | None:
    """Return the method minus Full at the budget nearest to a tenth of the context."""
    label = inputs.label(inputs.spec.method, model)
    records = inputs.records(model, inputs.places(model, longest))
    full = full_of(records)
    mine = [r for r in records if r.label == label]
    at = main_budget(sorted({r.budget for r in mine}))
    if not full or at is None:
        return None
    ours = pairs.scored([r for r in mine if r.budget == at])
    return Gap(at, inputs.minus_full(ours, full, model, label or "", at))


def _reaches(gap: pairs.Paired, limit: float | None) -> bool:
    return limit is not None and 100 * gap.value >= limit


def _goal(limit: float | None, sure: bool) -> str:
    if limit is None:
        return DASH
    return f"interval > {number(limit, 0)}" if sure else f"≥ {number(limit, 0)} points"
