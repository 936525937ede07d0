"""Draw the parts of panels: budget axes, lines with intervals, Full's band, notes about missing results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from longdecode.reporting.identity import FAINT, MUTED, Look
from longdecode.reporting.wording import percent

_DODGE = 0.008
_LOW = 0.4
_LETTER_IN = 0.061
_LABEL_IN = 0.5


def budget_axis(axes: Axes, shares: Iterable[float]) -> None:
    """Set up a logarithmic axis in per cent of the context, with a tick at every budget that has room for its label."""
    values = sorted({100 * share for share in shares if share > 0})
    axes.set_xscale("log")
    if not values:
        return
    low, high = values[0] / 1.25, values[-1] * 1.25
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(_spaced(values, math.log(high / low))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value / 100)))


def percent_axis(axes: Axes, shares: Iterable[float]) -> None:
    """Set up a logarithmic axis in per cent with round ticks, for shares that are measured, not chosen."""
    values = sorted(100 * share for share in shares if share > 0)
    axes.set_xscale("log")
    if not values:
        return
    low, high = values[0] / 1.25, values[-1] * 1.25
    round_values = [step * 10.0**power for power in range(-3, 5) for step in (1, 2, 3, 5, 7)]
    inside = [value for value in round_values if low <= value <= high]
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(_spaced(inside, math.log(high / low)) if inside else values[-1:]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: percent(value / 100)))


def token_axis(axes: Axes, values: Iterable[float], text: Sequence[str] | None = None, least: float = 0.16) -> None:
    """Set up a logarithmic axis of token counts, with a tick at every count that has room for its label."""
    counts = sorted(set(values))
    axes.set_xscale("log")
    if not counts:
        return
    low, high = counts[0] / 1.3, counts[-1] * 1.3
    axes.set_xlim(low, high)
    kept = _spaced(counts, math.log(high / low), least)
    names = dict(zip(counts, text, strict=True)) if text is not None else {count: f"{count:,.0f}" for count in counts}
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: names.get(min(names, key=lambda c: abs(c - value)), ""))
    )


def log_values(axes: Axes, low: float, high: float, write: Callable[[float], str], least: float = 0.15) -> None:
    """Set up a logarithmic vertical axis with round ticks that have room for their labels."""
    axes.set_yscale("log")
    axes.set_ylim(low / 1.15, high * 1.15)
    steps = [step * 10.0**power for power in range(-6, 9) for step in (1, 1.5, 2, 3, 5, 7)]
    inside = [value for value in steps if low / 1.15 <= value <= high * 1.15]
    axes.yaxis.set_major_locator(FixedLocator(_spaced(inside, math.log(high * 1.3 / low), least) if inside else [high]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))


def score_axis(
    axes: Axes, unit_is_fraction: bool, limits: tuple[float, float] | None = None, rows: pd.DataFrame | None = None
) -> None:
    """Set the vertical axis to 0 to 100 per cent, or else to the limits given or the range of the values.

    Where no value of ``rows`` and no end of its intervals reaches 40 per cent, the axis of per cent ends above them.
    """
    if unit_is_fraction:
        top = 1.0 if rows is None else float(rows[["value", "high"]].max().max())
        if 0 < top < _LOW:
            axes.set_ylim(-4 * top, 115 * top)
            axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
            return
        axes.set_ylim(-4, 104)
        axes.yaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
    else:
        axes.margins(y=0.12)
        if limits is not None:
            axes.set_ylim(limits)
        axes.yaxis.set_major_locator(MaxNLocator(4))


def limits_of(rows: pd.DataFrame) -> tuple[float, float] | None:
    """Return one range for the panels of a figure: values and intervals, unless the intervals dwarf the values."""
    known = rows[rows["value"].notna()]
    if known.empty:
        return None
    values = known["value"]
    spread = float(values.max() - values.min()) or 0.1
    low = max(known["low"].fillna(values).min(), values.min() - spread)
    high = min(known["high"].fillna(values).max(), values.max() + spread)
    return float(low - 0.08 * (high - low)), float(high + 0.08 * (high - low))


def dodged(axes: Axes, x: Sequence[float], place: int) -> np.ndarray:
    """Return positions moved a little by the method's place, so that marks of equal height do not hide each other."""
    at = np.asarray(x, dtype=np.float64)
    if axes.get_xscale() != "log":
        return at
    low, high = axes.get_xlim()
    return np.asarray(at * np.exp(_DODGE * (place - 2) * math.log(high / low)))


def line(axes: Axes, look: Look, x: Sequence[float], rows: pd.DataFrame, factor: float, *, place: int = 0) -> None:
    """Draw one method's line with its intervals, shifted a little so that intervals do not hide each other.

    What is drawn faintly is of the background: a line without intervals.

    Args:
        rows: columns ``value``, ``low``, ``high``, in the order of ``x``.
        factor: what values are multiplied by.
        place: the method's number among those drawn.
    """
    at = dodged(axes, x, place)
    values = rows["value"].to_numpy(dtype=np.float64) * factor
    if look.colour != FAINT:
        low, high = (rows[name].to_numpy(dtype=np.float64) * factor for name in ("low", "high"))
        axes.vlines(at, low, high, color=look.colour, linewidth=1.0, alpha=0.55)
    axes.plot(at, values, color=look.colour, linestyle=look.dashes, marker=look.marker, markerfacecolor=look.face)


def reference(axes: Axes, look: Look, row: pd.Series, factor: float) -> None:
    """Draw Full as a dashed line across, with the band of its interval."""
    axes.axhspan(row["low"] * factor, row["high"] * factor, color=look.colour, alpha=0.09, linewidth=0)
    axes.axhline(row["value"] * factor, color=look.colour, linestyle=look.dashes, linewidth=1.2)


def note(axes: Axes, text: str, short: str) -> None:
    """Write a small remark above a panel, for what could not be drawn; the short form where the panel is narrow."""
    width_in = axes.get_window_extent().width / 72
    chosen = text if width_in > _LETTER_IN * len(text) + _LABEL_IN else short
    axes.annotate(
        chosen, (1, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points", ha="right", va="bottom",
        size=9, color=MUTED, style="italic",
    )  # fmt: skip


def unit_note(axes: Axes, text: str) -> None:
    """Write the unit of the vertical axis above it."""
    axes.annotate(
        text,
        (0, 1),
        xytext=(-33, 5),
        xycoords="axes fraction",
        textcoords="offset points",
        color=MUTED,
        size=9,
        va="bottom",
    )


def level(axes: Axes, value: float, text: str, *, below: bool = False) -> None:
    """Draw a thin horizontal guide with its meaning written on its left end, or below its right end."""
    axes.axhline(value, color=FAINT, linewidth=1.0)
    axes.annotate(
        text, (1 if below else 0, value), xycoords=("axes fraction", "data"), xytext=(-3, -9) if below else (3, 4),
        textcoords="offset points", size=9, color=MUTED, ha="right" if below else "left",
    )  # fmt: skip


def guide(axes: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    """Draw a thin guide line that is no data."""
    axes.plot(x, y, color=FAINT, linewidth=1.0, zorder=1)


def _spaced(values: Sequence[float], log_range: float, least: float = 0.1) -> list[float]:
    """The values at least ``least`` of the axis apart, counted from both ends so that these keep their tick."""
    kept: list[float] = [values[-1]]
    for value in values:
        clear = all(abs(math.log(value / other)) >= least * log_range for other in kept)
        if value not in kept and clear:
            kept.append(value)
    return sorted(kept)
