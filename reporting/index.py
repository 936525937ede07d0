"""Collect what the front page shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from longdecode.reporting import pareto, quality, setups, tables, verdicts, wording
from longdecode.reporting.checkpoint import ModelWords
from longdecode.reporting.family_grid import FamilyGrid, family_grid, suites_by_family
from longdecode.reporting.figure import Figure, FigureWriter
from longdecode.reporting.results import ALL_TASKS, REFERENCE_METHOD, Results
from longdecode.reporting.speed import page as speed_page


@dataclass(frozen=True, slots=True)
class Board:
    """One model's part of the front page."""

    model: str
    pareto: Figure | None
    grid: FamilyGrid
    overview: Figure | None


def index_values(
    results: Results,
    main: Results,
    writer: FigureWriter,
    models: Mapping[str, ModelWords],
    featured: Collection[str],
    families: Mapping[str, str],
    about: Callable[[str], str],
    timed_name: Callable[[str], str],
) -> dict[str, Any]:
    """Return what the template ``index.html`` shows.

    Args:
        results: the run.
        main: the same without ablations.
        writer: where figures go.
        models: models that were scored, in words; real ones come before miniatures.
        featured: labels that overviews show.
        families: suite to the family of its generator.
        about: the end of a model's captions.
        timed_name: a timed model in words.
    """
    drawn = main.without(set(main.labels) - set(featured))
    small = [name for name in main.models if models[name].miniature]
    boards, units = [], set()
    for model in sorted(filter(main.compares, main.models), key=lambda name: (name in small, main.models.index(name))):
        grids = verdicts.board(main, model)
        units |= {grid.topic.unit for grid in grids}
        grouped = suites_by_family(grids, families)
        chart = pareto.pareto(main, writer, model, about(model), grouped, featured)
        overview = quality.overview(drawn, writer, model, about(model))
        boards.append(Board(model, chart, family_grid(main, grouped), overview))
    counts = main.summary.loc[(main.summary["status"] == "ok") & (main.summary["task"] != ALL_TASKS), "n"]
    few, many = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
    return {
        "boards": boards,
        "holes": tables.holes(main.records),
        "record_count": len(main.records),
        "cell_count": int((main.summary["task"] != ALL_TASKS).sum()),
        "samples": wording.plural(many, "sample") if few == many else f"{few:,} to {many:,} samples",
        "devices": sorted(set(main.summary["device"])),
        "budgets": _budgets(main),
        "contexts": [f"{context:,}" for context in sorted(set(main.summary["context"]))],
        "margin": wording.listing(sorted({verdicts.margin(unit) for unit in units}, key=len)),
        "has_losses": bool(main.losses),
        "unscored": list(results.config.get("suites") or {}),
        "matched": setups.matched(results),
        "setups": setups.timed_setups(results),
        "headlines": speed_page.headlines(main.speed, timed_name) if main.speed is not None else [],
        "speed": speed_page.facts(results.speed, timed_name) if results.speed is not None else None,
    }


def _budgets(results: Results) -> list[str]:
    swept = results.summary[results.summary["kind"] != REFERENCE_METHOD].sort_values("share")
    return [wording.budget_of(text) for text in dict.fromkeys(swept["budget"])]
