"""Compare how models and contexts rank the methods: rank correlations with intervals, conclusions that hold or not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from longdecode.evals.budgets import bytes_share
from longdecode.evals.problems import samples_per_problem
from longdecode.evals.stats import generator
from longdecode.reporting.conclusions import Conclusion, Place, Scores, Statement, conclude, state, summary
from longdecode.reporting.printed_ranks import LEAST_METHODS as LEAST_IN_PRINT
from longdecode.reporting.printed_ranks import PrintedRanking, in_tokens
from longdecode.reporting.results import REFERENCE_METHOD, Results
from longdecode.reporting.wording import MINUS, budget, budget_order, number, short_tokens

LEAST_METHODS = 4
RESAMPLES = 1000
Problem = tuple[str, int, int]
"""Task, seed, number."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Spearman's correlation of the methods' ranks at two places, at one budget, with its interval."""

    suite: str
    budget: str
    first: str
    second: str
    methods: int
    value: str
    bounds: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """The page: conclusions, in words and one by one, correlations at equal budgets, at equal bytes and with print.

    ``missing`` says what the run lacks.
    """

    budgets: list[Correlation]
    bytes: list[Correlation]
    printed: list[Correlation]
    conclusions: list[Conclusion]
    statements: list[Statement]
    words: list[str]
    missing: list[str]


def transfer(
    results: Results,
    instruments: Collection[str],
    labels: Collection[str],
    rankings: Sequence[PrintedRanking] = (),
    families: Mapping[str, str] | None = None,
) -> Transfer:
    """Compare every two places of a suite.

    Args:
        results: without ablations.
        instruments: models that are miniatures.
        labels: methods that are compared, Full aside.
        rankings: those in print.
        families: label to the name of its family.
    """
    real = [model for model in results.models if model not in instruments]
    table = _table(results, labels)
    budgets: list[Correlation] = []
    of_bytes: list[Correlation] = []
    for (suite, text), places in sorted(table.items(), key=lambda entry: (entry[0][0], budget_order(entry[0][1]))):
        pairs = _pairs(places, instruments)
        target = budgets if bytes_share(text) is None else of_bytes
        target += [found for a, b in pairs if (found := _correlation(suite, text, places, a, b, results.confidence))]
    kept = {
        _main(text for _, text in table if bytes_share(text) is None),
        *(t for _, t in table if bytes_share(t) is not None),
    }
    units = {r.suite: r.unit for r in results.records}
    chosen = {key: places for key, places in table.items() if key[1] in kept}
    order = ("reverses", "undecided", "ceiling", "holds")
    conclusions = sorted(
        conclude(chosen, instruments, units, results.confidence),
        key=lambda c: (order.index(c.outcome), c.suite, budget_order(c.budget), c.weakest.value),
    )
    words = list(summary(conclusions, len(set(results.models) & set(instruments)))) or _least_alike(budgets)
    printed = [row for ranking in rankings for row in _with_print(table, ranking, instruments, results.confidence)]
    missing = _missing(results, real, instruments, of_bytes)
    return Transfer(budgets, of_bytes, printed, conclusions, state(conclusions, families or {}), words, missing)


def _table(results: Results, labels: Collection[str]) -> dict[tuple[str, str], dict[Place, Scores]]:
    """Scores by suite and budget, place and label; losses are turned round, so that more is better everywhere.

    The samples of one problem, such as the windows of a book, are one score: they depend on each other.
    """
    raw: dict[tuple[str, str], dict[Place, dict[str, dict[Problem, list[float]]]]] = {}
    for r in results.records:
        if r.status == "ok" and r.score is not None and r.label in labels and r.method != REFERENCE_METHOD:
            at = raw.setdefault((r.suite, r.budget), {}).setdefault((r.model, r.context), {})
            score = r.score if r.higher_is_better else -r.score
            problem = r.task, r.seed, r.sample_index // samples_per_problem(r.task)
            at.setdefault(r.label, {}).setdefault(problem, []).append(score)
    return {
        key: {place: scores for place, found in places.items() if (scores := _shared(found))}
        for key, places in raw.items()
    }


def _shared(found: Mapping[str, Mapping[Problem, Sequence[float]]]) -> Scores:
    """The labels that ran on every sample that any ran on, each problem's mean score in one order."""
    sizes: dict[Problem, int] = {}
    for mine in found.values():
        sizes |= {key: max(len(scores), sizes.get(key, 0)) for key, scores in mine.items()}
    order = sorted(sizes)
    return {
        label: np.array([np.mean(mine[key]) for key in order])
        for label, mine in found.items()
        if {key: len(scores) for key, scores in mine.items()} == sizes
    }


def _pairs(places: Mapping[Place, Scores], instruments: Collection[str]) -> list[tuple[Place, Place]]:
    """Pairs of models at their nearest contexts, and of a model's shortest context and every longer one."""
    found = []
    models = list(dict.fromkeys(model for model, _ in sorted(places, key=lambda p: (p[0] not in instruments, p))))
    for model in models:
        contexts = sorted(context for name, context in places if name == model)
        found += [((model, contexts[0]), (model, context)) for context in contexts[1:]]
    for one, other in combinations(models, 2):
        here = sorted(context for name, context in places if name == one)
        for place in sorted(place for place in places if place[0] == other):
            found.append(((one, min(here, key=lambda c: abs(np.log(c / place[1])))), place))
    return found


def _correlation(
    suite: str, text: str, places: Mapping[Place, Scores], a: Place, b: Place, confidence: float
) -> Correlation | None:
    labels = sorted(set(places[a]) & set(places[b]))
    if len(labels) < LEAST_METHODS:
        return None
    first, second = (np.stack([places[place][label] for label in labels]) for place in (a, b))
    rng = generator(0, "transfer", suite, text, a, b)
    value = spearman(first.mean(axis=1), second.mean(axis=1))
    draws = [spearman(_resampled(first, rng), _resampled(second, rng)) for _ in range(RESAMPLES)]
    return _row(suite, text, _named(a), _named(b), len(labels), value, draws, confidence)


def _with_print(
    table: Mapping[tuple[str, str], Mapping[Place, Scores]],
    ranking: PrintedRanking,
    instruments: Collection[str],
    confidence: float,
) -> Iterator[Correlation]:
    """Compare every place of a suite with print, at our budget nearest to the print's; print's means stay fixed."""
    for suite in ranking.suites:
        texts = in_tokens([text for name, text in table if name == suite])
        places = {place for text in texts for place in table[suite, text] if ranking.fits(place[1])}
        for place in sorted(places, key=lambda place: (place[0] not in instruments, place)):
            text = ranking.nearest([text for text in texts if place in table[suite, text]], place[1])
            scores = table[suite, text][place]
            labels = sorted(set(scores) & set(ranking.scores))
            if len(labels) < LEAST_IN_PRINT:
                continue
            mine, theirs = np.stack([scores[m] for m in labels]), np.array([ranking.scores[m] for m in labels])
            rng = generator(0, "print", suite, text, place)
            value = spearman(mine.mean(axis=1), theirs)
            draws = [spearman(_resampled(mine, rng), theirs) for _ in range(RESAMPLES)]
            if row := _row(suite, text, _named(place), ranking.words, len(labels), value, draws, confidence):
                yield row


def _row(
    suite: str, text: str, first: str, second: str, methods: int, value: float, draws: list[float], confidence: float
) -> Correlation | None:
    known = [draw for draw in draws if np.isfinite(draw)]
    if not np.isfinite(value) or not known:
        return None
    low, high = np.quantile(known, [(1 - confidence) / 2, (1 + confidence) / 2])
    bounds = f"[{number(low, 2)}, {number(high, 2)}]"
    return Correlation(suite, budget(text), first, second, methods, number(value, 2), bounds)


def _resampled(scores: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Means over samples drawn with replacement, the same for every method."""
    size = scores.shape[1]
    means: NDArray[np.float64] = scores[:, rng.integers(0, size, size)].mean(axis=1)
    return means


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return the correlation of ranks, ties sharing their mean rank; NaN where one side has no order."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / size if size > 0 else float("nan")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    below = (values[:, None] > values[None]).sum(axis=1)
    equal = (values[:, None] == values[None]).sum(axis=1)
    ranks: NDArray[np.float64] = below + (equal - 1) / 2
    return ranks


def _least_alike(budgets: Sequence[Correlation]) -> list[str]:
    """Say where the methods are ranked least alike."""
    if not budgets:
        return []
    low = min(budgets, key=lambda c: float(c.value.replace(MINUS, "-")))
    return [
        f"The methods are ranked least alike on {low.suite} at {low.budget}: {low.first} and {low.second}, rank "
        f"correlation {low.value} {low.bounds}."
    ]


def compared(results: Results) -> dict[str, str]:
    """Return the registered method behind every scored label but Full's."""
    return {label: kind for label in results.labels if (kind := results.kind(label)) != REFERENCE_METHOD}


def spread(own: Transfer) -> list[str]:
    """Say where the order of methods at one place tells least and most of that at another."""
    said = []
    for how, rows in (("At equal budgets", own.budgets), ("At equal bytes", own.bytes)):
        if rows:
            ordered = sorted(rows, key=lambda c: float(c.value.replace(MINUS, "-")))
            least, most = (
                f"{c.value} {c.bounds} on {c.suite} ({c.budget}, {c.first} and {c.second})"
                for c in (ordered[0], ordered[-1])
            )
            said.append(f"{how} the correlation is lowest, {least}, and highest, {most}.")
    return said


def _missing(
    results: Results, real: Sequence[str], instruments: Collection[str], of_bytes: Sequence[Correlation]
) -> list[str]:
    """Say what this run lacks, each with the command that makes it."""
    said = []
    if not real:
        said.append(
            "No real model was scored in this run, so nothing here says whether a conclusion of the miniature "
            "transfers. A run with one: add `smollm2-long: {path: smollm2-long}` to models, then "
            "`snakemake --cores 8 all --configfile FILE`."
        )
    elif not instruments:
        said.append(
            "No miniature was scored in this run, so there is no instrument to compare the model with: add "
            "`miniature: {path: miniature/weights}` to models."
        )
    if real and max((r.context for r in results.records if r.model in real), default=0) < 32768:
        said.append("The real model was scored below 32,768 tokens only: add 32768 to the suites' contexts.")
    if not of_bytes:
        said.append(
            "No budget in bytes was run, so methods are compared at equal budgets only: add `{bytes: 0.25}` to budgets "
            "and run the profile again."
        )
    return said


def _main(texts: object) -> str:
    known = sorted({str(text) for text in texts}, key=budget_order)  # type: ignore[attr-defined]
    return "0.1" if "0.1" in known else known[len(known) // 2] if known else ""


def _named(place: Place) -> str:
    return f"{place[0]} at {short_tokens(place[1])}"
