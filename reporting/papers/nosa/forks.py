"""Read the forks of a run, which model is which fork, and what they answer beside the full fork and one another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from longdecode.evals.records import Record
from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import (
    Block,
    Cells,
    Compared,
    Comparison,
    Picture,
    Prose,
    compared,
    direction,
    flips,
    points_interval,
    points_text,
)
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.charts import training_figure
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


def full_forks(inputs: PaperInputs, place: Place) -> list[Fork]:
    """Return the full forks that were scored in a place; more than one where full attention was trained again."""
    return [f for f in forks(inputs) if f.attention == "full" and inputs.records(f.model, [place[:2]])]


def base_of(inputs: PaperInputs, place: Place) -> Fork | None:
    """Return the full fork that a place's forks are set beside: of two, the one with more answers there."""

    def answers(fork: Fork) -> int:
        return sum(record.label == REFERENCE_METHOD for record in inputs.records(fork.model, [place[:2]]))

    return max(full_forks(inputs, place), key=answers, default=None)


def trainings(inputs: PaperInputs) -> list[Block]:
    """Return the end of every training, beside the full fork of the same checkpoint."""
    words, curves = inputs.words("forks"), training_curves(inputs)
    if not curves:
        return [Prose(words["text"]), inputs.missing(words["missing"], "train")]
    full = [fork.name for fork in forks(inputs) if fork.attention == "full"]
    again = [Prose(words["again"].format(forks=wording.listing(full)))] if len(full) > 1 else []
    figure = training_figure(inputs.writer, {path.parent.name: curve for path, curve in curves.items()})
    return [Prose(words["text"]), training_table(inputs, curves), *again, Picture(figure)]


def training_curves(inputs: PaperInputs) -> Mapping[Path, pd.DataFrame]:
    """Return the curve of every training that the run holds, by its file."""
    return {path: pd.read_csv(path) for path in sorted((inputs.folder / "forks").glob("*/*/curve.csv"))}


def training_table(inputs: PaperInputs, curves: Mapping[Path, pd.DataFrame]) -> Cells:
    """Return a table of the ends of trainings."""
    rows = []
    for path, curve in curves.items():
        last = curve.iloc[-1]
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
    heads = ("Fork", "Checkpoint", "Attention", "Head", "Tokens", "Rate", "Prose", "Answers", "Sure answers, %",
             "Overlap, %", "Time", "Device")  # fmt: skip
    return Cells(inputs.words("forks")["caption"], heads, rows, frozenset({4, 5, 6, 7, 8, 9, 10}))


def quality(inputs: PaperInputs) -> list[Block]:
    """Return every fork and method minus the full fork, and NOSA's fork minus each of the others, suite by suite."""
    words, blocks = inputs.words("quality"), list[Block]()
    for place in places(inputs):
        base = base_of(inputs, place)
        full = samples(inputs, base.model, REFERENCE_METHOD, place) if base else {}
        rows = []
        for fork in forks(inputs) if base else []:
            for label in shown(inputs, fork, place):
                if ours := samples(inputs, fork.model, label, place):
                    of, printed = [fork.title, label], _in_print(inputs, fork, label)
                    gap = own_gap(inputs, fork, label, ours, full, place) if fork == base else None
                    row = against(inputs, of, ours, full, printed, place, gap)
                    rows.append(with_reads(inputs, row, fork, label, place))
        if full and rows:
            caption = words["caption"].format(**named(place))
            blocks.append(Comparison(caption, ("Fork", "Method", "Tokens read"), rows, "points"))
        leads = [lead(inputs, fork, label, place) for fork, label in rivals(inputs, place)]
        if over := [row for row in leads if row is not None]:
            nosa = fork_of(inputs, "nosa")
            about = {**named(place), "reads": reads(inputs, nosa.model if nosa else "", "nosa", place)}
            heads = ("Than", "Method", "Tokens read")
            blocks.append(Comparison(words["over"].format(**about), heads, over, "points"))
    left = {task: mean for place in places(inputs) for task, mean in unanswered(inputs, place).items()}
    names = ", ".join(f"`{task}` ({wording.percent(mean)} %)" for task, mean in sorted(left.items()))
    text = words["text"] + (" " + words["left_out"].format(tasks=names, floor=wording.percent(FLOOR)) if left else "")
    blocks = [Prose(words["reads"]), *blocks] if blocks else [inputs.missing(words["missing"])]
    return [Prose(text), *blocks, _print_only(inputs)]


def _print_only(inputs: PaperInputs) -> Comparison:
    """Return the suites that print has and this run does not, with the reason."""
    words, figure, rows = inputs.words("quality"), inputs.published.figure, []
    for suite, why in words["why_not"].items():
        is_reasoning = suite == "long reasoning"
        printed = [
            figure("reasoning", "average", method=name) if is_reasoning else figure("quality", name, suite=suite)
            for name in ("nosa", "full" if is_reasoning else "infllm2")
        ]
        gap = printed[0].minus(printed[1]) if printed[0] and printed[1] else None
        minus = f"NOSA minus {'full attention' if is_reasoning else 'InfLLM-V2'}"
        rows.append(compared([suite, minus], gap, reason=why))
    return Comparison(words["print_only"], ("Suite", "Difference"), rows, "points")


def rivals(inputs: PaperInputs, place: Place) -> list[tuple[Fork, str]]:
    """Return the other sparse forks, and the full forks under every method that needs no training."""
    others = [(fork, fork.attention) for name in ("infllm2", "dma") if (fork := fork_of(inputs, name))]
    return others + [(base, label) for base in full_forks(inputs, place) for label in shown(inputs, base, place)]


def lead(inputs: PaperInputs, fork: Fork, label: str, place: Place) -> Compared | None:
    """Return NOSA's fork minus a rival, if both were scored."""
    nosa = fork_of(inputs, "nosa")
    ours = samples(inputs, nosa.model, "nosa", place) if nosa else {}
    theirs = samples(inputs, fork.model, label, place)
    if not ours or not theirs:
        return None
    printed = [inputs.published.figure("quality", name, suite="RULER") for name in ("nosa", "infllm2")]
    like = fork.attention == "infllm2" and place[0] == "ruler" and all(printed)
    gap = printed[0].minus(printed[1]) if like and printed[0] and printed[1] else None
    row = with_reads(inputs, against(inputs, [fork.title, label], ours, theirs, gap, place), fork, label, place)
    fork_name, method, read = row.of
    return replace(row, of=[fork_name, with_tasks(inputs, method, ours, theirs), read])


def with_tasks(inputs: PaperInputs, method: str, ours: pairs.Scored, theirs: pairs.Scored) -> str:
    """Return a method's name with the tasks that count, where the other side lacks some of them."""
    tasks, all_tasks = ({key[1] for key in found} for found in (theirs, ours))
    if tasks >= all_tasks:
        return method
    names = wording.listing(sorted(f"`{task}`" for task in tasks & all_tasks))
    return inputs.words("quality")["some_tasks"].format(method=method, tasks=names)


def parts(inputs: PaperInputs) -> list[Block]:
    """Return each variant minus NOSA as trained, on NOSA's fork."""
    words, blocks, fork = inputs.words("parts"), list[Block](), fork_of(inputs, "nosa")
    for place in places(inputs) if fork else []:
        own = samples(inputs, fork.model if fork else "", "nosa", place)
        rows = []
        for label in inputs.labels("nosa", fork.model if fork else None):
            if label != "nosa" and own and (varied := samples(inputs, fork.model if fork else "", label, place)):
                rows.append(against(inputs, [words["names"].get(label, label)], varied, own, None, place))
        if rows:
            blocks.append(Comparison(words["caption"].format(**named(place)), ("Variant",), rows, "points"))
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
    base = base_of(inputs, place)
    if base is None or place[0] in BOOKS:
        return {}
    scores: dict[str, list[float]] = {}
    for record in inputs.records(base.model, [place[:2]]):
        if record.label == REFERENCE_METHOD and record.unit == "fraction":
            scores.setdefault(record.task, []).append(float(record.score or 0.0))
    means = {task: sum(found) / len(found) for task, found in scores.items()}
    return {task: mean for task, mean in means.items() if mean < FLOOR}


def samples(inputs: PaperInputs, model: str, label: str, place: Place) -> Mapping[pairs.Key, pairs.Sample]:
    """Return the samples of a label on a model in one place.

    On books a sample's score is the model's own loss: the record's is a distance from the same model's Full.
    """
    found = records_of(inputs, model, label, place)
    if place[0] in BOOKS:
        found = [r.model_copy(update={"score": r.measures["loss"], "parts": None}) for r in found]
    return pairs.scored(found)


def records_of(inputs: PaperInputs, model: str, label: str, place: Place) -> list[Record]:
    """Return the records behind the samples of a label.

    A method without a budget stands for every budget, a label with a budget of its own for that one. Tasks that nobody
    answers are left out.
    """
    suite, context, _ = place
    budgets = (_budget(inputs, label, place), "full")
    found = [r for r in inputs.records(model, [(suite, context)]) if r.label == label and r.budget in budgets]
    if suite in BOOKS:
        return [r for r in found if "loss" in r.measures]
    left = unanswered(inputs, place)
    return [r for r in found if r.unit == "fraction" and r.task not in left]


def reads(inputs: PaperInputs, model: str, label: str, place: Place) -> str:
    """Return the tokens that a step reads in a KV head, the mean over layers, steps and samples."""
    found = [r.measures["kv_tokens_read"] for r in records_of(inputs, model, label, place)]
    return f"{sum(found) / len(found):,.0f}" if found else wording.DASH


def with_reads(inputs: PaperInputs, row: Compared, fork: Fork, label: str, place: Place) -> Compared:
    """Return a row with its budget, where that is the label's own, and with what the label reads."""
    fork_name, method = row.of
    if (budget := _budget(inputs, label, place)) != place[2]:
        kind = inputs.results.kind(label)
        method = inputs.words("quality")["equal"].format(method=kind, budget=wording.budget(budget))
    return replace(row, of=[fork_name, method, reads(inputs, fork.model, label, place)])


def equal_reads(inputs: PaperInputs, fork: Fork, suite: str) -> list[str]:
    """Return the labels that run a method on a suite at the budget at which it reads as many tokens as NOSA."""
    kinds = untrained(inputs, fork)
    table = inputs.results.summary
    ran = set(table.loc[(table["model"] == fork.model) & (table["suite"] == suite), "method"])
    return [
        label for label, spec in _methods(inputs).items()
        if label in ran and (spec or {}).get("budgets") and (spec or {}).get("method") in kinds
    ]  # fmt: skip


def _budget(inputs: PaperInputs, label: str, place: Place) -> str:
    own = (_methods(inputs).get(label) or {}).get("budgets")
    return str(own[0]) if own else place[2]


def _methods(inputs: PaperInputs) -> Mapping[str, Any]:
    return inputs.results.config.get("methods") or {}


def untrained(inputs: PaperInputs, fork: Fork) -> Sequence[str]:
    """Return the labels scored on a fork that was not trained for them."""
    table = inputs.results.summary
    rows = table[(table["model"] == fork.model) & (table["status"] == "ok") & (table["kind"] == table["method"])]
    return [label for label in inputs.results.labels if label in set(rows["method"]) - {REFERENCE_METHOD}]


def shown(inputs: PaperInputs, fork: Fork, place: Place) -> Sequence[str]:
    """Return the labels shown for a fork: its own attention; on the full fork every method that needs no training.

    Those stand at NOSA's budget and, where the run has it, at the budget at which they read as many tokens.
    """
    if fork.attention != "full":
        return [fork.attention] if fork.head == "ed_dma" else []
    return [*untrained(inputs, fork), *equal_reads(inputs, fork, place[0])]


def _in_print(inputs: PaperInputs, fork: Fork, label: str) -> PublishedFigure | None:
    """Return what is in print for a method minus full attention, for the sign alone."""
    if (fork.attention, label) != ("nosa", "nosa"):
        return None
    ours, full = (inputs.published.figure("reasoning", "average", method=name) for name in ("nosa", "full"))
    return ours.minus(full) if ours and full else None


def own_gap(
    inputs: PaperInputs, fork: Fork, label: str, ours: pairs.Scored, full: pairs.Scored, place: Place
) -> pairs.Paired:  # fmt: skip
    """Return a method minus Full on one fork, which the suite's page has too."""
    budgets = {record.budget for record in records_of(inputs, fork.model, label, place)}
    return inputs.minus_full(ours, full, fork.model, label, min(budgets, default=place[2]))


def against(
    inputs: PaperInputs, of: list[str], ours: pairs.Scored, theirs: pairs.Scored, printed: PublishedFigure | None,
    place: Place, gap: pairs.Paired | None = None,
) -> Compared:  # fmt: skip
    """Return the row of one set of samples minus another, beside what is in print for it."""
    gap = gap or inputs.paired(ours, theirs, *of, *place)
    verdict, level = direction(None if printed is None else printed.value, gap, inputs.alpha)
    return compared(of, printed, points_text(gap.value), points_interval(gap), verdict, level, flips(gap))


def named(place: Place) -> dict[str, str]:
    """Return suite, context and budget as captions name them."""
    return {"suite": place[0], "context": f"{place[1]:,}", "budget": wording.budget(place[2])}
