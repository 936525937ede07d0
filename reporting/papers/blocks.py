"""Parts of a paper's page: sections of prose, tables, figures and stated holes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from markupsafe import Markup, escape

from longdecode.reporting import wording
from longdecode.reporting.figure import Figure
from longdecode.reporting.papers.pairs import Paired
from longdecode.reporting.papers.published import PublishedFigure
from longdecode.reporting.wording import number

Level = Literal["shown", "estimate", "worse", "muted"]
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph; `` `code` `` and ``[text](link)`` are the only marks it knows."""

    kind: ClassVar[str] = "prose"
    text: str

    @property
    def html(self) -> Markup:
        """The paragraph, escaped, with its marks as elements."""
        return marked(self.text)


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading within a section."""

    kind: ClassVar[str] = "heading"
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Listing:
    """A list of short paragraphs."""

    kind: ClassVar[str] = "listing"
    items: Sequence[str]

    @property
    def html(self) -> list[Markup]:
        """The items, as :class:`Prose` has its paragraph."""
        return [marked(text) for text in self.items]


@dataclass(frozen=True, slots=True)
class MissingResult:
    """State what is missing and the command that makes it."""

    kind: ClassVar[str] = "hole"
    what: str
    command: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure."""

    kind: ClassVar[str] = "figure"
    figure: Figure


@dataclass(frozen=True, slots=True)
class Compared:
    """One row of published beside measured, every part as text; ``of`` are the cells that name it."""

    of: Sequence[str]
    published: str = wording.DASH
    mark: str = ""
    measured: str = ""
    interval: str = ""
    verdict: str = ""
    level: Level = "muted"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Published | measured | interval | verdict | why they differ; where nothing was measured, what is in print."""

    kind: ClassVar[str] = "comparison"
    caption: str
    heads: Sequence[str]
    rows: Sequence[Compared]
    unit: str = ""
    fold: str = ""

    @property
    def measured(self) -> bool:
        """True where a row says more than that it was not measured."""
        return any(row.verdict != NOT_MEASURED or row.reason for row in self.rows)

    @property
    def noted(self) -> bool:
        """True where a row has a note."""
        return any(row.reason for row in self.rows)


@dataclass(frozen=True, slots=True)
class Cells:
    """A table of another shape: headings, rows of text, and which columns are numbers."""

    kind: ClassVar[str] = "cells"
    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()
    fold: str = ""


Block = Prose | Heading | Listing | MissingResult | Picture | Comparison | Cells


@dataclass(frozen=True, slots=True)
class Section:
    """A headed part of a page."""

    title: str
    anchor: str
    blocks: Sequence[Block] = field(default_factory=list)


def marked(text: str) -> Markup:
    """Escaped text in which `` `code` `` and ``[text](link)`` are elements."""
    html = str(escape(text.strip()))
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", html)
    return Markup(re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", r'<a href="\2">\1</a>', html))


def agreement(published: float | None, value: float, low: float, high: float) -> tuple[str, Level]:
    """Compare a published number with a measured interval, or with the value where there is none."""
    if published is None:
        return "nothing published", "muted"
    if not (math.isfinite(low) and math.isfinite(high)):
        return ("higher", "estimate") if value > published else ("lower", "estimate")
    if low <= published <= high:
        return "agree", "shown"
    return ("measured higher", "estimate") if low > published else ("measured lower", "estimate")


def direction(published: float | None, gap: Paired, alpha: float) -> tuple[str, Level]:
    """Return how a measured difference lies to 0, and to the sign in print, in words."""
    sign = gap.sign(alpha)
    if sign == 0:
        return "cannot be told apart", "muted"
    side = "above 0" if sign > 0 else "below 0"
    if published is None or published == 0:
        return side, "shown" if sign > 0 else "worse"
    return (f"same order, {side}", "shown") if (published > 0) == (sign > 0) else (f"other order, {side}", "worse")


def equivalence(gap: Paired, alpha: float, margin: float) -> str:
    """Return how a method lies to Full in words; a difference inside the margin is still named where it is sure."""
    near = f"within {100 * margin:g} points"
    if gap.high < -margin:
        return f"worse by more than {100 * margin:g} points"
    close = f"equivalent {near}" if gap.low >= -margin else f"not shown to be {near}"
    sign = gap.sign(alpha)
    if sign == 0:
        return close
    return f"{close}; {'more' if sign > 0 else 'fewer'} right by {number(100 * abs(gap.value), 1)}"


def flips(gap: Paired) -> str:
    """Return problems won and lost with the p-value, and whether it is corrected."""
    if not gap.wins + gap.losses:
        return "every answer the same"
    return f"{gap.wins} won, {gap.losses} lost, {p_text(gap)}"


def p_text(gap: Paired) -> str:
    """Return the p-value, and whether it is corrected."""
    p = wording.p_value(gap.p_value)
    return f"p {p if p.startswith('<') else '= ' + p}{' after Holm' if gap.after_holm else ''}"


def compared(of: Sequence[str], printed: PublishedFigure | None, measured: str = wording.DASH, interval: str = "",
             verdict: str = NOT_MEASURED, level: Level = "muted", reason: str = "") -> Compared:  # fmt: skip
    """Return a row of a comparison with what is in print, if anything is."""
    published, mark = (wording.DASH, "") if printed is None else (printed.text, printed.mark)
    return Compared(of, published, mark, measured, interval, verdict, level, reason)


def points_text(value: float) -> str:
    """Return a signed difference of scores in points."""
    return number(100 * value, 1, signed=True)


def points_interval(gap: Paired) -> str:
    """Return the interval of a difference in points."""
    return wording.interval(100 * gap.low, 100 * gap.high, 1, signed=True)


def share_text(share: float) -> str:
    """Return a share in per cent with its sign."""
    return f"{wording.percent(share)}{wording.NARROW}%"
