"""Judge the texts themselves: speed end to end, what a replay in float32 says of them, memory of the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from longdecode.evals.records import Record
from longdecode.evals.replay import MARGINS, NAME
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.tokenswift.texts import fulls, longest, standing, value, written
from longdecode.reporting.speed.targets import Verdict

LENGTH, TARGET, STRETCH = 102_400, 1.3, 1.8


def replay(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of replay.csv of a results folder, none where there is no such file."""
    path = folder / NAME
    table = pd.read_csv(path, dtype={"budget": str}) if path.is_file() else pd.DataFrame()
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def replayed(inputs: PaperInputs) -> list[Block]:
    """Return what a replay in float32 says of every text that is not a drafter's."""
    words, table = inputs.words("replayed"), replay(inputs.folder)
    rows = [
        [row["model"], row["label"], row["sampler"], f"{row['context']:,}", f"{row['tokens']:,}", drawn(row),
         *(str(row[f"beyond_{margin:g}"]) for margin in MARGINS), wording.number(row["largest"], 3)]
        for row in table if "+" not in row["label"]
    ]  # fmt: skip
    if not rows:
        return [Prose(words["text"]), inputs.missing(words["missing"], "replay")]
    heads = ("Model", "Label", "Sampler", "Prompt", "Tokens", "Drawn alike",
             *(f"Over {margin:g}" for margin in MARGINS), "Largest")  # fmt: skip
    return [Prose(words["text"]), Cells(words["caption"], heads, rows, frozenset(range(3, len(heads))))]


def drawn(row: Mapping[str, Any]) -> str:
    """Return the share of a replayed text's tokens that float32 draws alike."""
    return f"{wording.number(100 * row['drawn'] / row['tokens'], 1)}{wording.NARROW}%"


def end_to_end(inputs: PaperInputs) -> Verdict:
    """Return the verdict on the speedup of a text of 102,400 tokens over Full's in the same job."""
    what = f"Text of {LENGTH:,} tokens end to end over Full in the same job, mode exact"
    goals = (f"> {TARGET:g}×", f"> {STRETCH:g}×")
    own = _whole(inputs)
    seen = value(own, fulls(inputs.folder), "speedup", LENGTH)
    if seen is None:
        return Verdict(what, *goals, wording.DASH, "", "absent", "not measured")
    level, words = ("met", "target met") if seen.mean > TARGET else ("missed", "missed")
    if seen.mean > STRETCH:
        level, words = "stretch", "stretch target met"
    what = f"{what} ({own[0].model}, {own[0].label})"
    spread = wording.interval(seen.low, seen.high, 2) if seen.prompts > 1 else "1 prompt"
    return Verdict(what, *goals, f"{wording.number(seen.mean, 2)}×", spread, level, words)


def same_draws(inputs: PaperInputs) -> Verdict:
    """Return how much of the text float32 draws alike, beside Full's own in the same number format."""
    own, table = _whole(inputs), replay(inputs.folder)
    what = "Tokens of that text that Full draws in float32 under the same noise; in brackets, of Full's own text"
    label = own[0].label if own else ""
    rows = {label: Counter[str](), "full": Counter[str]()}
    for row in table:
        if own and row["sampler"] == own[0].task and row["label"] in rows:
            rows[row["label"]].update({name: row[name] for name in ("tokens", "drawn")})
    if not all(rows.values()):
        return Verdict(what, wording.DASH, wording.DASH, wording.DASH, "", "absent", "not measured")
    shown = f"{drawn(rows[label])} ({drawn(rows['full'])})"
    return Verdict(
        what, wording.DASH, wording.DASH, shown, f"{rows[label]['tokens']:,} tokens", "recorded", "on record"
    )


def host_growth(inputs: PaperInputs) -> Verdict:
    """Return by how much the host's memory grew along the text."""
    what, own = "Growth of the host's memory along that text", _whole(inputs)
    seen = [[r.measures[name] for name in r.measures if name.endswith("_host_mib")] for r in own]
    if not all(seen) or not seen:
        return Verdict(what, wording.DASH, wording.DASH, wording.DASH, "", "absent", "not measured")
    grown, most = max(max(marks) - min(marks) for marks in seen), max(map(max, seen))
    shown = f"{wording.number(grown, 1)} MiB"
    return Verdict(what, wording.DASH, wording.DASH, shown, f"of {wording.number(most, 0)}", "recorded", "on record")


def _whole(inputs: PaperInputs) -> list[Record]:
    stands = inputs.words("tables")["default"]
    found = standing(written(inputs.folder, task=stands["sampler"], context=stands["prompt"]), stands["label"])
    return [r for r in found if r.measures["tokens"] == LENGTH == longest(found)]
