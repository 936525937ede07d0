"""Build the rows of the speed page's tables, every number written out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import pandas as pd

from longdecode.evals.records import op_sizes
from longdecode.reporting import wording
from longdecode.reporting.speed.measured import OURS, REFERENCE_METHOD, STOCK_LOOP, Speed

STAGES = {
    "no_selection": "without selection",
    "no_attention": "without attention",
    "projections": "projections alone",
    "correction": "one correction of the cache",
}

_ANY = {"no_attention": "any method", "projections": "any method"}


@dataclass(frozen=True, slots=True)
class Line:
    """One timed thing: what it is, its numbers as text, or why there are none."""

    label: str
    first: bool
    budget: str
    us: str
    bounds: str
    n: str
    status: str
    note: int | None
    more: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Lines at one size."""

    size: str
    lines: list[Line]

    @property
    def folded(self) -> list[tuple[str, int | None, list[Line]]]:
        """The lines without a number, gathered by status and footnote."""
        found: dict[tuple[str, int | None], list[Line]] = {}
        for line in self.lines:
            if line.status != "ok":
                found.setdefault((line.status, line.note), []).append(line)
        return [(*key, lines) for key, lines in found.items()]


@dataclass(frozen=True, slots=True)
class SpeedTable:
    """Groups of lines and the footnotes on holes; ``runs``, the revisions of lines that Full's run did not time."""

    name: str
    groups: list[Group]
    notes: list[str]
    peers: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SpeedHole:
    """Timings that could not be taken, for one status and reason."""

    status: str
    meaning: str
    reason: str
    count: int
    where: str


def decode_tables(speed: Speed, model: str, label: str | None = None) -> list[SpeedTable]:
    """Return the steps of all methods, or of one, a table a batch and a group of lines a context."""
    rows = speed.decode(model)
    elsewhere = _other_runs(rows)
    rows = rows if label is None else rows[rows["label"] == label]
    found = []
    for batch, of_batch in rows.groupby("batch"):
        notes: list[str] = []
        groups = [
            Group(
                f"{int(str(context)):,} tokens of context", _lines(mine, notes, partial(_decode_more, runs=elsewhere))
            )
            for context, mine in of_batch.groupby("context")
        ]
        runs = sorted({elsewhere[index] for index in of_batch.index if index in elsewhere})
        found.append(SpeedTable(wording.plural(int(str(batch)), "sequence"), groups, notes, runs=runs))
    return found


def _other_runs(rows: pd.DataFrame) -> dict[Hashable, str]:
    """Return the revision of each timed row whose Full was timed at another one, by the row's index.

    Such a time is over the Full of its own run: it is not to be divided by the table's.
    """
    if "revision" not in rows:
        return {}
    full = rows[rows["subject"] == REFERENCE_METHOD].set_index(["context", "batch"])["revision"].to_dict()
    return {
        index: str(row["revision"])[:7]
        for index, row in rows[rows["status"] == "ok"].iterrows()
        if full.get((row["context"], row["batch"]), row["revision"]) != row["revision"]
    }


def decode_lines(rows: pd.DataFrame) -> list[Line]:
    """Return the lines of rows of the decode bench that all have numbers."""
    return _lines(rows, [], _decode_more)


def kernel_tables(speed: Speed, model: str) -> list[SpeedTable]:
    """Return one table an op: every implementation at every size, and how much faster ours is than each peer."""
    rows = speed.kernels()
    rows = rows[rows["model"] == model]
    found = []
    for op, of_op in rows.groupby("subject", sort=False):
        notes: list[str] = []
        groups = [
            Group(size_of(mine.iloc[0]), _lines(mine, notes, partial(_kernel_more, size=mine)))
            for _, mine in of_op.groupby(["context", "batch", "budget", "op_sizes"], sort=False, dropna=False)
        ]
        peers = [label for label in dict.fromkeys(of_op["label"]) if label != OURS]
        found.append(SpeedTable(str(op), groups, notes, peers))
    return found


def start_table(speed: Speed, model: str) -> SpeedTable | None:
    """Return the time before the first token: the prompt, and a method's set-up after it."""
    rows = speed.decode(model, "prefill", "setup")
    if rows.empty:
        return None
    notes: list[str] = []
    groups = []
    prompt_first = rows.sort_values("stage", key=lambda stage: stage != "prefill", kind="stable")
    for (context, batch), mine in prompt_first.groupby(["context", "batch"]):
        size = f"{int(str(context)):,} tokens of context, {wording.plural(int(str(batch)), 'sequence')}"
        groups.append(Group(size, _lines(mine, notes, lambda row: {"stage": _start_words(row["stage"])})))
    return SpeedTable("start", groups, notes)


def stage_table(speed: Speed, model: str) -> SpeedTable | None:
    """Return the steps with a stage left out that the breakdown is subtracted from."""
    if speed.decode(model, *STAGES).empty:
        return None
    rows = speed.decode(model, "step", *STAGES)
    keys = ["label", "budget", "context", "batch"]
    parted = set(speed.decode(model, *STAGES)[keys].itertuples(index=False, name=None))
    rows = rows[[key in parted for key in rows[keys].itertuples(index=False, name=None)]]
    notes: list[str] = []
    groups = []
    for (context, batch), mine in rows.groupby(["context", "batch"]):
        size = f"{int(str(context)):,} tokens of context, {wording.plural(int(str(batch)), 'sequence')}"
        groups.append(Group(size, _lines(mine, notes, _stage_more)))
    return SpeedTable("stages", groups, notes)


def holes(speed: Speed) -> list[SpeedHole]:
    """Return every timing without a number, grouped by reason; reasons that differ only in figures are one."""
    lost = speed.table[speed.table["status"] != "ok"].fillna({"reason": "no reason recorded"})
    kinds = lost["reason"].map(lambda reason: re.sub(r"\d[\d,.]*", "#", reason))
    found = []
    for (status, _), rows in lost.groupby(["status", kinds], sort=False):
        reasons = list(dict.fromkeys(rows["reason"]))
        reason = reasons[0] + (f" (and {len(reasons) - 1} like it with other figures)" if len(reasons) > 1 else "")
        where = "; ".join(_where(str(model), mine) for model, mine in rows.groupby("model", sort=False))
        meaning = wording.STATUS_WORDS.get(str(status), str(status))
        found.append(SpeedHole(str(status), meaning, reason, len(rows), where))
    return found


def _where(model: str, rows: pd.DataFrame) -> str:
    names = ", ".join(dict.fromkeys(name_of(row) for _, row in rows.iterrows()))
    contexts = [wording.short_tokens(int(c)) for c in sorted(set(rows["context"])) if c > 0]
    sizes = [f"context {', '.join(contexts)}"] if contexts else []
    sizes.append(f"batch {', '.join(str(int(b)) for b in sorted(set(rows['batch'])))}")
    budgets = sorted(set(rows["budget"]) - {"full"}, key=wording.budget_order)
    sizes += [f"budget {', '.join(wording.budget(text) for text in budgets)}"] if budgets else []
    return f"{model}: {names} at {', '.join(sizes)}"


def _lines(rows: pd.DataFrame, notes: list[str], more: Callable[[pd.Series], dict[str, str]]) -> list[Line]:
    lines: list[Line] = []
    for _, row in rows.iterrows():
        ok = row["status"] == "ok"
        lines.append(
            Line(
                label=_ANY.get(row["label"], row["label"]),
                first=not lines or lines[-1].label != _ANY.get(row["label"], row["label"]),
                budget=wording.budget(row["budget"]),
                us=wording.microseconds(row["median_us"])
                if row["bench"] == "kernel"
                else wording.milliseconds(row["median_us"]),
                bounds=_spread(row),
                n=_count(row),
                status=row["status"],
                note=None if ok else _footnote(row, notes),
                more=more(row) if ok else {},
            )
        )
    return lines


def _decode_more(row: pd.Series, runs: Mapping[Hashable, str] = MappingProxyType({})) -> dict[str, str]:
    compared = pd.notna(row["ratio"])
    return {
        "run": runs.get(row.name, ""),
        "tokens_per_s": wording.significant(row["tokens_per_s"]),
        "ratio": wording.ratio(row["ratio"]) if compared else "",
        "ratio_bounds": pair(row["ratio_low"], row["ratio_high"], wording.ratio) if compared else "",
        "floor": wording.milliseconds(row["floor_us"]),
        "fraction": _percent(row["fraction"]),
        "peak": wording.gigabytes(row["peak_bytes"]),
        "expected": wording.gigabytes(row["expected_bytes"]),
        "stock": "for the record" if row["subject"] == STOCK_LOOP else "",
    }


def _kernel_more(row: pd.Series, size: pd.DataFrame) -> dict[str, str]:
    ratio = against(row, size)
    return {
        "gb_per_s": wording.significant(row["gb_per_s"]),
        "floor": wording.microseconds(row["floor_us"]),
        "fraction": _percent(row["fraction"]),
        "ratio": "" if ratio is None else wording.ratio(ratio[0]),
        "ratio_bounds": "" if ratio is None else pair(ratio[1], ratio[2], wording.ratio),
    }


def against(row: pd.Series, size: pd.DataFrame) -> tuple[float, float, float] | None:
    """Return the row's time over ours, from pairs, with its interval; for ours nothing.

    A pair is filed with the peer (its reference ours) or with ours (its reference the peer).
    """
    if row["label"] == OURS:
        return None
    if row["reference"] == OURS and pd.notna(row["ratio"]):
        return 1 / row["ratio"], 1 / row["ratio_high"], 1 / row["ratio_low"]
    ours = size[(size["label"] == OURS) & (size["reference"] == row["label"]) & size["ratio"].notna()]
    if ours.empty:
        return None
    return tuple(float(ours[name].iloc[0]) for name in ("ratio", "ratio_low", "ratio_high"))  # type: ignore[return-value]


def _stage_more(row: pd.Series) -> dict[str, str]:
    return {"stage": "whole step" if row["stage"] == "step" else STAGES[row["stage"]]}


def _start_words(stage: str) -> str:
    return "prompt read" if stage == "prefill" else "set-up after the prompt"


def _spread(row: pd.Series) -> str:
    write = wording.microseconds if row["bench"] == "kernel" else wording.milliseconds
    return pair(row["p5_us"], row["p95_us"], write)


def pair(low: Any, high: Any, write: Callable[[Any], str]) -> str:
    """``[low, high]``, or nothing where there is no interval."""
    return "" if pd.isna(low) or pd.isna(high) else f"[{write(low)}, {write(high)}]"


def _percent(fraction: Any) -> str:
    return wording.DASH if pd.isna(fraction) else wording.number(100 * fraction, 1)


def _count(row: pd.Series) -> str:
    count = "0" if pd.isna(row["n"]) else f"{int(row['n']):,}"
    disturbed = 0 if pd.isna(row["disturbed"]) else int(row["disturbed"])
    return f"{count} ({disturbed})" if disturbed else count


def _footnote(row: pd.Series, notes: list[str]) -> int:
    reason = row["reason"] if pd.notna(row["reason"]) else wording.STATUS_WORDS.get(row["status"], "no reason recorded")
    text = f"{row['status']}: {reason}"
    if text not in notes:
        notes.append(text)
    return notes.index(text) + 1


def size_of(row: pd.Series) -> str:
    """Write context, batch, budget and parameters."""
    parts = [f"{int(row['context']):,} tokens"] if row["context"] > 0 else []
    parts.append(wording.plural(int(row["batch"]), "sequence"))
    if row["budget"] != "full":
        parts.append(f"budget {wording.budget(row['budget'])}")
    params = json.loads(row["params"]) if row["bench"] == "kernel" else {}
    sizes = op_sizes(row["bench"], params)
    parts += [f"{name.replace('_', ' ')} {value}" for name, value in sizes.items()]
    hidden = ("sets", "cold", *sizes)
    parts += [f"{n} {v:,}" if isinstance(v, int) else f"{n} {v}" for n, v in params.items() if n not in hidden]
    parts += ["inputs in cache"] if params.get("cold") is False else []
    return ", ".join(parts)


def name_of(row: pd.Series) -> str:
    """Name what was timed: the method and the stage left out of its step, or the op and its implementation."""
    if row["bench"] == "decode":
        stage = "" if row["stage"] in ("step", row["label"]) else f" ({STAGES.get(row['stage'], row['stage'])})"
        return f"{row['label']}{stage}"
    return f"{row['subject']} by {row['label']}"
