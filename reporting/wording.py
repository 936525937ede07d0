"""Write numbers, budgets and units the same way on every page and figure."""

from __future__ import annotations

import math
from typing import Any

from longdecode.evals.budgets import bytes_share
from longdecode.evals.names import slug as slug

NARROW = "\u202f"
MINUS = "\u2212"
DASH = "–"
STATUS_WORDS = {
    "oom": "did not fit the device's memory",
    "unsupported": "the method or task cannot run at this budget, context or model",
    "timeout": "took longer than allowed",
    "failed_gate": "failed a correctness gate, or the checkpoint is damaged, so no number may be shown",
    "disturbed": "clocks dropped or another process used the device in every sample, so no number may be shown",
    "data_unavailable": "the data set was not on the machine",
}


def is_fraction(unit: str) -> bool:
    """Tell whether a unit is shown in per cent and its differences in points."""
    return unit == "fraction"


def scale(unit: str) -> float:
    """Return the factor from a stored value to the one shown."""
    return 100.0 if is_fraction(unit) else 1.0


def decimals(unit: str) -> int:
    """Digits after the point in tables."""
    return 1 if is_fraction(unit) else 3


def unit_label(unit: str) -> str:
    """The unit as a heading shows it."""
    return "%" if is_fraction(unit) else unit


def with_unit(text: str, unit: str) -> str:
    """A written number and its unit."""
    return f"{text}{NARROW}%" if is_fraction(unit) else f"{text} {unit}"


def difference_unit(unit: str) -> str:
    """The unit of differences."""
    return "points" if is_fraction(unit) else unit


def number(value: Any, digits: int, *, signed: bool = False) -> str:
    """A number with a true minus sign; an en dash where there is none."""
    if value is None or not math.isfinite(float(value)):
        return DASH
    text = f"{float(value):{'+' if signed else ''},.{digits}f}"
    if float(text.replace(",", "")) == 0:
        text = f"{0:.{digits}f}"
    return text.replace("-", MINUS)


def interval(low: Any, high: Any, digits: int, *, signed: bool = False) -> str:
    """``[low, high]``."""
    return f"[{number(low, digits, signed=signed)}, {number(high, digits, signed=signed)}]"


def score(value: Any, unit: str) -> str:
    """A score without its unit."""
    return number(_scaled(value, unit), decimals(unit))


def score_interval(low: Any, high: Any, unit: str) -> str:
    """The interval of a score."""
    return interval(_scaled(low, unit), _scaled(high, unit), decimals(unit))


def gap(value: Any, unit: str) -> str:
    """A signed difference without its unit."""
    return number(_scaled(value, unit), decimals(unit), signed=True)


def gap_interval(low: Any, high: Any, unit: str) -> str:
    """The interval of a difference."""
    return interval(_scaled(low, unit), _scaled(high, unit), decimals(unit), signed=True)


def p_value(value: Any) -> str:
    """A p-value; small ones as a bound."""
    if value is None or not math.isfinite(float(value)):
        return DASH
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def budget(text: str) -> str:
    """A budget as the configuration wrote it, for people: ``10 %``, ``1,024 tokens``, ``all``."""
    if text == "full":
        return "all"
    if (share := bytes_share(text)) is not None:
        return f"{percent(share)}{NARROW}% of bytes"
    return f"{int(text):,} tokens" if text.isdigit() else f"{percent(float(text))}{NARROW}%"


def budget_of(text: str) -> str:
    """A budget that says what it is a share of: ``10 % of the context``, ``1,024 tokens``, ``25 % of bytes``."""
    share = text != "full" and bytes_share(text) is None and not text.isdigit()
    return f"{budget(text)} of the context" if share else budget(text)


def percent(share: float) -> str:
    """A share in per cent, without the sign and without needless digits."""
    return f"{100 * share:.3g}"


def tokens(count: Any) -> str:
    """A count of tokens."""
    return DASH if count is None or not math.isfinite(float(count)) else f"{round(float(count)):,}"


def short_tokens(count: int) -> str:
    """A context length for axes: ``4K`` for 4,096."""
    return f"{count // 1024}K" if count % 1024 == 0 else f"{count:,}"


def megabytes(count: Any) -> str:
    """Bytes in MB (10^6), three significant digits at least."""
    if count is None or not math.isfinite(float(count)):
        return DASH
    value = float(count) / 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}" if value >= 0.001 or value == 0 else f"{value:.1e}"


def plural(count: int, noun: str) -> str:
    """``1 sample``, ``16 samples``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listing(names: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def budget_order(text: str) -> tuple[int, float]:
    """Key that sorts budgets: counts of tokens, shares of the context, shares of Full's bytes, everything."""
    if (share := bytes_share(text)) is not None:
        return 2, share
    return (3, 0.0) if text == "full" else (0, float(text)) if text.isdigit() else (1, float(text))


def significant(value: Any, digits: int = 3) -> str:
    """A number to so many digits at least, never more than the integer part and two where it is large."""
    if value is None or not math.isfinite(float(value)):
        return DASH
    size = abs(float(value))
    places = digits - 1 - math.floor(math.log10(size)) if size > 0 else 0
    return number(value, max(0, min(6, places)))


def milliseconds(us: Any) -> str:
    """Microseconds written in ms, three digits; two after the point from 10 ms on, as steps differ there."""
    if us is None or not math.isfinite(float(us)):
        return DASH
    value = float(us) / 1e3
    return number(value, 1) if abs(value) >= 1000 else number(value, 2) if abs(value) >= 1 else number(value, 3)


def microseconds(us: Any) -> str:
    """Microseconds: one digit after the point, none from 1,000 on."""
    return number(us, 0 if us is not None and abs(float(us)) >= 1000 else 1)


def ratio(value: Any) -> str:
    """A ratio of two times: two digits after the point, three below 0.1 and one from 100 on."""
    size = abs(float(value)) if value is not None else 0.0
    return number(value, 3 if size < 0.1 else 1 if size >= 100 else 2)


def slope(us: Any) -> str:
    """Microseconds that something adds: two digits after the point, one from 100 on."""
    return number(us, 1 if us is not None and abs(float(us)) >= 100 else 2)


def read_rate(gb_per_s: Any) -> str:
    """A read rate with its unit: TB/s from 100 GB/s on."""
    value = float(gb_per_s)
    return f"{number(value / 1e3, 2)} TB/s" if value >= 100 else f"{significant(value)} GB/s"


def gigabytes(count: Any) -> str:
    """Bytes in GB (10^9)."""
    return DASH if count is None or not math.isfinite(float(count)) else significant(float(count) / 1e9)


def _scaled(value: Any, unit: str) -> float | None:
    return None if value is None else float(value) * scale(unit)
