"""Judge targets: look the entries of targets.yaml up in speed.csv."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from longdecode.engine.errors import LongDecodeError
from longdecode.reporting import wording
from longdecode.reporting.speed.measured import OURS, Speed, at
from longdecode.reporting.speed.tables import against

TARGETS_PATH = Path(__file__).parents[1] / "targets.yaml"
_COMPARE = {"<=": operator.le, ">=": operator.ge}
_FACTOR = {"ms": 1e-3, "us": 1.0, "x": 1.0, "GB/s": 1.0}
_KEYS = {
    "what",
    "where",
    "target",
    "stretch",
    "unit",
    "column",
    "against",
    "minus",
    "over",
    "inverse",
    "times",
    "paper",
    "group",
    "table",
}
Spread = tuple[float, float, float]
"""A value and the bounds of its interval; NaN where it has none."""


class TargetError(LongDecodeError):
    """An entry of the file of targets that cannot be looked up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target: ``level`` is stretch, met, missed, recorded (no target was set) or absent."""

    what: str
    target: str
    stretch: str
    measured: str
    bounds: str
    level: str
    words: str


def judge(speed: Speed, path: Path = TARGETS_PATH, paper: str | None = None) -> list[Verdict]:
    """Every target of the models that were timed, in the file's order; nothing where none of theirs was.

    A group or paper of whose targets none has a number is left out, unless the paper's own page asks.

    The measured value decides, not its interval: for times the median, for ratios the median over pairs.

    Args:
        speed: what was timed.
        path: the file of targets.
        paper: those that were set for one paper's page alone.

    Raises:
        TargetError: an entry of the file is malformed.
    """
    entries: Sequence[Mapping[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    models = set(speed.table.loc[speed.table["bench"] != "ceiling", "model"])  # a ceiling is the device's
    asked = [entry for entry in entries if paper is None or entry.get("paper") == paper]
    told = [
        (entry.get("paper") or entry.get("group"), _verdict(speed, entry))
        for entry in asked
        if _checked(entry, path)["where"].get("model") in models
    ]
    shown = {paper, None, *(of for of, verdict in told if verdict.level != "absent")}
    return [verdict for of, verdict in told if of in shown]


def _verdict(speed: Speed, entry: Mapping[str, Any]) -> Verdict:
    target, stretch, unit = entry["target"], entry["stretch"], entry["unit"]
    found, why = _measured(speed, entry)
    goal, hard = _shown(target, unit), _shown(stretch, unit)
    if found is None:
        return Verdict(entry["what"], goal, hard, wording.DASH, "", "absent", why)
    value, low, high = found
    digits = _digits(value, unit, [text for text in (target, stretch) if text])
    low_text, high_text = (wording.number(bound, digits) for bound in (low, high))
    bounds = "" if pd.isna(low) or pd.isna(high) else f"[{low_text}, {high_text}]"
    if stretch is not None and _holds(value, stretch):
        level, words = "stretch", "stretch target met"
    elif target is None:
        level, words = "recorded", "on record"
    else:
        level, words = ("met", "target met") if _holds(value, target) else ("missed", "missed")
    return Verdict(entry["what"], goal, hard, _with_unit(wording.number(value, digits), unit), bounds, level, words)


def _measured(speed: Speed, entry: Mapping[str, Any]) -> tuple[Spread | None, str]:
    """Value and bounds in the entry's unit, or why there is none."""
    if "against" in entry:
        size = at(speed.table, entry["where"])
        peers = size[size["label"] == entry["against"]]
        row, why = _only(peers)
        if row is None:
            return None, why
        ours, why = _only(size[size["label"] == OURS])
        found = None if ours is None else against(row, size)
        return found, "" if found else why or "not measured"
    found, why = _read(speed, entry, {})
    for name in ("minus", "over"):
        if found is not None and name in entry:
            other, why = _read(speed, entry, entry[name])
            found = None if other is None else _joined(found, other, minus=name == "minus")
    if found is None or pd.isna(found[0]):
        return None, why or "not measured"
    value, low, high = found if not entry.get("inverse") else (1 / found[0], 1 / found[2], 1 / found[1])
    times = float(entry.get("times", 1))
    return (times * value, times * low, times * high), ""


def _read(speed: Speed, entry: Mapping[str, Any], change: Mapping[str, Any]) -> tuple[Spread | None, str]:
    compared = entry.get("table") == "compare"
    unknown = {name for name, wanted in change.items() if wanted is None} | ({"model"} if compared else set())
    where = {name: wanted for name, wanted in {**entry["where"], **change}.items() if name not in unknown}
    table = speed.compared if compared else speed.table
    row, why = _only(at(table, where)) if len(table) else (None, "not measured")
    if row is None:
        return None, why
    column, factor = entry.get("column", "median_us"), _FACTOR[entry["unit"]]
    names = {"ratio": ("ratio_low", "ratio_high"), "median_us": ("p5_us", "p95_us")}.get(column, ())
    value, *bounds = (float(row[name]) * factor for name in (column, *names))
    low, high = bounds or (float("nan"), float("nan"))
    return (value, low, high), ""


def _joined(one: Spread, other: Spread, *, minus: bool) -> Spread:
    """Return a difference or quotient with the widest bounds that both intervals allow."""
    if minus:
        return one[0] - other[0], one[1] - other[2], one[2] - other[1]
    return one[0] / other[0], one[1] / other[2], one[2] / other[1]


def _only(rows: pd.DataFrame) -> tuple[pd.Series | None, str]:
    """The one row with numbers; else why there is none."""
    ran = rows[rows["status"] == "ok"]
    if len(ran) == 1:
        return ran.iloc[0], ""
    if len(ran) > 1:
        return None, f"not judged: {len(ran)} rows fit"
    return None, "not measured" + (f": {'; '.join(sorted(set(rows['status'])))}" if len(rows) else "")


def _holds(value: float, text: str) -> bool:
    sign, limit = text.split()
    return bool(_COMPARE[sign](value, float(limit)))


def _shown(text: str | None, unit: str) -> str:
    if text is None:
        return wording.DASH
    sign, limit = text.split()
    return _with_unit(f"{'≤' if sign == '<=' else '≥'} {limit}", unit)


def _digits(value: float, unit: str, limits: Sequence[str]) -> int:
    """The usual decimals, or as many as it takes for the rounded value to stand on the same side of every limit."""
    usual = 1 if unit == "us" else 2
    sides = [_holds(value, text) for text in limits]
    enough = (d for d in range(usual, usual + 3) if [_holds(round(value, d), text) for text in limits] == sides)
    return next(enough, usual + 3)


def _with_unit(text: str, unit: str) -> str:
    return f"{text}{'×' if unit == 'x' else f' {unit}'}"


def _checked(entry: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    unknown, missing = set(entry) - _KEYS, {"what", "where", "target", "stretch", "unit"} - set(entry)
    wrong = [
        text for text in (entry.get("target"), entry.get("stretch")) if text and not re.fullmatch(r"[<>]= [\d.]+", text)
    ]
    if not (unknown or missing or wrong) and entry["target"] and entry["stretch"]:
        # Whoever meets the stretch target must have met the target.
        limit = float(entry["stretch"].split()[1])
        wrong = (
            [] if _holds(limit, entry["target"]) and entry["stretch"][:2] == entry["target"][:2] else [entry["stretch"]]
        )
    if unknown or missing or wrong or entry["unit"] not in _FACTOR:
        found = ", ".join(sorted(unknown | missing)) or wrong or entry["unit"]
        raise TargetError(f"{path}: {entry.get('what', 'an entry')!r}: {found} is unknown, missing or malformed")
    return entry
