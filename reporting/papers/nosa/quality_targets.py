"""Judge what was asked beforehand of the quality of NOSA's fork, on forks of a small model."""

from __future__ import annotations

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
from longdecode.reporting.papers.pairs import Paired
from longdecode.reporting.results import REFERENCE_METHOD
from longdecode.reporting.speed.targets import Verdict

STRETCH = -1.0
"""Points that the stretch target lets NOSA's fork lie under the full fork."""


def over_rivals(inputs: PaperInputs, suite: str) -> Verdict:
    """Return the verdict on NOSA's fork over DMA's and over methods without training, at its narrowest.

    Args:
        inputs: the run.
        suite: look-ups, in points, or books, in nats a token, where less is better.
    """
    is_loss = suite in BOOKS
    asked = "< 0" if is_loss else "> 0"
    what = f"NOSA's fork minus DMA's and each method without training, the closest: {_named(suite)}"
    found = [
        (gap, _rival(inputs, fork, label, suite))
        for fork, label in _rivals(inputs, suite)
        if (gap := _gap(inputs, fork, label, suite)) is not None
    ]  # fmt: skip
    if not found:
        return Verdict(what, asked, wording.DASH, wording.DASH, "", "absent", "not measured")
    better = -1 if is_loss else 1
    gap, label = min(found, key=lambda pair: better * pair[0].value)
    value, bounds = _shown(gap, is_loss)
    sure = all(one.sign(inputs.alpha) == better for one, _ in found)
    words = "target met" if sure else "missed: cannot be told apart" if better * gap.value > 0 else "missed"
    level = "met" if sure else "missed"
    return Verdict(f"{what}, {label}", asked, wording.DASH, value, bounds, level, words)


def near_full(inputs: PaperInputs, suite: str) -> Verdict:
    """Return the verdict on NOSA's fork minus full attention on the full fork that does best, in points."""
    what = f"NOSA's fork minus the full fork with full attention: {_named(suite)}"
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
