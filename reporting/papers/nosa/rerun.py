"""Set NOSA's fork of a run beside that of earlier runs: rival by rival, task by task, and in plain scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Compared, Comparison
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

Rival = tuple[str, str, str]
"""A rival across runs: attention and head of its fork, and the label that it runs."""
Cell = tuple[str, str, str, str]
"""Suite, task, attention of the fork, and label."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """A run that asks the questions of earlier runs once more.

    Args:
        part: key of its words: ``count``, of the prompts of a suite; ``plain_heads``; ``caption``, ``by_task`` and
            ``plain``, of the tables.
        run: the run.
        earlier: runs whose numbers stand beside, each with its mark; the first that has a number gives it.
        now: the run in a column's heading.
        before: the earlier runs there.
    """

    part: str
    run: PaperInputs
    earlier: Sequence[tuple[PaperInputs, str]]
    now: str
    before: str

    @property
    def words(self) -> Mapping[str, Any]:
        """The words of its part."""
        return self.run.words(self.part)

    @property
    def places(self) -> list[Place]:
        """Suite, context and budget of every cell where NOSA's fork has samples that count, the page's suites first."""
        found = [place for suite in (*self.run.spec.suites, *BOOKS) for place in places(self.run, (suite,))]
        return [place for place in found if _prompts(self.run, place)]

    def tables(self) -> list[Block]:
        """Return the differences place by place and task by task, and the scores behind them."""
        found: list[Block] = [self._differences(place) for place in self.places]
        return [*found, *self._by_task(), self._plain_table()] if found else []

    def counts(self) -> str:
        """Say how many prompts a task has in each suite, then and now."""
        found = []
        for place in self.places:
            now, *then = (
                max(_prompts(run, place).values(), default=0) for run in (self.run, *(run for run, _ in self.earlier))
            )
            before = next((count for count in then if count), 0)
            found.append(self.words["count"].format(suite=place[0], now=now, before=before))
        return "; ".join(found)

    def left(self, first: PaperInputs) -> list[str]:
        """Return the forks of a run that this one has not."""
        ran = {(fork.attention, fork.head) for fork in forks(self.run)}
        return [fork.title for fork in forks(first) if (fork.attention, fork.head) not in ran]

    def _differences(self, place: Place) -> Cells:
        """Return the differences in one place, those of earlier runs in a column of their own."""
        nosa, then = fork_of(self.run, "nosa"), [(_by_rival(run, place), mark) for run, mark in self.earlier]
        rows = [
            [*row.of, row.measured, row.interval, _before(rival, then), row.verdict, row.reason]
            for rival, row in _rows(self.run, place)
        ]
        unit, now = "nats a token" if place[0] in BOOKS else "points", self.now[0].lower() + self.now[1:]
        heads = ("Than", "Method", "Tokens read", f"{self.now}, {unit}", "Interval", f"{self.before}, {unit}",
                 f"Verdict, {now}", f"Notes, {now}")  # fmt: skip
        about = {**named(place), "reads": reads(self.run, nosa.model if nosa else "", "nosa", place)}
        return Cells(self.words["caption"].format(**about), heads, rows, frozenset({2, 3}))

    def _by_task(self) -> list[Comparison]:
        """Return NOSA's fork minus each rival, task by task, where a suite has several."""
        nosa, rows = fork_of(self.run, "nosa"), []
        for place in self.places if nosa else []:
            ours = samples(self.run, nosa.model if nosa else "", "nosa", place)
            tasks = sorted({key[1] for key in ours})
            for fork, label in rivals(self.run, place) if len(tasks) > 1 else []:
                theirs = samples(self.run, fork.model, label, place)
                method = label if fork.attention == "full" else self.words["own_fork"].format(method=label)
                for task in tasks:
                    mine, other = ({key: x for key, x in side.items() if key[1] == task} for side in (ours, theirs))
                    if other:
                        rows.append(against(self.run, [task, method], mine, other, None, place))
        return [Comparison(self.words["by_task"], ("Task", "Method"), rows, "points")] if rows else []

    def _plain_table(self) -> Cells:
        """Return the scores of the full fork, of NOSA's and of its rivals, task by task, of this run and before."""
        rows = []
        for place in self.places:
            now, then = _plain(self.run, place), [(_plain(run, place), mark) for run, mark in self.earlier]
            for cell in sorted(now, key=lambda cell: cell[1]):
                suite, task, attention, label = cell
                method = "full attention" if label == REFERENCE_METHOD else label
                known = ((scores[cell], mark) for scores, mark in then if cell in scores)
                before, mark = next(known, (None, ""))
                count, score = _mean(before, suite)
                rows.append([suite, task, attention, method, *_mean(now[cell], suite), count, f"{score}{mark}"])
        heads = [head.format(now=self.now, before=self.before) for head in self.words["plain_heads"]]
        return Cells(self.words["plain"], ("Suite", "Task", "Fork", "Method", *heads), rows, frozenset({4, 5, 6, 7}))


def _prompts(inputs: PaperInputs, place: Place) -> Mapping[str, int]:
    """Return the samples that NOSA's fork has in a place, by task."""
    nosa = fork_of(inputs, "nosa")
    return Counter(key[1] for key in samples(inputs, nosa.model, "nosa", place)) if nosa else {}


def _by_rival(inputs: PaperInputs, place: Place) -> Mapping[Rival, list[Compared]]:
    found: dict[Rival, list[Compared]] = {}
    for rival, row in _rows(inputs, place):
        found.setdefault(rival, []).append(row)
    return found


def _before(rival: Rival, then: Sequence[tuple[Mapping[Rival, list[Compared]], str]]) -> str:
    """Return the earlier differences from a rival, with the full fork's name where there are two."""
    rows, mark = next(((found[rival], mark) for found, mark in then if rival in found), ([], ""))
    names = [f"{row.of[0]} " if len(rows) > 1 else "" for row in rows]
    shown = [f"{name}{row.measured} {row.interval}{mark}" for name, row in zip(names, rows, strict=True)]
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
