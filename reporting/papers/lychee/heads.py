"""The head-identification ablation: scores by where the roles come from, and agreement between trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from scipy.stats import hypergeom

from longdecode.evals import stats
from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import Block, Cells, Compared, Comparison, Heading, Prose, direction
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.lychee.common import (
    SUITES,
    WORDS,
    full_of,
    hole,
    main_budget,
    points_interval,
    points_text,
    records_of,
    resamples,
)
from longdecode.reporting.papers.lychee.runs import Scored, Training, data_column, scored_labels, trainings
from longdecode.reporting.wording import number, slug

RANDOM = "random"
BEST = "hardkuma"


@dataclass(frozen=True, slots=True)
class Ablation:
    """The scores behind the ablation of one model: per label its samples on both suites at one budget."""

    model: str
    budget: str
    labels: Sequence[Scored]
    samples: Mapping[str, pairs.Scored]

    def family(self, name: str) -> pairs.Scored:
        """A family's samples, averaged over its labels."""
        return pairs.average([self.samples[item.label] for item in self.labels if item.family == name])

    def pick(self, kind: str, data: str) -> str | None:
        """The family of a kind that was trained on ``data``, the one without a variant first; random has no data."""
        found = {item.family for item in self.labels if item.kind == kind and item.data in (data, "")}
        return min(found, key=lambda family: (len(family), family), default=None)

    @property
    def data(self) -> list[str]:
        """Training sets of the best kind, passkeys first."""
        found = {item.data for item in self.labels if item.kind == BEST}
        return sorted(found, key=lambda name: (data_column(name) != "passkey", name))

    @property
    def families(self) -> list[str]:
        """Families, those learned first."""
        return list(dict.fromkeys(item.family for item in sorted(self.labels, key=lambda s: s.kind == RANDOM)))


def blocks(inputs: PaperInputs) -> list[Block]:
    """Scores by source of the roles, differences between sources, single labels, agreement between trainings."""
    words, table = WORDS["heads"], inputs.published.tables["heads"]
    found = [one for model in inputs.results.models if (one := ablation(inputs, model)) is not None]
    budget = wording.budget(found[0].budget) if found else "a tenth of the context"
    blocks_: list[Block] = [Prose(text.format(what=table.what, budget=budget)) for text in words["text"]]
    if not found:
        blocks_.append(_printed(inputs))
        blocks_.append(hole(inputs, words["hole_scores"], "all"))
    for one in found:
        blocks_ += [_scores(inputs, one), _differences(inputs, one), _single(inputs, one)]
    for model in dict.fromkeys(training.model for training in trainings(inputs.folder)):
        blocks_ += _agreement(model, trainings(inputs.folder, model))
    return blocks_


def ablation(inputs: PaperInputs, model: str, longest: bool = False) -> Ablation | None:
    """The ablation's samples, at the budget nearest to a tenth that most labels have; nothing without two labels.

    Args:
        longest: at each suite's longest context alone.
    """
    labels = scored_labels(inputs, model)
    records = [
        r
        for suite in SUITES
        for r in records_of(inputs, model, [suite], [_longest(inputs, model, suite)] if longest else None)
    ]
    names = {item.label for item in labels}
    mine = [r for r in records if r.label in names]
    counts = {text: len({r.label for r in mine if r.budget == text}) for text in {r.budget for r in mine}}
    budget = main_budget([text for text, count in counts.items() if count == max(counts.values())])
    if len(labels) < 2 or budget is None:
        return None
    full = set(full_of(records))
    samples = {
        item.label: pairs.scored([r for r in mine if r.label == item.label and r.budget == budget]) for item in labels
    }
    whole = {label: found for label, found in samples.items() if found and (not full or set(found) == full)}
    kept = [item for item in labels if item.label in whole]
    return Ablation(model, budget, kept, whole) if len(kept) > 1 else None


def _longest(inputs: PaperInputs, model: str, suite: str) -> int:
    rows = inputs.scores(suite, model)
    return int(rows["context"].max()) if len(rows) else 0


def gap(inputs: PaperInputs, found: Ablation, kind: str, data: str) -> stats.Difference | None:
    """The best kind minus another, both trained on ``data``, paired over samples; nothing where either is absent."""
    ours, theirs = found.pick(BEST, data), found.pick(kind, data)
    first, second = (found.family(name) if name else {} for name in (ours, theirs))
    if not first or not second:
        return None
    return pairs.difference(
        first, second, inputs.results.confidence, resamples(inputs), found.model, found.budget, ours, theirs, len(first)
    )


def _scores(inputs: PaperInputs, found: Ablation) -> Comparison:
    rows = []
    for family in found.families:
        mine = [item for item in found.labels if item.family == family]
        samples = found.family(family)
        mean = pairs.estimate(samples, inputs.results.confidence, resamples(inputs), found.model, family)
        column = data_column(mine[0].data)
        printed = inputs.published.figure("heads", column, kind=mine[0].kind) if column else None
        rows.append(
            Compared(
                of=[family, _heads(mine), wording.plural(len(mine), "training" if mine[0].data else "draw")],
                published=wording.DASH if printed is None else printed.text,
                mark="" if printed is None else printed.mark,
                measured=number(100 * mean.value, 1),
                interval=wording.interval(100 * mean.low, 100 * mean.high, 1),
                verdict="not comparable" if printed is not None else "nothing published",
                reason=WORDS["heads"]["random"] if mine[0].kind == RANDOM else WORDS["heads"]["reason"],
            )
        )
    caption = f"Score by source of the roles, {wording.budget(found.budget)} of the context. {_about(inputs, found)}"
    return Comparison(caption, ("Roles from", "Retrieval heads", "Runs"), rows, "% right")


def _differences(inputs: PaperInputs, found: Ablation) -> Comparison:
    others = dict.fromkeys(item.kind for item in found.labels if item.kind != BEST)
    kinds = sorted(others, key=lambda name: name != RANDOM)
    rows = [row for data in found.data for kind in kinds if (row := _difference(inputs, found, kind, data)) is not None]
    caption = f"{BEST} minus another source, paired over all contexts, seeds averaged. {_about(inputs, found)}"
    return Comparison(caption, (f"{BEST} minus", "Trained on", "Retrieval heads"), rows, "points")


def _difference(inputs: PaperInputs, found: Ablation, kind: str, data: str) -> Compared | None:
    measured = gap(inputs, found, kind, data)
    if measured is None:
        return None
    column = data_column(data)
    mine, theirs = (
        inputs.published.figure("heads", column, kind=name) if column else None for name in (BEST, kind)
    )  # fmt: skip
    printed = None if mine is None or theirs is None else mine.value - theirs.value
    verdict, level = direction(printed, measured.low, measured.high)
    return Compared(
        of=[kind, data, _equal_heads(found, kind, data)],
        published=wording.DASH if printed is None else number(printed, 2, signed=True),
        mark="" if mine is None or printed is None else mine.mark,
        measured=points_text(measured.value),
        interval=points_interval(measured.low, measured.high),
        verdict=verdict,
        level=level,
        reason=WORDS["heads"]["random" if kind == RANDOM else "reason"],
    )


def _single(inputs: PaperInputs, found: Ablation) -> Cells:
    rows = []
    for item in found.labels:
        samples = found.samples[item.label]
        mean = pairs.estimate(samples, inputs.results.confidence, resamples(inputs), found.model, item.label)
        parts = [
            number(100 * pairs.mean_of(part), 1) if part else wording.DASH
            for suite in SUITES
            for part in [{key: sample for key, sample in samples.items() if key[0] == suite}]
        ]
        bounds = wording.interval(100 * mean.low, 100 * mean.high, 1)
        seed = wording.DASH if item.seed is None else str(item.seed)
        heads = wording.DASH if item.heads is None else str(item.heads)
        rows.append([item.label, item.family, seed, heads, number(100 * mean.value, 1), bounds, *parts])
    heads_ = ("Label", "Roles from", "Seed", "Retrieval heads", "Both suites", "Interval", *SUITES)
    caption = f"Every label by itself, per cent right at {wording.budget(found.budget)}. {_about(inputs, found)}"
    return Cells(caption, heads_, rows, frozenset({2, 3, 4, 6, 7}), fold="Single labels and seeds")


def _printed(inputs: PaperInputs) -> Comparison:
    rows = []
    for row in inputs.published.tables["heads"].rows:
        for column in ("passkey", "hotpotqa"):
            printed = inputs.published.figure("heads", column, kind=row["kind"])
            if printed is not None:
                rows.append(
                    Compared([row["kind"], column], printed.text, printed.mark, wording.DASH, "", "not measured")
                )
    return Comparison("In print.", ("Roles from", "Trained on"), rows, "points")


def _agreement(model: str, found: Sequence[Training]) -> list[Block]:
    """Shared heads beyond layer 0 for every two trainings of a family, and of the first family with each other one."""
    firsts = list({training.family: training for training in reversed(found)}.values())[::-1]
    same = [(a, b) for a, b in combinations(found, 2) if a.family == b.family]
    across = [(firsts[0], other) for other in firsts[1:]]
    rows = [_agreement_row(a, b) for a, b in (*same, *across)]
    if not rows:
        return []
    heads = ("One training", "Another", "Heads", "Shared", "Expected by chance", "Jaccard", "By chance", "p of chance")
    return [
        Heading(
            f"Agreement between trainings{'' if model == 'miniature' else f': {model}'}", f"agreement-{slug(model)}"
        ),
        Prose(WORDS["agreement"]["text"]),
        Cells(f"Agreement of learned roles, {model}.", heads, rows, frozenset({2, 3, 4, 5, 6, 7})),
    ]


def _agreement_row(a: Training, b: Training) -> list[str]:
    first, second = (_beyond_layer_0(training) for training in (a, b))
    total = (a.roles.layers - 1) * a.roles.kv_heads
    shared, union = len(first & second), len(first | second)
    expected = len(first) * len(second) / total
    by_chance = expected / (len(first) + len(second) - expected) if first or second else 0.0
    tail = float(hypergeom.sf(shared - 1, total, len(first), len(second)))
    return [
        a.words, b.words, f"{len(first)} and {len(second)} of {total}", str(shared), number(expected, 1),
        number(shared / union, 2) if union else wording.DASH, number(by_chance, 2), wording.p_value(tail),
    ]  # fmt: skip


def _beyond_layer_0(training: Training) -> set[tuple[int, int]]:
    return {
        (layer, head)
        for layer, row in enumerate(training.roles.roles)
        for head, role in enumerate(row)
        if role and layer > 0
    }


def _about(inputs: PaperInputs, found: Ablation) -> str:
    return inputs.about(found.model, None)


def _heads(labels: Sequence[Scored]) -> str:
    counts = sorted({item.heads for item in labels if item.heads is not None})
    return " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1]))) if counts else wording.DASH


def _equal_heads(found: Ablation, kind: str, data: str) -> str:
    families = (found.pick(BEST, data), found.pick(kind, data))
    ours, theirs = (_heads([item for item in found.labels if item.family == name]) for name in families)
    return ours if ours == theirs else f"{ours} against {theirs}"
