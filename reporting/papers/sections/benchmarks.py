"""Put published benchmark tables beside the checkpoints that were scored on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longdecode.reporting import wording
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import Block, Compared, Comparison, Prose, agreement, compared
from longdecode.reporting.papers.inputs import PaperInputs

AVERAGE = "avg"
MODEL = "model"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Fill the part on one benchmark.

    Args:
        part: key of its words and name of its published table; columns are tasks, ``avg`` their mean.
        suite: suite of this project that asks the same.
        command: key of the command that runs it.
        partial: print averages over more tasks than were found, so its average has nothing to stand beside.
    """

    part: str
    suite: str
    command: str
    partial: bool = False

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return the table of every model in print, tasks folded below, and where other models stand."""
        table, words = inputs.published.tables[self.part], inputs.words(self.part)
        found: list[Block] = [Prose(words["text"].format(what=table.what))]
        ran = inputs.models_with(self.suite)
        known = {name: model for model in ran if (name := inputs.paper_model(model))}
        keys = [key for key in table.keys if key != MODEL]
        tasks = [column for column in table.columns if column != AVERAGE]
        for paper_model in dict.fromkeys(row.get(MODEL) for row in table.rows):
            model = known.get(paper_model or "")
            title = inputs.published.models[paper_model].title if paper_model else words["title"]
            of_model = [row for row in table.rows if row.get(MODEL) == paper_model]
            means = [self._row(inputs, model, row, keys, None, tasks) for row in of_model if AVERAGE in row or model]
            single = [
                self._row(inputs, model, row, keys, task, [task]) for row in of_model for task in tasks if task in row
            ]
            heads = [*(key.capitalize() for key in keys)]
            found.append(Comparison(f"{title}: average.", heads, means, table.unit))
            if single:
                found.append(
                    Comparison(f"{title}: single tasks.", [*heads, "Task"], single, table.unit, fold="Task by task")
                )
        if not known:
            found.append(inputs.missing(words["missing"].format(suite=self.suite), self.command))
        others = [model for model in ran if inputs.paper_model(model) is None]
        page = f"suite-{wording.slug(self.suite)}.html"
        more = inputs.words("benchmarks")["other"].format(models=wording.listing(others), page=page)
        return [*found, Prose(more)] if others else found

    def _row(
        self, inputs: PaperInputs, model: str | None, row: Mapping[str, Any], keys: Sequence[str], task: str | None,
        tasks: Sequence[str],
    ) -> Compared:  # fmt: skip
        """Return one number in print beside the same cell of this run, if it was run."""
        table, words = inputs.published.tables[self.part], inputs.words("benchmarks")
        printed = inputs.published.figure(self.part, task or AVERAGE, **{key: row[key] for key in table.keys})
        of = [wording.budget(row[key]) if key == "budget" else row[key] for key in keys]
        of += [task.replace("_", " ")] if task else []
        if model is None:
            return compared(of, printed, reason=words["absent"])
        whole = task is None and self.partial
        found = self._estimate(inputs, model, row["method"], row.get("budget"), None if whole else tasks)
        if found is None:
            return compared(of, printed, reason=f"{words['absent']} on {model}")
        verdict, level = agreement(None if printed is None else printed.value, *found)
        if whole:
            verdict, level = "not comparable", "muted"
        reason = words["average" if whole else "same"].format(context=f"{self._context(inputs, model):,}")
        measured, bounds = wording.number(found[0], 2), wording.interval(found[1], found[2], 2)
        return compared(of, printed, measured, bounds, verdict, level, reason)

    def _context(self, inputs: PaperInputs, model: str) -> int:
        return int(inputs.scores(self.suite, model)["context"].max())

    def _estimate(
        self, inputs: PaperInputs, model: str, label: str, budget: str | None, tasks: Sequence[str] | None
    ) -> tuple[float, float, float] | None:
        """Return the mean at the longest context over some tasks, or all, in points; none unless each ran."""
        records = [
            r
            for r in inputs.records(model, [(self.suite, self._context(inputs, model))])
            if r.label == label and budget in (None, r.budget)
        ]
        if tasks is not None:
            of_task = {task: [r for r in records if r.task == task or r.task.endswith(f"_{task}")] for task in tasks}
            records = [r for mine in of_task.values() for r in mine] if all(of_task.values()) else []
        if not records or len({r.budget for r in records}) > 1:
            return None
        scale = wording.scale(records[0].unit)
        found = inputs.score(pairs.scored(records), model, label, records[0].budget)
        return scale * found.value, scale * found.low, scale * found.high
