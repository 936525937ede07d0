"""Show NOSA's fork on fresh prompts beside the first run, rival by rival."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Compared, Comparison, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.forks import (
    BOOKS,
    Fork,
    Place,
    against,
    base_of,
    fork_of,
    forks,
    full_forks,
    lead,
    named,
    places,
    reads,
    rivals,
    samples,
)
from longdecode.reporting.papers.nosa.losses import is_other, minus, over_full, own_losses
from longdecode.reporting.results import REFERENCE_METHOD
from longdecode.reporting.staleness import older_scores

Rival = tuple[str, str, str]
"""A rival across runs: attention and head of its fork, and the label that it runs."""
Cell = tuple[str, str, str, str]
"""Suite, task, attention of the fork, and label."""


def fresh(inputs: PaperInputs) -> list[Block]:
    """Return NOSA's fork minus each rival on fresh prompts beside the first run's difference, and plain scores."""
    words, again = inputs.words("fresh"), inputs.fresh
    if again is None:
        return [Prose(words["text"]), inputs.missing(words["missing"], "fresh")]
    where = [place for suite in (*inputs.spec.suites, *BOOKS) for place in places(again, (suite,))]
    if not where:
        return [Prose(words["text"]), again.missing(words["unscored"], "fresh")]
    tables = [_differences(inputs, again, place) for place in where]
    older = [Prose(text) for text in older_scores(again.results)]
    about = Prose(f"{words['text']} {_what(inputs, again, where)}")
    return [about, *older, *tables, *_by_task(again, where), _plain_table(inputs, again, where)]


def _what(inputs: PaperInputs, again: PaperInputs, where: list[Place]) -> str:
    """Say what is fresh, and what was not run again."""
    words = inputs.words("fresh")
    counts = []
    for place in where:
        now, before = (max(_prompts(run, place).values(), default=0) for run in (again, inputs))
        counts.append(words["count"].format(suite=place[0], now=now, before=before))
    ran = {(fork.attention, fork.head) for fork in forks(again)}
    left = [fork.title for fork in forks(inputs) if (fork.attention, fork.head) not in ran]
    text: str = words["what"].format(
        profile=again.results.profile, seed=again.results.config.get("seed", 0),
        before=inputs.results.config.get("seed", 0), counts="; ".join(counts),
    )  # fmt: skip
    return text + (" " + words["left"].format(forks=wording.listing(left)) if left else "")


def _prompts(inputs: PaperInputs, place: Place) -> Mapping[str, int]:
    """Return the samples that NOSA's fork has in a place, by task."""
    nosa = fork_of(inputs, "nosa")
    return Counter(key[1] for key in samples(inputs, nosa.model, "nosa", place)) if nosa else {}


def _differences(inputs: PaperInputs, again: PaperInputs, place: Place) -> Cells:
    """Return the differences in one place, those of the first run in a column of their own."""
    words, nosa = inputs.words("fresh"), fork_of(again, "nosa")
    first: dict[Rival, list[Compared]] = {}
    for rival, row in _rows(inputs, place):
        first.setdefault(rival, []).append(row)
    rows = [
        [*row.of, row.measured, row.interval, _before(first.get(rival, [])), row.verdict, row.reason]
        for rival, row in _rows(again, place)
    ]
    unit = "nats a token" if place[0] in BOOKS else "points"
    heads = ("Than", "Method", "Tokens read", f"Fresh prompts, {unit}", "Interval", f"First run, {unit}",
             "Verdict, fresh prompts", "Notes, fresh prompts")  # fmt: skip
    about = {**named(place), "reads": reads(again, nosa.model if nosa else "", "nosa", place)}
    return Cells(words["caption"].format(**about), heads, rows, frozenset({2, 3}))


def _before(rows: list[Compared]) -> str:
    """Return the first run's differences from a rival, with the full fork's name where there are two."""
    names = [f"{row.of[0]} " if len(rows) > 1 else "" for row in rows]
    shown = [f"{name}{row.measured} {row.interval}" for name, row in zip(names, rows, strict=True)]
    return "; ".join(shown) or wording.DASH


def _rows(inputs: PaperInputs, place: Place) -> list[tuple[Rival, Compared]]:
    """Return NOSA's fork minus full attention on each full fork, then minus every rival."""
    found = _loss_rows(inputs, place) if place[0] in BOOKS else _look_up_rows(inputs, place)
    return [
        ((fork.attention, fork.head, label), replace(row, of=[fork.title, *row.of[1:]])) for fork, label, row in found
    ]


def _look_up_rows(inputs: PaperInputs, place: Place) -> list[tuple[Fork, str, Compared]]:
    nosa, base = fork_of(inputs, "nosa"), base_of(inputs, place)
    ours = samples(inputs, nosa.model, "nosa", place) if nosa else {}
    found = []
    for fork in full_forks(inputs, place) if ours else []:
        if full := samples(inputs, fork.model, REFERENCE_METHOD, place):
            # Seeded as the row of NOSA's fork in the part on quality, so that both show one interval.
            of = ["nosa", "nosa"] if fork == base else [fork.title, REFERENCE_METHOD]
            row = against(inputs, of, ours, full, None, place)
            found.append((fork, REFERENCE_METHOD, _of_full(inputs, fork, row, place)))
    leads = [(fork, label, lead(inputs, fork, label, place)) for fork, label in rivals(inputs, place)]
    return [*found, *((fork, label, row) for fork, label, row in leads if row is not None)]


def _loss_rows(inputs: PaperInputs, place: Place) -> list[tuple[Fork, str, Compared]]:
    nosa = fork_of(inputs, "nosa")
    base, full, own = own_losses(inputs, place)
    if nosa is None or base is None or not full or (nosa, "nosa") not in own:
        return []
    row = over_full(inputs, nosa, "nosa", own[nosa, "nosa"], base, full, place)
    found = [(base, REFERENCE_METHOD, _of_full(inputs, base, row, place))]
    others = [one for one in own if is_other(inputs, one[0], own)]
    return [*found, *((*one, minus(inputs, *one, own, place)) for one in others)]


def _of_full(inputs: PaperInputs, fork: Fork, row: Compared, place: Place) -> Compared:
    """Return a row named by the full fork that it is over."""
    return replace(row, of=[fork.title, "full attention", reads(inputs, fork.model, REFERENCE_METHOD, place)])


def _plain_table(inputs: PaperInputs, again: PaperInputs, where: list[Place]) -> Cells:
    """Return the scores of the full fork, of NOSA's and of its rivals, task by task, of both runs."""
    rows = []
    for place in where:
        now, before = _plain(again, place), _plain(inputs, place)
        for cell in sorted(now, key=lambda cell: cell[1]):
            suite, task, attention, label = cell
            method = "full attention" if label == REFERENCE_METHOD else label
            rows.append([suite, task, attention, method, *_mean(now[cell], suite), *_mean(before.get(cell), suite)])
    heads = ("Suite", "Task", "Fork", "Method", "Fresh prompts", "Score", "Prompts of the first run", "Score")
    return Cells(inputs.words("fresh")["plain"], heads, rows, frozenset({4, 5, 6, 7}))


def _by_task(inputs: PaperInputs, where: list[Place]) -> list[Comparison]:
    """Return NOSA's fork minus each rival on fresh prompts, task by task, where a suite has several."""
    nosa, rows = fork_of(inputs, "nosa"), []
    for place in where if nosa else []:
        ours = samples(inputs, nosa.model if nosa else "", "nosa", place)
        tasks = sorted({key[1] for key in ours})
        for fork, label in rivals(inputs, place) if len(tasks) > 1 else []:
            theirs = samples(inputs, fork.model, label, place)
            for task in tasks:
                mine, other = ({key: x for key, x in side.items() if key[1] == task} for side in (ours, theirs))
                rows.append(against(inputs, [task, label], mine, other, None, place))
    return [Comparison(inputs.words("fresh")["by_task"], ("Task", "Method"), rows, "points")] if rows else []


def _plain(inputs: PaperInputs, place: Place) -> Mapping[Cell, list[float]]:
    """Return the scores on look-ups, or the losses on books, of the full fork, of NOSA's and of its rivals."""
    base, nosa = base_of(inputs, place), fork_of(inputs, "nosa")
    found: dict[Cell, list[float]] = {}
    pairs = ((base, REFERENCE_METHOD), (nosa, "nosa"), (nosa, REFERENCE_METHOD), *rivals(inputs, place))
    for fork, label in [(fork, label) for fork, label in pairs if fork is not None]:
        for key, sample in samples(inputs, fork.model, label, place).items():
            found.setdefault((place[0], key[1], fork.attention, label), []).append(sample.score)
    return found


def _mean(scores: list[float] | None, suite: str) -> tuple[str, str]:
    """Return how many scores there are, and their mean."""
    if not scores:
        return wording.DASH, wording.DASH
    unit = "nats" if suite in BOOKS else "fraction"
    return f"{len(scores):,}", wording.with_unit(wording.score(sum(scores) / len(scores), unit), unit)
