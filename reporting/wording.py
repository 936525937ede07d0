"""Words and numbers as pages show them: titles for names, digits by unit, signs, intervals and budgets."""

from __future__ import annotations

import functools
import json
import math
import re
from pathlib import Path
from typing import Any

import yaml

from longdecode.engine.errors import ConfigError
from longdecode.methods.card import Card
from longdecode.methods.registry import load_card
from longdecode.reporting import looks


@functools.cache
def read_yaml(name: str) -> Any:
    """Return what a YAML file of this room declares."""
    return yaml.safe_load((Path(__file__).parent / name).read_text(encoding="utf-8"))


TITLES: dict[str, Any] = read_yaml("titles.yaml")
MINUS, TIMES = "\u2212", "\u00d7"
DIGITS = {
    "points": 1, "percent": 1, "blocks": 1, "times": 2, "ms": 2, "share": 2, "minutes": 2,
    "nats": 3, "nats/token": 3, "nats/byte": 3, "of Full's norm": 3, "tokens": 0, "heads": 0,
}  # fmt: skip
VERDICTS = {
    "within": ("\u2713", "within the margin"),
    "worse": ("\u2717", "worse by more than the margin"),
    "cannot tell": ("?", "too few prompts to tell"),
}
"""By verdict of a comparison: its mark and its meaning."""
REASONS = {
    "baseline_fails": "full attention is not shown to be better than reading almost nothing",
    "low_ceiling": "full attention scores low",
    "short": "prompt and answer fit the budget",
    "one_training": "one training is not enough",
    "untuned": "a variant that was not tuned as the others has no verdict",
    "no_baseline": "full attention was not run",
}
"""By status of a comparison without a verdict: why there is none."""
OUTCOMES = {
    "reproduced": "holds", "partly": "partly", "not reproduced": "not", "cannot tell": "open",
    "not comparable": "none", "not run": "none",
}  # fmt: skip
"""By verdict of a claim: the style of its word."""


@functools.cache
def card(method: str) -> Card | None:
    """Return the card of a method; none for an implementation that is no method here."""
    try:
        return load_card(method)
    except ConfigError:
        return None


def method_title(method: str) -> str:
    """Return a method's title from its card, or that of an implementation."""
    found = card(method)
    title = found.title if found else TITLES["implementations"].get(method, spaced(method))
    return "Full" if method == "full" else title


def family(method: str) -> str:
    """Return the colour family of a method."""
    found = card(method)
    return looks.family(method, found.family if found else None)


def variant_title(variant: str, method: str, params: str | None = None, plain: str | None = None) -> str:
    """Return the method's title, and what sets the variant apart: its knobs, or the rest of its name.

    ``plain`` holds the parameters of the variant that is named as its method, which need no word.
    """
    title = method_title(method)
    if variant == method:
        return title
    rest = re.sub(r"[_+\-]+", " ", variant.removeprefix(method)).strip()
    told = TITLES["variants"].get(rest)
    if variant.startswith("own_"):
        return f"{variant_title(variant.removeprefix('own_'), method, params, plain)}, own choices"
    return f"{title}, {told or _knobs(method, params, plain) or rest}"


def _knobs(method: str, params: str | None, plain: str | None) -> str:
    """Return the knobs that differ from the card's defaults and the plain variant's; none where they are long."""
    found, given = card(method), json.loads(params) if isinstance(params, str) and params else {}
    default = {knob.name: knob.default for knob in found.knobs} if found else {}
    shared = json.loads(plain) if isinstance(plain, str) and plain else {}
    differs = {k: v for k, v in given.items() if v != default.get(k)}
    if not differs or len(differs) > 2 or any(isinstance(v, dict | list) or "/" in str(v) for v in differs.values()):
        return ""
    return ", ".join(
        f"{v:.0%} of the context" if k == "share" else f"{k.replace('_', ' ')} {v}"
        for k, v in differs.items()
        if v != shared.get(k)
    )


def model_title(model: str) -> str:
    """Return a model's title."""
    return str(TITLES["models"].get(model, model))


def suite_title(suite: str) -> str:
    """Return a suite's title."""
    return str(TITLES["suites"].get(suite, spaced(suite)))


def task_title(suite: str, task: str) -> str:
    """Return a task's title within its suite: the suite's own where it stands for all of it."""
    if task in ("all", suite):
        return suite_title(suite)
    if task in TITLES["tasks"]:
        return str(TITLES["tasks"][task])
    stem = suite.removesuffix("_prompt").removesuffix("_decoded")
    rest = re.sub(r"_(prompt|decoded)$", "", task).removeprefix(f"{stem}_")  # math500 is no part of math
    return (
        f"{suite_title(suite)}, {TITLES['columns'].get(rest, rest.replace('_', ' '))}"
        if rest and rest != task
        else column_title(task)
    )


def column_title(name: str) -> str:
    """Return the title of a printed column or table."""
    return str(TITLES["columns"].get(name, spaced(name)))


def kernel_title(name: str) -> str:
    """Return the title of a kernel's operation or of its implementation; ``rows8`` is of eight queries at once."""
    text = TITLES["kernels"].get(name) or spaced(name)
    return re.sub(r" rows(\d+)", r", \1 queries", text).replace("queries tree", "queries in a tree")


def spaced(name: str) -> str:
    """Return a name with spaces for underscores, its first letter large."""
    text = name.replace("_", " ")
    return text[:1].upper() + text[1:] if text.islower() and not text[:1].isdigit() else text


def number(value: float, unit: str = "", *, signed: bool = False) -> str:
    """Return a number with the digits of its unit and a true minus sign; a rounded zero has no sign."""
    text = f"{value:,.{DIGITS.get(unit, 2)}f}"
    if float(text.replace(",", "")) == 0:
        return text.lstrip("-")
    return f"+{text}" if signed and value > 0 else text.replace("-", MINUS)


def times(value: float) -> str:
    """Return how many times as fast something is."""
    return number(value, "times")


def interval(low: float, high: float, unit: str = "") -> str:
    """Return an interval in brackets; empty where it is not known."""
    return "" if missing(low) or missing(high) else f"[{number(low, unit)}, {number(high, unit)}]"


def missing(value: object) -> bool:
    """Return whether a cell of a table is empty."""
    return value is None or (isinstance(value, float) and math.isnan(value)) or value == ""


def tokens(count: float) -> str:
    """Return a context in short: 32K for 32,768, 100K for 102,400."""
    whole = int(count)
    return f"{whole // 1024}K" if whole % 1024 == 0 and whole >= 1024 else f"{whole:,}"


def budget(text: str, counted: float | None = None) -> str:
    """Return a budget in words; ``counted`` is its size in tokens where that is known."""
    if text == "full":
        return "all"
    if counted is not None and not missing(counted):
        return f"{int(counted):,}"
    if text.startswith("bytes="):
        return f"{float(text[6:]):.0%} of the bytes"
    return f"{float(text):.0%} of the context" if "." in text else f"{int(text):,}"


def unit_word(unit: str) -> str:
    """Return a unit as it follows a number."""
    return {"times": TIMES, "percent": " %", "share": "", "fraction": ""}.get(unit, f" {unit}") if unit else ""


def slug(*parts: object) -> str:
    """Return a name that can stand in a file name or an address."""
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(str(part) for part in parts).lower()).strip("-")
