"""Equal windows: beside each method that always holds sinks or recent tokens, the same method with common ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from longdecode.evals import config_values as typed
from longdecode.evals.budgets import Budgets
from longdecode.methods.registry import load_card, method_names

SUFFIX = "+window"
"""Ends the label of a method that runs with the common window."""


@dataclass(frozen=True, slots=True)
class CommonWindow:
    """Sinks and recent tokens that every method with such knobs also runs with; budgets count them.

    ``suites`` and ``budgets`` restrict these labels to a part of the run.
    """

    sinks: typed.Whole
    recent: typed.Whole
    suites: Annotated[tuple[str, ...], typed.Distinct] | None = None
    budgets: Budgets | None = None


def with_common_windows(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's values with a label ``<label>+window`` beside each method that has the knobs.

    Labels that run on a part of the run, and those that only serve throughput tests, get none.
    """
    window, methods = values.get("common_window"), values.get("methods")
    if not isinstance(window, Mapping) or not isinstance(methods, Mapping):
        return dict(values)
    filled: dict[str, Any] = {}
    for label, given in methods.items():
        filled[label] = given
        entry = dict(given) if isinstance(given, Mapping) else {}
        method = entry.get("method", label)
        part = entry.get("suites") is not None or entry.get("budgets") is not None
        if method not in method_names() or part or str(label).endswith(SUFFIX):
            continue
        common = {
            knob.name: window.get(knob.window) for knob in load_card(method).knobs if knob.window and not knob.file
        }
        if not common:
            continue
        by_model = entry.get("by_model") or {}
        kept = {
            model: {name: value for name, value in (params or {}).items() if name not in common}
            for model, params in (by_model.items() if isinstance(by_model, Mapping) else ())
        }
        restricted = {key: window[key] for key in ("suites", "budgets") if window.get(key) is not None}
        filled[f"{label}{SUFFIX}"] = {
            "method": method, "params": {**(entry.get("params") or {}), **common}, "by_model": kept, **restricted,
        }  # fmt: skip
    return {**values, "methods": filled}


def require_own_label(label: Any) -> None:
    """Refuse a label that reads as if its window were the common one."""
    if str(label).endswith(SUFFIX):
        raise typed.wrong(f"labels that end in {SUFFIX} are made by common_window alone", f"methods.{label}")
