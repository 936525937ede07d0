"""Judge what was asked beforehand of the quality of NOSA's fork, on forks of a small model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import points_interval, points_text
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.forks import (
    BOOKS,
    Fork,
    Place,
    base_of,
    fork_of,
    full_forks,
    places,
    samples,
    shown,
    with_tasks,
)
from longdecode.reporting.papers.nosa.recipe import times_the_training
from longdecode.reporting.papers.pairs import Paired
from longdecode.reporting.results import REFERENCE_METHOD
from longdecode.reporting.speed.targets import Verdict

STRETCH = -1.0
"""Points that the stretch target lets NOSA's fork lie under the full fork."""
FRESH = " on fresh prompts"
UNTRAINED = "each method without training"


@dataclass(frozen=True, slots=True)
class _Lead:
    """NOSA's fork minus one rival: attention and head of the rival's fork with the label it runs, and its name."""

    rival: tuple[str, str, str]
    name: str
    gap: Paired
    sign: int


def over_rivals(inputs: PaperInputs, suite: str) -> Verdict:
    """Return the verdict on NOSA's fork over DMA's and over methods without training, at its narrowest.

    A run on fresh prompts decides where it has the suite. A rival that it lacks counts from the first run.

    Args:
        inputs: the run.
        suite: look-ups, in points, or books, in nats a token, where less is better.
    """
    again, first = _fresh(inputs, suite), _leads(inputs, suite)
    if again is None:
        return _over(first, suite)
    found = _leads(again, suite)
    known = {lead.rival for lead in found}
    found += [replace(lead, name=f"{lead.name} in the first run") for lead in first if lead.rival not in known]
    row = _over(found, suite, FRESH)
    return _beside(row, _over(first, suite), _closest(first, suite).name) if first else row


def near_full(inputs: PaperInputs, suite: str) -> Verdict:
    """Return the verdict on NOSA's fork minus full attention on the full fork that does best, in points.

    A run on fresh prompts decides where it has the suite.
    """
    again = _fresh(inputs, suite)
    return _near(inputs, suite) if again is None else _beside(_near(again, suite, FRESH), _near(inputs, suite))


def longer_over_rivals(inputs: PaperInputs, suite: str) -> Verdict | None:
    """Return the verdict on NOSA's fork with more training over methods without, at its narrowest.

    The run that ``longer_from`` names decides alone; no fork but NOSA's and the full one counts.

    Args:
        inputs: the first run; ``None`` is returned where it names no longer one.
        suite: look-ups, in points, or books, in nats a token, where less is better.
    """
    if (run := inputs.longer) is None:
        return None
    row = _after(inputs, run, over_untrained(run, suite))
    known = {lead.rival for lead in _leads(run, suite)}
    before = _leads(inputs.fresh or inputs, suite)
    absent = [lead.name for lead in before if lead.rival[0] == "full" and lead.rival not in known]
    return replace(row, what=f"{row.what} (not run: {wording.listing(absent)})") if known and absent else row


def over_untrained(inputs: PaperInputs, suite: str) -> Verdict:
    """Return the verdict of one run alone on NOSA's fork over the methods without training that it has."""
    return _over([lead for lead in _leads(inputs, suite) if lead.rival[0] == "full"], suite, over=UNTRAINED)


def longer_near_full(inputs: PaperInputs, suite: str) -> Verdict | None:
    """Return the verdict on NOSA's fork minus the full fork, both with more training, in points.

    ``None`` is returned where the run names no longer one.
    """
    return None if inputs.longer is None else _after(inputs, inputs.longer, _near(inputs.longer, suite))


def _after(inputs: PaperInputs, run: PaperInputs, row: Verdict) -> Verdict:
    """Return a row that says how much longer forks were trained."""
    return replace(row, what=f"{row.what}, with {times_the_training(run, inputs)}")


def _fresh(inputs: PaperInputs, suite: str) -> PaperInputs | None:
    """Return the run on fresh prompts, if it has NOSA's fork and the full one on a suite, as the first run has them."""
    where = places(inputs.fresh, (suite,))[:1] if inputs.fresh else []
    if inputs.fresh is None or not where or where != (places(inputs, (suite,))[:1] or where):
        return None
    base = base_of(inputs.fresh, where[0])
    return inputs.fresh if base and samples(inputs.fresh, base.model, REFERENCE_METHOD, where[0]) else None


def _beside(row: Verdict, first: Verdict, rival: str = "") -> Verdict:
    """Return a row on fresh prompts that names what the first run gave, and over which rival."""
    if first.level == "absent":
        return row
    over = f" over {rival}" if rival else ""
    return replace(row, what=f"{row.what} (first run: {first.measured} {first.bounds}{over}, {first.words})")


def _leads(inputs: PaperInputs, suite: str) -> list[_Lead]:
    return [
        _Lead((fork.attention, fork.head, label), _rival(inputs, fork, label, suite), gap, gap.sign(inputs.alpha))
        for fork, label in _rivals(inputs, suite)
        if (gap := _gap(inputs, fork, label, suite)) is not None
    ]  # fmt: skip


def _closest(found: Sequence[_Lead], suite: str) -> _Lead:
    return min(found, key=lambda lead: _better(suite) * lead.gap.value)


def _better(suite: str) -> int:
    """Return the sign of a difference that is in NOSA's favour."""
    return -1 if suite in BOOKS else 1


def _over(
    found: Sequence[_Lead], suite: str, where: str = "", over: str = f"DMA's and {UNTRAINED}"
) -> Verdict:  # fmt: skip
    asked = "< 0" if suite in BOOKS else "> 0"
    what = f"NOSA's fork minus {over}, the closest: {_named(suite)}{where}"
    if not found:
        return Verdict(what, asked, wording.DASH, wording.DASH, "", "absent", "not measured")
    better, closest = _better(suite), _closest(found, suite)
    value, bounds = _shown(closest.gap, suite in BOOKS)
    sure = all(lead.sign == better for lead in found)
    words = "target met" if sure else "missed: cannot be told apart" if better * closest.gap.value > 0 else "missed"
    level = "met" if sure else "missed"
    return Verdict(f"{what}, {closest.name}", asked, wording.DASH, value, bounds, level, words)


def _near(inputs: PaperInputs, suite: str, on: str = "") -> Verdict:
    what = f"NOSA's fork minus the full fork with full attention: {_named(suite)}{on}"
    goals = (wording.DASH, f"≥ {wording.number(STRETCH, 0)} point")
    where = places(inputs, (suite,))
    full, base = (full_forks(inputs, where[0]), base_of(inputs, where[0])) if where else ([], None)
    found = [
        (gap, fork.title)
        for fork in full
        if (gap := _gap(inputs, fork, REFERENCE_METHOD, suite, *(("nosa", "nosa") if fork == base else ())))
    ]
    if not found:
        return Verdict(what, *goals, wording.DASH, "", "absent", "not measured")
    gap, title = min(found, key=lambda pair: pair[0].value)
    what += f", {title}" if len(found) > 1 else ""
    value, bounds = _shown(gap, False)
    reached = 100 * gap.value >= STRETCH
    level, words = ("stretch", "stretch target met") if reached else ("recorded", "stretch target missed")
    return Verdict(what, *goals, value, bounds, level, words)


def _rivals(inputs: PaperInputs, suite: str) -> list[tuple[Fork, str]]:
    """Return DMA's fork and the methods without training, at NOSA's budget and where they read as many tokens."""
    dma = fork_of(inputs, "dma")
    found = [] if dma is None else [(dma, "dma")]
    for place in places(inputs, (suite,))[:1]:
        found += [(base, label) for base in full_forks(inputs, place) for label in shown(inputs, base, place)]
    return found


def _rival(inputs: PaperInputs, fork: Fork, label: str, suite: str) -> str:
    """Name a rival, with its fork where there are two full ones and with its tasks where it lacks some."""
    nosa, place = fork_of(inputs, "nosa"), places(inputs, (suite,))[0]
    ours = samples(inputs, nosa.model, "nosa", place) if nosa else {}
    on = f" on {fork.title}" if len(full_forks(inputs, place)) > 1 and fork.attention == "full" else ""
    return with_tasks(inputs, label, ours, samples(inputs, fork.model, label, place)) + on


def _gap(inputs: PaperInputs, fork: Fork, label: str, suite: str, *row: str) -> Paired | None:
    """Return NOSA's fork minus another in the first place of a suite; ``None`` without both.

    ``row`` names the row of the page's tables that has this difference, where other words than its own do: a
    bootstrap is seeded by them, so that both show one interval.
    """
    nosa, where = fork_of(inputs, "nosa"), places(inputs, (suite,))
    if nosa is None or not where:
        return None
    place: Place = where[0]
    ours, theirs = samples(inputs, nosa.model, "nosa", place), samples(inputs, fork.model, label, place)
    named = "nosa minus " if suite in BOOKS else ""
    return inputs.paired(ours, theirs, *(row or (f"{named}{fork.title}", label)), *place) if ours and theirs else None


def _named(suite: str) -> str:
    return "loss on books" if suite in BOOKS else f"look-ups of {suite}"


def _shown(gap: Paired, is_loss: bool) -> tuple[str, str]:
    if not is_loss:
        return f"{points_text(gap.value)} points", points_interval(gap)
    text = f"{wording.number(gap.value, 3, signed=True)} nats"
    return text, wording.interval(gap.low, gap.high, 3, signed=True)
