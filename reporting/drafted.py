"""One drafter with one draft: its texts, and what was measured of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from longdecode.evals.records import Record
from longdecode.reporting import wording
from longdecode.reporting.papers.tokenswift.texts import Value, longest, value


@dataclass(frozen=True)
class Drafted:
    """One drafter with one budget and one draft: its texts and what was measured of them."""

    records: Sequence[Record]
    theirs: Mapping[int, Record]

    @cached_property
    def drafter(self) -> str:
        """The label that drafts."""
        return drafter_of(self.records[0])

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Branches, and drafted tokens."""
        drafts, _, branches = self.records[0].label.partition("+")[2].partition("x")
        return int(branches or 1), int(drafts)

    @property
    def budget(self) -> str:
        """The drafter's budget."""
        return self.records[0].budget

    @cached_property
    def done(self) -> list[Record]:
        """Texts that were written."""
        return [r for r in self.records if r.status == "ok"]

    @cached_property
    def speedup(self) -> Value | None:
        """Times Full's speed, after each prompt."""
        return self.of("speedup")

    @property
    def order(self) -> float:
        """The mean speedup; -1 where nothing was written."""
        return self.speedup.mean if self.speedup else -1.0

    @property
    def words(self) -> str:
        """Drafter, length and tree of the draft."""
        branches, drafts = self.shape
        return f"`{self.drafter}` with {wording.plural(drafts, 'drafted token')} ({tree(branches)})"

    def of(self, column: str) -> Value | None:
        """Return a measure at the end of the longest text."""
        return value(self.done, self.theirs, column, longest(self.done))


def drafter_of(record: Record) -> str:
    """Return the label that drafted a text."""
    return record.label.partition("+")[0]


def drafters(records: Iterable[Record]) -> dict[str, str]:
    """Return the labels that drafted any of the texts, and the registered method behind each."""
    return {drafter_of(r): str(r.params.get("drafter", drafter_of(r))) for r in records if "+" in r.label}


def tree(branches: int) -> str:
    """Return the shape of a draft in words."""
    return "chain" if branches == 1 else f"{branches} branches"


def shape_text(shape: tuple[int, int]) -> str:
    """Return branches and drafted tokens in words, the tokens first."""
    return f"{shape[1]}, {tree(shape[0])}"
