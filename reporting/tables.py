"""Build the rows of the pages' tables, every number written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from longdecode.evals.fingerprint import folder_hash
from longdecode.evals.records import Record
from longdecode.methods.registry import METHODS
from longdecode.reporting import wording
from longdecode.reporting.quality import with_traffic
from longdecode.reporting.results import ALL_TASKS, REFERENCE_METHOD, Results, Topic
from longdecode.reporting.traffic import cells

CEILING = 0.98
"""A task on which both sides score more is too easy to tell them apart."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a score table; ``status`` is ``ok`` or the reason why the numbers are missing."""

    label: str
    first: bool
    budget: str
    declared: str
    read: str
    bytes_share: str
    value: str
    bounds: str
    difference: str
    difference_bounds: str
    p_value: str
    lost: str
    won: str
    cut: str
    late: str
    n: str
    status: str
    note: int | None
    budget_text: str
    ceiling: bool


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """The scores of one topic: a group of rows for each context, and what the footnotes say.

    ``measured``, ``flips``, ``cut`` and ``late`` say whether any row has reads, answers won or lost against Full,
    generations that the length limit cut off, and completions that could not be scored in time; ``ceiling`` whether
    both sides of any comparison are over 98 %.
    """

    topic: Topic
    groups: list[tuple[int, list[Row]]]
    notes: list[str]
    mean_note: str
    measured: bool
    flips: bool
    cut: bool
    late: bool
    ceiling: bool

    @property
    def columns(self) -> int:
        """Columns that the table has: nine always, and those that say something."""
        return 9 + 2 * self.measured + 2 * self.flips + self.cut + self.late


@dataclass(frozen=True, slots=True)
class MissingResult:
    """Cells without a number that share status and reason."""

    status: str
    meaning: str
    reason: str
    cells: int
    methods: list[str]
    tasks: list[str]
    contexts: list[int]
    budgets: list[str] = field(default_factory=list)


def score_table(results: Results, topic: Topic) -> ScoreTable:
    """Return all methods, budgets and contexts of one task or suite mean."""
    rows = with_traffic(results.rows_of(topic))
    lost = [r for r in results.records if r.status != "ok"]
    notes: list[str] = []
    groups = []
    for context, at_context in rows.groupby("context"):
        order = {label: place for place, label in enumerate(results.labels)}
        ordered = at_context.sort_values(["method", "share"], key=lambda c: c.map(order) if c.name == "method" else c)
        seen: set[str] = set()
        lines = []
        for _, row in ordered.iterrows():
            lines.append(_row(results, lost, topic, row, row["method"] not in seen, notes))
            seen.add(row["method"])
        groups.append((int(str(context)), lines))
    return ScoreTable(
        topic, groups, notes, _mean_note(results, topic),
        measured=bool(rows["kv_tokens_read_sparse"].notna().any()),
        flips=any(line.lost for _, lines in groups for line in lines),
        cut=bool((rows["truncated"] > 0).any()),
        late=bool((rows["n_timeout"] > 0).any()),
        ceiling=any(line.ceiling for _, lines in groups for line in lines),
    )  # fmt: skip


def holes(records: Iterable[Record]) -> list[MissingResult]:
    """Return every cell that has no number, grouped by what kept it from one."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for r in records:
        if r.status != "ok":
            # Contexts have a column of their own, so that they need not tell reasons apart.
            reason = (r.reason or "no reason recorded").replace(f"at {r.context} tokens", "at this context")
            groups.setdefault((r.status, reason), []).append(r)
    return [
        MissingResult(
            status,
            wording.STATUS_WORDS.get(status, status),
            reason,
            len({(r.model, r.variant, r.task, r.budget, r.context, r.batch) for r in found}),
            sorted({r.variant for r in found}),
            sorted({r.task for r in found}),
            sorted({r.context for r in found}),
            [wording.budget(text) for text in sorted({r.budget for r in found})],
        )
        for (status, reason), found in sorted(groups.items())
    ]


def traffic_table(results: Results, model: str) -> list[tuple[int, list[dict[str, str]]]]:
    """Return bytes per token for each context, method and budget."""
    table = cells(results, model)
    groups = []
    for context, rows in table.groupby("context"):
        order = {label: place for place, label in enumerate(results.labels)}
        ordered = rows.sort_values(["method", "share"], key=lambda c: c.map(order) if c.name == "method" else c)
        groups.append((int(str(context)), [_traffic_row(row) for _, row in ordered.iterrows()]))
    return groups


def method_table(results: Results, model: str, label: str) -> list[tuple[Topic, int, list[pd.Series]]]:
    """Return one method's rows on every topic, at the context where methods lose most, by budget."""
    found = []
    for topic in results.topics(model):
        context = results.hardest_context(topic)
        if context is not None:
            rows = results.rows_of(topic, context)
            mine = rows[rows["method"] == label].sort_values("share")
            found.append((topic, context, [row for _, row in mine.iterrows()]))
    return found


def provenance_facts(records: Iterable[Record]) -> dict[str, list[tuple[str, int]]]:
    """Return the provenance of the records: each distinct value with the number of records that carry it."""
    seen: dict[str, Counter[str]] = {}

    def count(name: str, value: object) -> None:
        if value is not None:
            seen.setdefault(name, Counter())[str(value)] += 1

    for r in records:
        origin = r.provenance
        count("code revision", origin.revision + (" (with uncommitted changes)" if origin.dirty else ""))
        count("device", origin.device)
        count("number format", origin.dtype)
        count("SM clock (MHz)", origin.sm_clock_mhz)
        count("seed", r.seed)
        count("record schema", r.schema_version)
        count("data", r.data_source)
        for package, version in sorted(origin.versions.items()):
            count(package, version)
    return {name: sorted(values.items()) for name, values in seen.items()}


def hashes(records: Iterable[Record]) -> list[tuple[str, str, str]]:
    """Kind, subject and SHA-256 of everything a number depends on."""
    found = set()
    for r in records:
        found.add(("model", r.model, r.provenance.model_hash))
        found.add(("code", r.method, r.provenance.code_hash))
        found.add(("data", f"{r.task}, {r.context:,} tokens", r.provenance.data_hash))
    return sorted(found)


def outside_methods(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return folder and SHA-256 of each named method that lies outside the repository's room, as its files are now.

    A folder is written as its last two names: where it lies on a machine is nobody's business.
    """
    folders = METHODS.folders()
    found = {name: folders[name].absolute() for name in sorted(set(names)) if name in folders}
    return {
        name: (f"{folder.parent.name}/{folder.name}", folder_hash(folder))
        for name, folder in found.items()
        if folder.parent != METHODS.folder
    }


def _row(results: Results, lost: Sequence[Record], topic: Topic, row: pd.Series, first: bool, notes: list[str]) -> Row:
    unit = topic.unit
    note = None
    if row["status"] != "ok":
        text = f"{row['status']}: {_reason(lost, topic, row)}"
        if text not in notes:
            notes.append(text)
        note = notes.index(text) + 1
    place = (topic.model, topic.suite, topic.task, row["method"], row["budget"], int(row["context"]))
    flips = results.flips.get(place)
    compared = row["kind"] != REFERENCE_METHOD and pd.notna(row["diff_to_full"])
    return Row(
        label=row["method"],
        first=first,
        budget=wording.budget(row["budget"]),
        declared=wording.tokens(row["budget_tokens"]),
        read=wording.tokens(row["kv_tokens_read_sparse"]),
        bytes_share=wording.number(100 * row["bytes_share"], 1),
        value=wording.score(row["value"], unit),
        bounds=wording.score_interval(row["low"], row["high"], unit) if pd.notna(row["low"]) else "",
        difference=wording.gap(row["diff_to_full"], unit) if compared else "",
        difference_bounds=wording.gap_interval(row["diff_low"], row["diff_high"], unit) if compared else "",
        p_value=wording.p_value(row["p_holm"]) if compared else "",
        lost="" if flips is None else f"{flips.lost:,}",
        won="" if flips is None else f"{flips.won:,}",
        cut=wording.number(100 * row["truncated"], 1) if pd.notna(row["truncated"]) else wording.DASH,
        late=f"{int(row['n_timeout']):,}",
        n=f"{int(row['n']):,}",
        status=row["status"],
        note=note,
        budget_text=str(row["budget"]),
        ceiling=compared and is_ceiling(unit, row["value"], row["value"] - row["diff_to_full"]),
    )


def is_ceiling(unit: str, value: float, full: float) -> bool:
    """Tell whether both sides of a comparison score so high that the task cannot tell them apart."""
    return wording.is_fraction(unit) and min(value, full) > CEILING


def _mean_note(results: Results, topic: Topic) -> str:
    """The tasks of a suite's mean, where they are not the same at every context."""
    members = results.members(topic) if topic.task == ALL_TASKS else {}
    if len({tuple(tasks) for tasks in members.values()}) < 2:
        return ""
    parts = [f"{', '.join(tasks)} at {context:,} tokens" for context, tasks in members.items()]
    return f"The mean is over the tasks that Full could do: {'; '.join(parts)}. Compare within a context, not across."


def _reason(lost: Sequence[Record], topic: Topic, row: pd.Series) -> str:
    """The reason that the cell's own records give; the status in words where they give none."""
    for r in lost:
        same = (r.model, r.suite, r.variant, r.budget, r.context) == tuple(
            row[name] for name in ("model", "suite", "method", "budget", "context")
        )
        if same and topic.task in (r.task, ALL_TASKS) and r.status == row["status"] and r.reason:
            return r.reason
    return wording.STATUS_WORDS.get(row["status"], "no reason recorded")


def _traffic_row(row: pd.Series) -> dict[str, str]:
    share = row["bytes_share"]
    return {
        "label": row["method"],
        "budget": wording.budget(row["budget"]),
        "kv": wording.megabytes(row["kv_bytes_per_step"]),
        "metadata": wording.megabytes(row["metadata_bytes_per_step"]),
        "total": wording.megabytes(row["bytes_per_step"]),
        "share": wording.number(100 * share, 1) if pd.notna(share) else wording.DASH,
        "declared": wording.tokens(row["budget_tokens"]),
        "read": wording.tokens(row["kv_tokens_read_sparse"]),
        "read_all": wording.tokens(row["kv_tokens_read"]),
        "kept": wording.number(100 * row["kept"], 1) if pd.notna(row["kept"]) else wording.DASH,
        "status": row["status"],
    }
