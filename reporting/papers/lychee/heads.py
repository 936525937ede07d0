"""Compare head roles by their source: scores, paired differences, agreement between trainings, and their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy.stats import hypergeom

from longdecode.reporting import wording
from longdecode.reporting.figure import Figure, Layout, Words
from longdecode.reporting.identity import INK
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import (
    Block,
    Cells,
    Compared,
    Comparison,
    Heading,
    Picture,
    Prose,
    compared,
    direction,
    flips,
    points_interval,
    points_text,
)
from longdecode.reporting.papers.inputs import PaperInputs, full_of, main_budget
from longdecode.reporting.papers.lychee.trainings import KIND_HUES, Source, Training, drawn, sources, trainings
from longdecode.reporting.papers.printed import printed_only
from longdecode.reporting.papers.published import PublishedFigure
from longdecode.reporting.papers.sections import training
from longdecode.reporting.papers.sections.heat_maps import heat, outlined
from longdecode.reporting.wording import listing, number, slug

PART = "heads"
RANDOM = "random"
BEST = "hardkuma"
MOST_MAPS = 12
CURVES = {
    "distill": ("distance to the teacher", 1.0),
    "expected_heads": ("heads expected to be open", 1.0),
    "retrieval_heads": ("heads over the threshold", 1.0),
    "gates_undecided": ("undecided gates, %", 100.0),
}


@dataclass(frozen=True, slots=True)
class Ablation:
    """The scores behind the ablation of one model: per label its samples on the page's suites at one budget."""

    model: str
    budget: str
    labels: Sequence[Source]
    samples: Mapping[str, pairs.Scored]

    def family(self, name: str) -> pairs.Scored:
        """Return a family's samples, averaged over its labels."""
        return pairs.average([self.samples[item.label] for item in self.labels if item.family == name])

    def pick(self, kind: str, data: str) -> str | None:
        """Return the family of a kind trained on ``data``, the one without a variant first; random has no data."""
        found = {item.family for item in self.labels if item.kind == kind and item.data in (data, "")}
        return min(found, key=lambda family: (len(family), family), default=None)

    def heads(self, family: str | None) -> str:
        """Return the retrieval heads of a family in words."""
        counts = sorted({item.heads for item in self.labels if item.family == family and item.heads is not None})
        return " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1]))) if counts else wording.DASH

    @property
    def data(self) -> list[str]:
        """Training sets of the best kind, passkeys first."""
        found = {item.data for item in self.labels if item.kind == BEST}
        return sorted(found, key=lambda name: (_column(name) != "passkey", name))


def heads(inputs: PaperInputs) -> list[Block]:
    """Return scores by source of the roles, differences between sources, agreement between trainings."""
    words, table = inputs.words(PART), inputs.published.tables[PART]
    found = [one for model in inputs.results.models if (one := ablation(inputs, model)) is not None]
    budget = wording.budget(found[0].budget if found else "0.1")
    blocks: list[Block] = [Prose(text.format(what=table.what, budget=budget)) for text in words["text"]]
    if not found:
        blocks += [printed_only(inputs.published, PART), inputs.missing(words["missing"])]
    for one in found:
        blocks += [_scores(inputs, one), _differences(inputs, one)]
    trained = trainings(inputs.folder)
    if not trained:
        return [*blocks, inputs.missing(words["missing_runs"], "train")]
    for model in dict.fromkeys(run.model for run in trained):
        mine = [run for run in trained if run.model == model]
        blocks += _agreement(inputs, model, mine)
        blocks += [Picture(figure) for figure in _figures(inputs, model, mine)]
    return blocks


def ablation(inputs: PaperInputs, model: str, longest: bool = False) -> Ablation | None:
    """Return the samples at the budget nearest to a tenth that most labels have; nothing without two labels."""
    labels = sources(inputs, model)
    records = inputs.records(model, inputs.places(model, longest))
    names = {item.label for item in labels}
    mine = [r for r in records if r.label in names]
    counts = {text: len({r.label for r in mine if r.budget == text}) for text in {r.budget for r in mine}}
    budget = main_budget([text for text, count in counts.items() if count == max(counts.values())])
    full = set(full_of(records))
    samples = {
        item.label: pairs.scored([r for r in mine if r.label == item.label and r.budget == budget]) for item in labels
    }
    whole = {label: found for label, found in samples.items() if found and (not full or set(found) == full)}
    kept = [item for item in labels if item.label in whole]
    return Ablation(model, budget, kept, whole) if budget is not None and len(kept) > 1 else None


def _paired(inputs: PaperInputs, found: Ablation, kind: str, data: str) -> pairs.Paired | None:
    """Return the best kind minus another, both trained on ``data``; nothing where either is absent."""
    ours, theirs = found.pick(BEST, data), found.pick(kind, data)
    first, second = (found.family(name) if name else {} for name in (ours, theirs))
    if not first or not second:
        return None
    return inputs.paired(first, second, found.model, found.budget, ours, theirs, len(first))


def _printed(inputs: PaperInputs, kind: str, data: str) -> PublishedFigure | None:
    column = _column(data)
    return inputs.published.figure(PART, column, kind=kind) if column else None


def _column(data: str) -> str | None:
    """Return the published column that a training set stands in for: passkeys, or questions over several documents."""
    return "passkey" if "passkey" in data else "hotpotqa" if "hotpot" in data or "two_hop" in data else None


def _reason(inputs: PaperInputs, kind: str) -> str:
    return str(inputs.words(PART)["random" if kind == RANDOM else "reason"])


def _scores(inputs: PaperInputs, found: Ablation) -> Comparison:
    rows = []
    for family in dict.fromkeys(item.family for item in sorted(found.labels, key=lambda s: s.kind == RANDOM)):
        mine = [item for item in found.labels if item.family == family]
        mean = inputs.estimate(found.family(family), found.model, family)
        printed = _printed(inputs, mine[0].kind, mine[0].data)
        each = sorted(pairs.mean_of(found.samples[item.label]) for item in mine)
        runs = wording.plural(len(mine), "training" if mine[0].data else "draw")
        runs += f": {100 * each[0]:.1f} to {100 * each[-1]:.1f}" if len(each) > 1 else ""
        of = [family, found.heads(family), runs]
        bounds = wording.interval(100 * mean.low, 100 * mean.high, 1)
        verdict = "nothing published" if printed is None else "not comparable"
        reason = _reason(inputs, mine[0].kind)
        rows.append(compared(of, printed, number(100 * mean.value, 1), bounds, verdict, "muted", reason))
    caption = f"Score by source of the roles, {wording.budget(found.budget)} of the context. "
    caption += inputs.about(found.model, None)
    return Comparison(caption, ("Roles from", "Retrieval heads", "Runs"), rows, "% right")


def _differences(inputs: PaperInputs, found: Ablation) -> Comparison:
    kinds = sorted(dict.fromkeys(i.kind for i in found.labels if i.kind != BEST), key=lambda name: name != RANDOM)
    rows = [row for data in found.data for kind in kinds if (row := _difference(inputs, found, kind, data)) is not None]
    caption = f"{BEST} minus another source, paired over all contexts, seeds averaged. "
    caption += inputs.about(found.model, None)
    return Comparison(caption, (f"{BEST} minus", "Trained on", "Retrieval heads"), rows, "points")


def _difference(inputs: PaperInputs, found: Ablation, kind: str, data: str) -> Compared | None:
    gap = _paired(inputs, found, kind, data)
    if gap is None:
        return None
    mine, theirs = (_printed(inputs, name, data) for name in (BEST, kind))
    printed = mine.minus(theirs) if mine and theirs else None
    verdict, level = direction(None if printed is None else printed.value, gap, inputs.alpha)
    counts = dict.fromkeys(found.heads(found.pick(name, data)) for name in (BEST, kind))
    of = [kind, data, " against ".join(counts)]
    reason = f"{flips(gap)}; {_reason(inputs, kind)}"
    return compared(of, printed, points_text(gap.value), points_interval(gap), verdict, level, reason)


def _agreement(inputs: PaperInputs, model: str, found: Sequence[Training]) -> list[Block]:
    """Return heads shared beyond layer 0: any two trainings of a family, and the first family with each other one."""
    firsts = list({run.family: run for run in reversed(found)}.values())[::-1]
    same = [(a, b) for a, b in combinations(found, 2) if a.family == b.family]
    rows = [_agreement_row(a, b) for a, b in (*same, *((firsts[0], other) for other in firsts[1:]))]
    names = ("One training", "Another", "Heads", "Shared", "Expected by chance", "Jaccard", "By chance", "p of chance")
    title = inputs.words("agreement")["title"] + ("" if model == "miniature" else f": {model}")
    return [
        Heading(title, f"agreement-{slug(model)}"), Prose(inputs.words("agreement")["text"]),
        Cells(f"Agreement of learned roles, {model}.", names, rows, frozenset({2, 3, 4, 5, 6, 7})),
    ] if rows else []  # fmt: skip


def _agreement_row(a: Training, b: Training) -> list[str]:
    first, second = ({cell for cell in _retrieving(run) if cell[0] > 0} for run in (a, b))
    total = (a.roles.layers - 1) * a.roles.kv_heads
    shared, union = len(first & second), len(first | second)
    expected = len(first) * len(second) / total
    by_chance = expected / (len(first) + len(second) - expected) if first or second else 0.0
    tail = float(hypergeom.sf(shared - 1, total, len(first), len(second)))
    return [
        a.words, b.words, f"{len(first)} and {len(second)} of {total}", str(shared), number(expected, 1),
        number(shared / union, 2) if union else wording.DASH, number(by_chance, 2), wording.p_value(tail),
    ]  # fmt: skip


def _retrieving(run: Training) -> set[tuple[int, int]]:
    return {(layer, head) for layer, row in enumerate(run.roles.roles) for head, role in enumerate(row) if role}


def _figures(inputs: PaperInputs, model: str, found: list[Training]) -> list[Figure]:
    """Return curves, gate histograms and role maps."""
    about = f"Model: {model}. Training data: {listing(sorted({run.data for run in found if run.data}))}."
    ends = [
        f"{run.words}: {run.curve['retrieval_heads'].iloc[-1]:g} heads over the threshold, "
        f"{number(100 * run.curve['gates_undecided'].iloc[-1], 0)} % undecided"
        for run in found
    ]
    runs = drawn(found)
    curves = training.curves(inputs, model, runs, CURVES, about, ends)
    return [curves, training.histograms(inputs, model, runs, about), _maps(inputs, model, found, about)]


def _maps(inputs: PaperInputs, model: str, found: Sequence[Training], about: str) -> Figure:
    shown = found[:MOST_MAPS]
    rows = [
        {
            "run": run.name, "family": run.family, "seed": run.seed, "layer": layer, "kv_head": head,
            "score": run.roles.scores[layer][head], "retrieval": role,
        }
        for run in shown
        for layer, roles in enumerate(run.roles.roles)
        for head, role in enumerate(roles)
    ]  # fmt: skip
    several = {t.family for t in found if sum(other.family == t.family for other in found) > 1}
    titles = [training.panel_title(run.words if run.family in several else run.family) for run in shown]
    counts = [f"{run.words}: {run.heads} retrieval heads" for run in shown]
    left = f" {len(found) - len(shown)} more are in the data." if len(found) > len(shown) else ""
    words = Words("paper_roles", about, {"left_out": left, "readings": "; ".join(counts)})
    height = 0.12 * max(run.roles.kv_heads for run in shown) + 0.35
    lines = max(title.count("\n") for title in titles) + 1
    layout = Layout("layer", "KV head", wide=3, panel_in=height, title_lines=lines)
    panels = [_map_panel(run, title) for run, title in zip(shown, titles, strict=True)]
    name = f"paper-{inputs.spec.method}-roles-{slug(model)}"
    return inputs.writer.write(name, words, panels, pd.DataFrame(rows), layout, [])


def _map_panel(run: Training, title: str) -> Callable[[Axes], None]:
    scores = np.array(run.roles.scores, dtype=np.float64)
    low, high = float(scores.min()), float(scores.max())

    def draw(axes: Axes) -> None:
        axes.set_title(title)
        heat(axes, (scores - low) / (high - low or 1.0), KIND_HUES.get(run.kind, INK))
        outlined(axes, _retrieving(run))

    return draw
