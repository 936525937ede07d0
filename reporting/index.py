"""Collect what the front page shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from longdecode.reporting import front, instruments, pareto, quality, setups, tables, verdicts, wording
from longdecode.reporting.checkpoint import ModelWords
from longdecode.reporting.fair_play import FairPlay
from longdecode.reporting.families import apart
from longdecode.reporting.family_grid import FamilyGrid, family_grid, suites_by_family
from longdecode.reporting.figure import Figure, FigureWriter
from longdecode.reporting.results import ALL_TASKS, REFERENCE_METHOD, Results
from longdecode.reporting.speed import page as speed_page


@dataclass(frozen=True, slots=True)
class Board:
    """One model's part of the front page."""

    model: str
    sentences: list[front.Said]
    pareto: pareto.Pareto
    short: FamilyGrid
    families: list[tuple[str, list[verdicts.Grid]]]
    overview: Figure | None

    @property
    def grids(self) -> list[verdicts.Grid]:
        """Every topic's grid."""
        return [grid for _, grids in self.families for grid in grids]

    @property
    def suites_words(self) -> str:
        """The suites of each family that has several."""
        several = [(family, [grid.topic.name for grid in grids]) for family, grids in self.families if len(grids) > 1]
        return " ".join(f"{family[0].upper()}{family[1:]}: {wording.listing(names)}." for family, names in several)

    @property
    def many_contexts(self) -> bool:
        """True where some topic has a verdict over several contexts."""
        return any(len(grid.contexts) > 1 for grid in self.grids)

    @property
    def equal_bytes(self) -> str:
        """The headings of the columns at equal bytes; empty where there are none."""
        heads = list(dict.fromkeys(f"At {text}" for grid in self.grids for text in grid.equal_bytes))
        return wording.listing(heads) if heads else ""


def index_values(
    results: Results,
    main: Results,
    writer: FigureWriter,
    models: Mapping[str, ModelWords],
    featured: Collection[str],
    families: Mapping[str, str],
    about: Callable[[str], str],
    timed_name: Callable[[str], str],
    tuned: str,
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
        tuned: how knobs were chosen, in words.
    """
    drawn = main.without(set(main.labels) - set(featured))
    small = [name for name in main.models if models[name].miniature]
    boards = []
    for model in sorted(filter(main.compares, main.models), key=lambda name: (name in small, main.models.index(name))):
        grids = verdicts.board(main, model)
        grouped = suites_by_family(grids, families)
        given = (main, writer, model, about(model), grouped, featured)
        chart = pareto.pareto(*given) or pareto.against_bytes(*given)
        said = front.sentences(main, model, grouped, tuned)
        overview = quality.overview(drawn, writer, model, about(model))
        boards.append(Board(model, said, chart, family_grid(main, grouped), grouped, overview))
    swept = [label for label in main.labels if main.kind(label) != REFERENCE_METHOD]
    counts = main.summary.loc[(main.summary["status"] == "ok") & (main.summary["task"] != ALL_TASKS), "n"]
    few, many = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
    units = {grid.topic.unit for board in boards for grid in board.grids}
    return {
        "boards": boards,
        "swept": swept,
        "apart": apart({main.kind(label) for label in swept}),
        "spread": (instruments.HEADS, instruments.spread(main, small, swept), instruments.NUMERIC),
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


def tuning_words(play: FairPlay) -> str:
    """Say in one sentence how the labels that stand beside each other were tuned."""
    if not play.standings:
        return "No method of this run has a knob to tune."
    by_kind: dict[str, list[str]] = {}
    for entry in play.standings:
        if entry.label not in by_kind.setdefault(entry.kind, []):
            by_kind[entry.kind].append(entry.label)
    names = {"tuned": "tuned alike", "by hand": "set by hand", "untuned": "not tuned, at their cards' defaults"}
    parts = [f"{names.get(kind, kind)}: {wording.listing(found)}" for kind, found in by_kind.items()]
    return f"Knobs of the model: {'; '.join(parts)}."


def role_words(play: FairPlay) -> str:
    """Say which labels' head roles were learned on a generator that also tests them; empty where none were."""
    alike: dict[tuple[str, str], list[str]] = {}
    for label, learned, same, _ in play.roles:
        if same not in ("none", "unknown"):
            alike.setdefault((learned, same), []).append(label)
    return " ".join(
        f"Head roles of {wording.listing(found)} were learned on {learned}, the family of {same}: those suites flatter "
        f"{'it' if len(found) == 1 else 'them'}."
        for (learned, same), found in alike.items()
    )


def _budgets(results: Results) -> list[str]:
    swept = results.summary[results.summary["kind"] != REFERENCE_METHOD].sort_values("share")
    return [wording.budget_of(text) for text in dict.fromkeys(swept["budget"])]
