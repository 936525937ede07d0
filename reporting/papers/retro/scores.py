"""Put the paper's scores beside the checkpoints that ran: one number in print, one mean over tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from longdecode.evals.records import Record
from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import (
    Block,
    Cells,
    Comparison,
    Prose,
    agreement,
    compared,
    direction,
    flips,
    points_interval,
    points_text,
)
from longdecode.reporting.papers.inputs import PaperInputs, full_of
from longdecode.reporting.papers.printed import printed_only
from longdecode.reporting.results import REFERENCE_METHOD

SIZES = (15, 30, 45)
SHARE = 0.15
"""Share of the context that the paper's budget is."""
LONGGEN = {name: [f"longgenbench_{name}_{size}" for size in SIZES] for name in ("gsm8k", "mmlu", "csqa")}
REASONING = {"aime24": ["aime24"], "gpqa": ["gpqa_diamond"], "livecodebench": ["livecodebench_v5"]}


@dataclass(frozen=True, slots=True)
class PrintedScores:
    """Fill a part with a published table by model and method, whose columns are means over tasks of ours.

    Args:
        part: key of its words and name of its published table.
        tasks: by column, the tasks whose mean it is; those that ran count.
        command: key of the command that runs it.
    """

    part: str
    tasks: Mapping[str, Sequence[str]]
    command: str

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return every number in print beside ours, and how to run what is missing."""
        words, table = inputs.words(self.part), inputs.published.tables[self.part]
        known = known_models(inputs)
        rows = []
        for row in table.rows:
            model = known.get(row["model"])
            for column in table.columns:
                printed = inputs.published.figure(self.part, column, **{key: row[key] for key in table.keys})
                records = [] if model is None else of_method(inputs, model, row["method"], self.tasks[column])
                of = [inputs.published.models[row["model"]].title, row["method"], column]
                if printed is None and not records:
                    continue
                if not records:
                    rows.append(compared(of, printed, reason=words["absent" if model else "no_model"]))
                    continue
                scale = wording.scale(records[0].unit)
                found = inputs.estimate(pairs.scored(records), self.part, model, row["method"], column)
                values = [scale * value for value in (found.value, found.low, found.high)]
                verdict, level = agreement(None if printed is None else printed.value, *values)
                measured, bounds = wording.number(values[0], 1), wording.interval(values[1], values[2], 1)
                rows.append(compared(of, printed, measured, bounds, verdict, level, words["same"]))
        blocks: list[Block] = [Prose(words["text"].format(what=table.what))]
        blocks.append(Comparison("By method.", ("Model", "Method", "Source"), rows, table.unit))
        return blocks if known else [*blocks, inputs.missing(words["missing"], self.command)]


def gain_by_model(inputs: PaperInputs) -> list[Block]:
    """Return RetroAttention minus Quest for each model in print, and the fragments by number of questions."""
    words, table = inputs.words("gain"), inputs.published.tables["gain"]
    known, rows = known_models(inputs), []
    for row in table.rows:
        model = known.get(row["model"])
        for column in table.columns:
            printed = inputs.published.figure("gain", column, model=row["model"])
            ours, theirs = (
                pairs.scored([] if model is None else of_method(inputs, model, name, LONGGEN[column]))
                for name in ("retro", "quest")
            )
            of = [inputs.published.models[row["model"]].title, column]
            if ours and theirs:
                gap = inputs.paired(ours, theirs, model, "gain", column)
                verdict, level = direction(None if printed is None else printed.value, gap, inputs.alpha)
                cells = (points_text(gap.value), points_interval(gap), verdict, level, flips(gap))
                rows.append(compared(of, printed, *cells))
            elif printed is not None:
                rows.append(
                    compared(of, printed, reason=inputs.words("longgenbench")["absent" if model else "no_model"])
                )
    blocks: list[Block] = [Prose(words["text"].format(what=table.what))]
    blocks.append(Comparison("RetroAttention minus Quest.", ("Model", "Source"), rows, table.unit))
    if len(known) < 2:
        blocks.append(inputs.missing(words["missing"], "scale"))
    what = inputs.published.tables["by_size"].what
    return [
        *blocks,
        Prose(inputs.words("by_size")["text"].format(what=what)),
        printed_only(inputs.published, "by_size"),
    ]


def budget_by_benchmark(inputs: PaperInputs) -> list[Block]:
    """Return Quest at 5 % in print, and Quest by budget and number of answers on each model that ran."""
    words, what = inputs.words("budget"), inputs.published.tables["budget_sensitivity"].what
    found: list[Block] = [Prose(words["text"].format(what=what)), printed_only(inputs.published, "budget_sensitivity")]
    for model in inputs.compared_models():
        if rows := list(_quest_rows(inputs, model)):
            heads = ("Task", "Context", "Budget", "Right", "Interval", "Of Full")
            caption = words["measured"].format(about=inputs.about(model, None))
            found.append(Cells(caption, heads, rows, frozenset({1, 2, 3, 5})))
    return found


def _quest_rows(inputs: PaperInputs, model: str) -> Iterator[list[str]]:
    """Yield the scores of Quest's own label by task and budget."""
    quest = inputs.label("quest", model)
    for place in inputs.places(model):
        records = inputs.records(model, [place])
        for task in sorted({r.task for r in records}):
            mine = [r for r in records if r.task == task]
            full = full_of(mine)
            for budget in sorted({r.budget for r in mine if r.label == quest}, key=wording.budget_order):
                samples = pairs.scored([r for r in mine if r.label == quest and r.budget == budget])
                mean = inputs.score(samples, model, quest or "", budget)
                share = mean.value / max(pairs.mean_of(full), 1e-9) if full else float("nan")
                yield [
                    task, wording.short_tokens(place[1]), wording.budget(budget),
                    wording.score(mean.value, "fraction"), wording.score_interval(mean.low, mean.high, "fraction"),
                    f"{100 * share:.0f}{wording.NARROW}%",
                ]  # fmt: skip


def known_models(inputs: PaperInputs) -> dict[str, str]:
    """Return the paper's models that this run scored, by their name in print."""
    return {name: model for model in inputs.results.models if (name := inputs.paper_model(model))}


def of_method(inputs: PaperInputs, model: str, method: str, tasks: Sequence[str]) -> list[Record]:
    """Return the scored records of the label that ran a method at the paper's budget, where it ran any of the tasks.

    Full has no budget. Of several labels the first in table order stands for the method.
    """
    for label in inputs.labels(method, model):
        if method != REFERENCE_METHOD and inputs.params(label, model).get("share") != SHARE:
            continue
        found = [
            r
            for r in inputs.results.records
            if r.model == model and r.label == label and r.status == "ok" and r.task in tasks
        ]
        if found:
            return found
    return []
