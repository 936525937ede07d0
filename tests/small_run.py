"""A small configuration, as YAML would give it."""

from __future__ import annotations

from typing import Any


def run_values(**changes: Any) -> dict[str, Any]:
    """Full on one cell of look-ups; keywords replace keys or add some."""
    values: dict[str, Any] = {
        "profile": "p", "models": {"m": {"path": "x"}}, "methods": {"full": {}}, "budgets": [0.5],
        "suites": {"mini_recall": {"contexts": [256], "samples": 1}},
    }  # fmt: skip
    return values | changes
