"""Judge the texts themselves: are they plain decoding's, speed end to end, a replay in float32, memory of the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from longdecode.evals.exact_texts import NAME as EXACT
from longdecode.evals.replay import MARGINS, NAME
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Prose
from longdecode.reporting.papers.inputs import PaperInputs

LENGTH = 102_400


def replay(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of replay.csv of a results folder, none where there is no such file."""
    return _rows(folder / NAME)


def _rows(path: Path) -> list[dict[str, Any]]:
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


def exact(inputs: PaperInputs) -> list[Block]:
    """Return how many texts equal plain decoding's where nothing is rounded to a short number format."""
    words, found = inputs.words("exact"), dict[tuple[str, ...], list[dict[str, Any]]]()
    for row in exact_texts(inputs.folder):
        prompts = row["prompts"].replace(" ", ", ")
        place = (row["model"], row["sampler"], str(row["batch"]), prompts, f"{row['tokens']:,}")
        found.setdefault(place, []).append(row)
    if not found:
        return [Prose(words["text"]), inputs.missing(words["missing"], "exact")]
    rows = []
    for at, here in found.items():
        done = [row for row in here if row["status"] == "ok"]
        same, every = (sum(int(row[name]) for row in done) for name in ("identical", "batch"))
        others = [f"{row['label']}: {row['status']}" for row in here if row["status"] != "ok"]
        others += [f"{row['label']}: other text" for row in done if row["identical"] < row["batch"]]
        rows.append([*at, str(len(done)), f"{same} of {every}", _range(done), ", ".join(others)])
    heads = ("Model", "Sampler", "Batch", "Prompts, tokens", "Tokens", "Writers", "Texts that are Full's",
             "Tokens a step", "Others")  # fmt: skip
    table = Cells(words["caption"], heads, rows, frozenset({2, 4, 5}))
    tried = [row for here in found.values() for row in here]
    untried = _untried(inputs.results.config, tried)
    said = [Cells(words["untried"], ("Model", "Writers"), untried, fold=words["untried"])] if untried else []
    return [Prose(words["text"]), table, *_partly(words, tried), *said, *_by_writer(words, tried)]


def _untried(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return by model the writers of a run's long generations that let Full verify and have no row."""
    has = {(row["model"], row["label"]) for row in rows}
    lacking: dict[str, list[str]] = {}
    for run in (config.get("generation") or {}).get("runs", {}).values():
        shapes = [
            f"{drafts}x{branches}" if branches > 1 else f"{drafts}"
            for drafts in run.get("draft_tokens", [4])
            for branches in run.get("branches", [1])
        ]
        drafted = [f"{label}+{shape}" for label in run.get("drafters", []) for shape in shapes]
        for label in dict.fromkeys([*filter(_exact_mode(config), run.get("labels", [])), *drafted]):
            if (run["model"], label) not in has:
                lacking.setdefault(run["model"], []).append(label)
    return [[model, ", ".join(sorted(set(labels)))] for model, labels in lacking.items()]


def _exact_mode(config: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return whether a label writes by the exact rule; the printed and the released one have another law."""
    methods = config.get("methods") or {}
    return lambda label: ((methods.get(label) or {}).get("params") or {}).get("mode", "exact") == "exact"


def _partly(words: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the writers that lack some way to draw or some batch on their model."""
    done = [row for row in rows if row["status"] == "ok"]
    tried = _ways(done)
    ways = set().union(*tried.values())
    lacking = [
        f"`{label}` on {model} ({len(found)})" for (model, label), found in tried.items() if len(found) < len(ways)
    ]
    said = words["partly"].format(whole=len(tried) - len(lacking), every=len(tried), ways=len(ways))
    return [Prose(f"{said} {wording.listing(lacking)}.")] if lacking else []


def _ways(done: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], set[tuple[str, int]]]:
    """Return sampler and batch of every text, by model and writer."""
    tried: dict[tuple[str, str], set[tuple[str, int]]] = {}
    for row in done:
        tried.setdefault((row["model"], row["label"]), set()).add((row["sampler"], row["batch"]))
    return tried


def _range(done: Sequence[Mapping[str, Any]]) -> str:
    """Return the fewest and the most tokens a step, and who needs so many steps; a table of old may have none."""
    steps = [(row["tokens_per_step"], row["label"]) for row in done if _counted(row)]
    if not steps:
        return wording.DASH
    return " to ".join(f"{wording.number(value, 2)} ({label})" for value, label in (min(steps), max(steps)))


def _by_writer(words: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return tokens a step of every writer, folded; nothing where no row has them."""
    at = {(row["model"], row["label"], row["sampler"], row["batch"]): row for row in rows if _counted(row)}
    ways = list(dict.fromkeys((sampler, batch) for *_, sampler, batch in at))
    lines = [
        [model, label, *(wording.number(at.get((model, label, *way), {}).get("tokens_per_step"), 2) for way in ways)]
        for model, label in dict.fromkeys(key[:2] for key in at)
    ]
    heads = ("Model", "Writer", *(f"{sampler}, batch of {batch}" for sampler, batch in ways))
    folded = Cells(words["steps"], heads, lines, frozenset(range(2, len(heads))), fold=words["steps"])
    return [folded] if lines else []


def _counted(row: Mapping[str, Any]) -> bool:
    return row["status"] == "ok" and pd.notna(row.get("tokens_per_step"))


def exact_texts(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of exact_texts.csv of a results folder, none where there is no such file."""
    return _rows(folder / EXACT)
