"""Collect what the page Traffic shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from longdecode.reporting import quality, tables, traffic
from longdecode.reporting.figure import Figure, FigureWriter, Layout, Words
from longdecode.reporting.results import Results
from longdecode.reporting.wording import slug


@dataclass(frozen=True, slots=True)
class TrafficSection:
    """One model's part of the traffic page."""

    model: str
    pareto: Figure | None
    context: Figure | None
    budget: Figure | None
    achieved: Figure | None
    table: list[tuple[int, list[dict[str, str]]]]


def sections(results: Results, writer: FigureWriter, about: Callable[[str], str]) -> list[TrafficSection]:
    """Return the page's part of every model.

    Args:
        results: without ablations.
        writer: where figures go.
        about: the end of a model's captions.
    """
    found = []
    for model in results.models:
        words = about(model)
        found.append(
            TrafficSection(
                model,
                quality.against_bytes(
                    results, writer, f"bytes-{slug(model)}", Words("against_bytes", words, {}),
                    quality.hardest(results, model), Layout("bytes read (% of Full)"),
                ),
                traffic.against_context(results, writer, model, words),
                traffic.against_budget(results, writer, model, words),
                traffic.achieved(results, writer, model, words),
                tables.traffic_table(results, model),
            )
        )  # fmt: skip
    return found
