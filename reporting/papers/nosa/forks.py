"""Read the forks of a run: their trainings, and which model of the run is which fork."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import (
    Block,
    Cells,
    Compared,
    Comparison,
    Level,
    Prose,
    compared,
    direction,
    flips,
    p_text,
    points_interval,
    points_text,
)
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.published import PublishedFigure
from longdecode.reporting.results import REFERENCE_METHOD

BOOKS = ("pg19_long",)
FLOOR = 0.2
"""A task that the full fork answers less of with full attention tells forks nothing apart."""
Place = tuple[str, int, str]
"""Suite, context and budget."""


@dataclass(frozen=True, slots=True)
class Fork:
    """One fork that the run scored: the run's model, what it was trained with, and a rate unlike the others'."""

    name: str
    model: str
    attention: str
    head: str
    rate: float | None = None

    @property
    def title(self) -> str:
        """Name it, with its rate where a reader must not take it for the others'."""
        return self.name if self.rate is None else f"{self.name} (learned at {self.rate:g})"


def forks(inputs: PaperInputs) -> list[Fork]:
    """Return the forks among the run's models, in the configuration's order."""
    adaptation = inputs.results.config.get("adaptation") or {}
    runs: Mapping[str, Any] = adaptation.get("runs") or {}
    shared: Mapping[str, Any] = adaptation.get("defaults") or {}
    models = inputs.results.config.get("models") or {}
    found = []
    for name, given in runs.items():
        said = {**shared, **(given or {})}
        path = f"results/{inputs.results.profile}/forks/{said.get('model')}/{name}/model"
        model = next((m for m, spec in models.items() if str((spec or {}).get("path", "")).rstrip("/") == path), None)
        if model is not None:
            rate = said.get("lr") if said.get("lr") != shared.get("lr") else None
            found.append(Fork(name, model, str(said.get("attention")), str(said.get("head", "ed_dma")), rate))
    return found


def fork_of(inputs: PaperInputs, attention: str, head: str = "ed_dma") -> Fork | None:
    """Return the fork with an attention, and a form of head where it has one."""
    return next((f for f in forks(inputs) if (f.attention, f.head) == (attention, head)), None)


def trainings(inputs: PaperInputs) -> list[Block]:
    """Return the end of every training, beside the full fork of the same checkpoint."""
    words = inputs.words("forks")
    rows = []
    for path in sorted((inputs.folder / "forks").glob("*/*/curve.csv")):
        last = pd.read_csv(path).iloc[-1]
        run = json.loads((path.parent / "run.json").read_text(encoding="utf-8"))
        said = run["settings"]
        tokens = int(last["step"]) * said["rows"] * said["length"]
        shown = [wording.number(last[name], 4) for name in ("prose", "answers")]
        sure = wording.number(100 * last["sure"], 1)
        gamma = wording.DASH if pd.isna(last["gamma"]) else wording.number(100 * last["gamma"], 1)
        head = said["head"] if said["attention"] in ("nosa", "dma") else ""
        rows.append(
            [path.parent.name, said["model"], said["attention"], head, f"{tokens / 1e6:.2f} M", f"{said['lr']:g}",
             *shown, sure, gamma, f"{last['seconds']:.0f} s", str(run["device"])]
        )  # fmt: skip
    if not rows:
        return [Prose(words["text"]), inputs.missing(words["missing"], "train")]
    heads = ("Fork", "Checkpoint", "Attention", "Head", "Tokens", "Rate", "Prose", "Answers", "Sure answers, %",
             "Overlap, %", "Time", "Device")  # fmt: skip
    return [Prose(words["text"]), Cells(words["caption"], heads, rows, frozenset({4, 5, 6, 7, 8, 9, 10}))]


def quality(inputs: PaperInputs) -> list[Block]:
    """Return every fork and method minus the full fork, and NOSA's fork minus each of the others, suite by suite."""
    words, blocks = inputs.words("quality"), list[Block]()
    base = fork_of(inputs, "full")
    for place in places(inputs) if base else []:
        full = samples(inputs, base.model if base else "", REFERENCE_METHOD, place)
        rows = []
        for fork in forks(inputs):
            for label in _shown(inputs, fork):
                if ours := samples(inputs, fork.model, label, place):
                    of, lead = [fork.title, label], _lead(inputs, fork, label)
                    gap = _own_gap(inputs, fork, label, ours, full, place) if fork == base else None
                    rows.append(_against(inputs, of, ours, full, lead, place, gap))
        if full and rows:
            caption = words["caption"].format(**_named(place))
            blocks.append(Comparison(caption, ("Fork", "Method"), rows, "points"))
        if over := _leads(inputs, place):
            blocks.append(Comparison(words["over"].format(**_named(place)), ("Than", "Method"), over, "points"))
    left = {task: mean for place in places(inputs) for task, mean in unanswered(inputs, place).items()}
    named = ", ".join(f"`{task}` ({wording.percent(mean)} %)" for task, mean in sorted(left.items()))
    text = words["text"] + (" " + words["left_out"].format(tasks=named, floor=wording.percent(FLOOR)) if left else "")
    return [Prose(text), *(blocks or [inputs.missing(words["missing"])])]


def _leads(inputs: PaperInputs, place: Place) -> list[Compared]:
    """Return NOSA's fork minus the other sparse forks, and minus what needs no training on the full fork."""
    nosa, base = fork_of(inputs, "nosa"), fork_of(inputs, "full")
    ours = samples(inputs, nosa.model, "nosa", place) if nosa else {}
    others = [(fork, fork.attention) for name in ("infllm2", "dma") if (fork := fork_of(inputs, name))]
    others += [(base, label) for label in _shown(inputs, base)] if base else []
    rows = []
    for fork, label in others if ours else []:
        if theirs := samples(inputs, fork.model, label, place):
            printed = [inputs.published.figure("quality", name, suite="RULER") for name in ("nosa", "infllm2")]
            like = fork.attention == "infllm2" and place[0] == "ruler" and all(printed)
            lead = printed[0].minus(printed[1]) if like and printed[0] and printed[1] else None
            rows.append(_against(inputs, [fork.title, label], ours, theirs, lead, place))
    return rows


def books(inputs: PaperInputs) -> list[Block]:
    """Return each fork's loss on books minus the full fork's with full attention, and NOSA's fork minus the others."""
    words, blocks = inputs.words("books"), list[Block]()
    base = fork_of(inputs, "full")
    for place in places(inputs, BOOKS) if base else []:
        if not (full := samples(inputs, base.model if base else "", REFERENCE_METHOD, place)):
            continue
        own = {
            (fork, label): found
            for fork in forks(inputs)
            for label in (*_shown(inputs, fork), *([fork.attention] if fork.head != "ed_dma" else []))
            if (found := samples(inputs, fork.model, label, place))
        }
        rows = [
            _loss_gap(
                inputs, [fork.title, label], found, full, place,
                _own_gap(inputs, fork, label, found, full, place) if fork == base else None,
            )
            for (fork, label), found in own.items()
        ]  # fmt: skip
        nosa = next((found for (fork, label), found in own.items() if fork == fork_of(inputs, "nosa")), None)
        rows += [
            _loss_gap(inputs, [f"nosa minus {fork.title}", label], nosa, found, place)
            for (fork, label), found in own.items()
            if nosa is not None and found is not nosa
        ]
        if rows:
            count = len({sample.problem for sample in full.values()})
            caption = words["caption"].format(task=next(iter(full))[1], books=count, **_named(place))
            blocks.append(Comparison(caption, ("Fork", "Method"), rows, "nats a token"))
    return [Prose(words["text"]), *(blocks or [inputs.missing(words["missing"])])]


def heads(inputs: PaperInputs) -> list[Block]:
    """Return the forms of the importance head: in print, each NOSA fork with its own, and their differences."""
    words, rows = inputs.words("heads"), list[Compared]()
    where = [place for place in places(inputs) if place[0] == "ruler"]
    for row in inputs.published.rows("heads"):
        printed, fork = (
            inputs.published.figure("heads", "ruler", head=row["head"]),
            fork_of(inputs, "nosa", row["head"]),
        )
        found = samples(inputs, fork.model, "nosa", where[0]) if fork and where else {}
        if not found:
            rows.append(compared([row["head"]], printed))
            continue
        mean = inputs.estimate(found, "heads", row["head"])
        bounds = wording.interval(100 * mean.low, 100 * mean.high, 1)
        value = wording.number(100 * mean.value, 1)
        rows.append(compared([row["head"]], printed, value, bounds, "other model", "muted", "the order counts"))
    caption = words["caption"].format(suite="ruler", context=f"{where[0][1]:,}" if where else wording.DASH)
    found_any = any(row.verdict != "not measured" for row in rows)
    more = [] if found_any else [inputs.missing(words["missing"])]
    return [Prose(words["text"]), Comparison(caption, ("Head",), rows, "points"), *_forms(inputs), *more]


def _forms(inputs: PaperInputs) -> list[Block]:
    """Return NOSA's fork minus each fork with another form of the head, suite by suite."""
    nosa, rows = fork_of(inputs, "nosa"), list[Compared]()
    others = [fork for fork in forks(inputs) if fork.attention == "nosa" and fork != nosa]
    for place in places(inputs) if nosa else []:
        ours = samples(inputs, nosa.model if nosa else "", "nosa", place)
        for fork in others:
            if ours and (theirs := samples(inputs, fork.model, "nosa", place)):
                rows.append(_against(inputs, [place[0], fork.head], ours, theirs, None, place))
    return [Comparison(inputs.words("heads")["over"], ("Suite", "Form"), rows, "points")] if rows else []


def parts(inputs: PaperInputs) -> list[Block]:
    """Return each variant minus NOSA as trained, on NOSA's fork."""
    words, blocks, fork = inputs.words("parts"), list[Block](), fork_of(inputs, "nosa")
    for place in places(inputs) if fork else []:
        own = samples(inputs, fork.model if fork else "", "nosa", place)
        rows = []
        for label in inputs.labels("nosa", fork.model if fork else None):
            if label != "nosa" and own and (varied := samples(inputs, fork.model if fork else "", label, place)):
                rows.append(_against(inputs, [words["names"].get(label, label)], varied, own, None, place))
        if rows:
            blocks.append(Comparison(words["caption"].format(**_named(place)), ("Variant",), rows, "points"))
    return [Prose(words["text"]), *(blocks or [inputs.missing(words["missing"])])]


def places(inputs: PaperInputs, suites: Sequence[str] = ()) -> list[Place]:
    """Return suite, context and budget of every cell that NOSA was scored in, of the page's suites or of some."""
    table = inputs.results.summary
    wanted = table["suite"].isin(suites or inputs.spec.suites)
    rows = table[(table["kind"] == "nosa") & (table["status"] == "ok") & wanted]
    columns = (rows[name].tolist() for name in ("suite", "context", "budget"))
    return sorted({(str(suite), int(context), str(budget)) for suite, context, budget in zip(*columns, strict=True)})


def unanswered(inputs: PaperInputs, place: Place) -> Mapping[str, float]:
    """Return the tasks of a place under ``FLOOR``, with the share that the full fork answers with full attention."""
    base = fork_of(inputs, "full")
    if base is None or place[0] in BOOKS:
        return {}
    scores: dict[str, list[float]] = {}
    for record in inputs.records(base.model, [place[:2]]):
        if record.label == REFERENCE_METHOD and record.unit == "fraction":
            scores.setdefault(record.task, []).append(float(record.score or 0.0))
    means = {task: sum(found) / len(found) for task, found in scores.items()}
    return {task: mean for task, mean in means.items() if mean < FLOOR}


def samples(inputs: PaperInputs, model: str, label: str, place: Place) -> Mapping[pairs.Key, pairs.Sample]:
    """Return the samples of a label on a model in one place; a method without a budget stands for every budget.

    Tasks that nobody answers are left out. On books a sample's score is the model's own loss: the record's is a
    distance from the same model's Full.
    """
    suite, context, budget = place
    found = [
        record for record in inputs.records(model, [(suite, context)])
        if record.label == label and record.budget in (budget, "full")
    ]  # fmt: skip
    if suite in BOOKS:
        return pairs.scored(
            [r.model_copy(update={"score": r.measures["loss"], "parts": None}) for r in found if "loss" in r.measures]
        )
    left = unanswered(inputs, place)
    return pairs.scored([record for record in found if record.unit == "fraction" and record.task not in left])


def untrained(inputs: PaperInputs, fork: Fork) -> Sequence[str]:
    """Return the labels scored on a fork that was not trained for them."""
    table = inputs.results.summary
    rows = table[(table["model"] == fork.model) & (table["status"] == "ok") & (table["kind"] == table["method"])]
    return [label for label in inputs.results.labels if label in set(rows["method"]) - {REFERENCE_METHOD}]


def _shown(inputs: PaperInputs, fork: Fork) -> Sequence[str]:
    """Return the labels shown for a fork: its own attention; on the full fork every method that needs no training."""
    if fork.attention != "full":
        return [fork.attention] if fork.head == "ed_dma" else []
    return untrained(inputs, fork)


def _lead(inputs: PaperInputs, fork: Fork, label: str) -> PublishedFigure | None:
    """Return what is in print for a method minus full attention, for the sign alone."""
    if (fork.attention, label) != ("nosa", "nosa"):
        return None
    ours, full = (inputs.published.figure("reasoning", "average", method=name) for name in ("nosa", "full"))
    return ours.minus(full) if ours and full else None


def _own_gap(
    inputs: PaperInputs, fork: Fork, label: str, ours: pairs.Scored, full: pairs.Scored, place: Place
) -> pairs.Paired:  # fmt: skip
    """Return a method minus Full on one fork, which the suite's page has too."""
    budgets = {
        r.budget for r in inputs.records(fork.model, [place[:2]]) if r.label == label and r.budget in (place[2], "full")
    }
    return inputs.minus_full(ours, full, fork.model, label, min(budgets, default=place[2]))


def _against(
    inputs: PaperInputs, of: list[str], ours: pairs.Scored, theirs: pairs.Scored, printed: PublishedFigure | None,
    place: Place, gap: pairs.Paired | None = None,
) -> Compared:  # fmt: skip
    gap = gap or inputs.paired(ours, theirs, *of, *place)
    verdict, level = direction(None if printed is None else printed.value, gap, inputs.alpha)
    return compared(of, printed, points_text(gap.value), points_interval(gap), verdict, level, flips(gap))


def _loss_gap(
    inputs: PaperInputs, of: list[str], ours: pairs.Scored, theirs: pairs.Scored, place: Place,
    gap: pairs.Paired | None = None,
) -> Compared:  # fmt: skip
    gap = gap or inputs.paired(ours, theirs, *of, *place)
    sign = gap.sign(inputs.alpha)
    verdict = "cannot be told apart" if sign == 0 else "more loss" if sign > 0 else "less loss"
    level: Level = "muted" if sign == 0 else "worse" if sign > 0 else "shown"
    reason = f"less in {gap.losses} of {gap.wins + gap.losses} books, {p_text(gap)}"
    text, bounds = wording.number(gap.value, 3, signed=True), wording.interval(gap.low, gap.high, 3, signed=True)
    return compared(of, None, text, bounds, verdict, level, reason)


def _named(place: Place) -> dict[str, str]:
    return {"suite": place[0], "context": f"{place[1]:,}", "budget": wording.budget(place[2])}
