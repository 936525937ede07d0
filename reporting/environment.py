"""Make the template environment that every page is rendered with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from longdecode.reporting import verdicts, wording

_FILTERS = (
    "slug", "budget", "score", "score_interval", "gap", "gap_interval", "unit_label", "difference_unit", "short_tokens",
)  # fmt: skip


def make_environment() -> Environment:
    """Return the environment: texts are escaped, unknown names are errors."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {name: getattr(wording, name) for name in _FILTERS}
    environment.filters |= {"numbers": _numbers, "margin": verdicts.margin, "commands": _commands}
    return environment


def _commands(text: str) -> Markup:
    """Escape a sentence and set what stands between backticks as code."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts))


def _numbers(value: Any) -> str:
    """The numbers of a check, readable: nested mappings flattened, four significant digits."""
    if isinstance(value, Mapping):
        parts = (
            f"{key} ({_numbers(entry)})" if isinstance(entry, Mapping) else f"{key}: {_numbers(entry)}"
            for key, entry in value.items()
        )
        return "; ".join(parts)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_numbers(entry) for entry in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
