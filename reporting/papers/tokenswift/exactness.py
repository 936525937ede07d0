"""Judge the texts themselves: are they plain decoding's, speed end to end, a replay in float32, memory of the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from longdecode.evals.exact_texts import NAME as EXACT
from longdecode.evals.records import Record
from longdecode.evals.replay import MARGINS, NAME
from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Cells, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.tokenswift.texts import fulls, longest, run_of, standing, value, written
from longdecode.reporting.speed.targets import Verdict

LENGTH, TARGET, STRETCH = 102_400, 1.3, 1.8


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


def same_texts(inputs: PaperInputs) -> Verdict:
    """Return the verdict on texts that are to be plain decoding's, token for token."""
    done = [row for row in exact_texts(inputs.folder) if row["status"] == "ok"]
    if not done:
        what = "Texts in float32 that equal plain decoding's"
        return Verdict(what, "all", wording.DASH, wording.DASH, "", "absent", "not measured")
    labels, models, samplers, batches = (
        list(dict.fromkeys(str(row[name]) for row in done)) for name in ("label", "model", "sampler", "batch")
    )
    what = (
        f"Texts of {min(row['tokens'] for row in done):,} tokens in float32 that equal plain decoding's: "
        f"{len(labels)} writers on {wording.listing(models)}, drawn by {wording.listing(samplers)}, in batches of "
        f"{wording.listing(batches)}"
    )
    same, every = (sum(int(row[name]) for row in done) for name in ("identical", "batch"))
    level, words = ("met", "target met") if same == every else ("missed", "missed")
    partly = sorted({_drafter(label) for label in labels} - _everyway(done))
    if others := sum(
        len(names.split(", ")) for _, names in _untried(inputs.results.config, exact_texts(inputs.folder))
    ):
        what += f"; {others} other settings of these writers were not tried"
    if partly and level == "met":
        words = "met where tried"
        what += f"; {wording.listing(partly)} in some of these ways alone"
    return Verdict(what, "all", wording.DASH, f"{same} of {every}", "", level, words)


def _drafter(label: str) -> str:
    return label.partition("+")[0]


def _everyway(done: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the drafters that some label was tried of, on some model, by every sampler in every batch."""
    tried = _ways(done)
    ways = set().union(*tried.values())
    return {_drafter(label) for (_, label), found in tried.items() if found == ways}


def end_to_end(label: str, sampler: str) -> Callable[[PaperInputs], Verdict]:
    """Return what judges the speedup of a label's text of 102,400 tokens over Full's in the same job.

    Where such texts follow prompts of several lengths, the least speedup is judged.
    """

    def judge(inputs: PaperInputs) -> Verdict:
        what = f"Text of {LENGTH:,} tokens end to end over Full in the same job, mode exact: {label}, {sampler}"
        goals = (f"> {TARGET:g}×", f"> {STRETCH:g}×")
        prompts = sorted({r.context for r in written(inputs.folder, label=label, task=sampler)})
        texts = {prompt: _whole(inputs, label, sampler, prompt) for prompt in prompts}
        speeds = {prompt: value(own, fulls(inputs.folder), "speedup", LENGTH) for prompt, own in texts.items()}
        seen = {prompt: speed for prompt, speed in speeds.items() if speed is not None}
        if not seen:
            return Verdict(what, *goals, wording.DASH, "", "absent", "not measured")
        prompt, least = min(seen.items(), key=lambda each: each[1].mean)
        level, words = ("met", "target met") if least.mean > TARGET else ("missed", "missed")
        if least.mean > STRETCH:
            level, words = "stretch", "stretch target met"
        own = texts[prompt]
        again = fmean(r.measures["repeated_8"] for r in own)
        after = f"after {prompt:,} tokens"
        if len(seen) > 1:
            after += f", the slowest of {len(seen)} lengths of prompt"
        what = f"{what} ({own[0].model}; {after}; {100 * again:.0f}{wording.NARROW}% of its 8-grams stood before)"
        spread = least.bounds(inputs.results.confidence)
        return Verdict(what, *goals, f"{wording.number(least.mean, 2)}×", spread, level, words)

    return judge


def same_draws(inputs: PaperInputs) -> Verdict:
    """Return how much of the longest text float32 draws alike, beside Full's own in the same number format."""
    own, table = _whole(inputs), replay(inputs.folder)
    what = "Tokens of the text with penalty that Full draws in float32 under the same noise; in brackets, of Full's own"
    runs = {run_of(inputs.folder, r) for r in own}
    label = own[0].label if own else ""
    rows = {label: Counter[str](), "full": Counter[str]()}
    for row in table:
        if row["run"] in runs and row["label"] in rows:
            seen = {name: row[name] for name in ("tokens", "drawn")}
            rows[row["label"]].update(seen | {"beyond": row[f"beyond_{MARGINS[-1]:g}"]})
    if not all(rows.values()):
        return Verdict(what, wording.DASH, wording.DASH, wording.DASH, "", "absent", "not measured")
    shown = f"{drawn(rows[label])} ({drawn(rows['full'])})"
    what += f"; {rows[label]['beyond']} ({rows['full']['beyond']}) need an error of over {MARGINS[-1]:g} nats"
    return Verdict(
        what, wording.DASH, wording.DASH, shown, f"{label}, {rows[label]['tokens']:,} tokens", "recorded", "on record"
    )


def host_growth(inputs: PaperInputs) -> Verdict:
    """Return by how much the host's memory grew along the text of full length where it grew most."""
    what = f"Growth of the host's memory along a text of {LENGTH:,} tokens"
    grown = [
        (max(marks) - min(marks), max(marks), r)
        for r in _full_length(inputs)
        if (marks := [r.measures[name] for name in r.measures if name.endswith("_host_mib")])
    ]
    if not grown:
        return Verdict(what, wording.DASH, wording.DASH, wording.DASH, "", "absent", "not measured")
    most, size, r = max(grown, key=lambda each: each[0])
    what += f", the most of {len(grown)}: {r.label}, {r.task}, after {r.context:,}"
    shown = f"{wording.number(most, 1)} MiB"
    return Verdict(what, wording.DASH, wording.DASH, shown, f"of {wording.number(size, 0)}", "recorded", "on record")


def no_waits(inputs: PaperInputs) -> Verdict:
    """Return how many texts of full length replayed every step from a CUDA graph, in which no step can wait."""
    texts = _full_length(inputs)
    what = f"Texts of {LENGTH:,} tokens whose every step is a CUDA graph, which cannot wait for the host"
    if not texts:
        return Verdict(what, "all", wording.DASH, wording.DASH, "", "absent", "not measured")
    graphs = sum(bool(r.measures.get("cuda_graph")) for r in texts)
    looks = min(int(r.measures.get("looks_every_steps", 0)) for r in texts)
    what += f"; tokens counted every {looks} steps"
    level, words = ("met", "target met") if graphs == len(texts) else ("missed", "missed")
    return Verdict(what, "all", wording.DASH, f"{graphs} of {len(texts)}", "", level, words)


def printed_law(inputs: PaperInputs) -> Verdict:
    """Return the total variation of the printed rule, of several texts the one with the fewest positions."""
    what = "Total variation of the printed rule from the target, 27 and 47 paths"
    found = [r.measures for r in written(inputs.folder) if "tv_27" in r.measures]
    if not found:
        return Verdict(what, wording.DASH, wording.DASH, wording.DASH, "", "absent", "not measured")
    m = min(found, key=lambda each: each["law_positions"])
    what += f", at {int(m['law_positions']):,} positions of a text"
    shown = " and ".join(wording.number(m[f"tv_{paths}"], 3) for paths in (27, 47))
    bounds = " and ".join(wording.interval(m[f"tv_{paths}_low"], m[f"tv_{paths}_high"], 3) for paths in (27, 47))
    return Verdict(what, wording.DASH, wording.DASH, shown, bounds, "recorded", "on record")


def _full_length(inputs: PaperInputs) -> list[Record]:
    return [r for r in written(inputs.folder) if r.measures["tokens"] == LENGTH and r.label != "full"]


def _whole(
    inputs: PaperInputs, label: str | None = None, sampler: str | None = None, prompt: int | None = None
) -> list[Record]:
    """Return the texts of full length after prompts of one length; what is left out is the printed tables'."""
    stands = inputs.words("tables")["default"]
    texts = written(inputs.folder, task=sampler or stands["sampler"], context=prompt or stands["prompt"])
    found = standing(texts, label or stands["label"])
    return [r for r in found if r.measures["tokens"] == LENGTH == longest(found)]
