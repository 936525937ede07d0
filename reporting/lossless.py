"""The matrix of drafters: every attention method as the drafter of Full, by length and shape of the draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from longdecode.engine.config_reader import read_config
from longdecode.engine.model_cache import built_model
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.records import Record
from longdecode.reporting import drawing, wording
from longdecode.reporting.drafted import Drafted, shape_text, tree
from longdecode.reporting.drafter_evidence import Checkpoint, checkpoint_of, missing, standing_drafts
from longdecode.reporting.drafter_matrix import Matrix
from longdecode.reporting.figure import Figure, FigureWriter, Layout, Panel, Words
from longdecode.reporting.papers.blocks import (
    Block,
    Cells,
    Listing,
    Prose,
    Section,
)
from longdecode.reporting.papers.tokenswift.exactness import exact_texts, replay
from longdecode.reporting.papers.tokenswift.texts import fulls, texts
from longdecode.reporting.results import Results

LOSSLESS = (
    "Lossless",
    "Which sparse method is the best lossless one? Each drafts for full attention, which verifies every token.",
)
"""Heading and first paragraph of the page."""
_NOTES = (
    "Drafted: tokens that the drafter proposes a step, the depth of the draft. A chain has one candidate for each "
    "place, a tree of 2 branches a second one beside it, which nothing follows.",
    "Tokens a step count the one that Full adds. alpha is the share of the draft's depth that is kept.",
    "Over Full: measured end to end against Full's text of the same prompt in the same job, steps alone; the interval "
    "is over prompts.",
    "KV bytes: what drafting and verifying read of the cache for each token written, over what Full reads, by the "
    "methods' traffic models at the prompt's length. Weights, which each pass of a drafter reads again, are left out. "
    "A dash: this machine lacks the model or the drafter's heads.",
    "In float32: texts that equal plain decoding's, token for token, under the same noise (`exact_texts.csv`).",
    "In this run: the same in the run's own number format, with the token at which the first one parts. In bfloat16 a "
    "block of rows rounds otherwise than one row: two texts part at a near tie, and are different ones from there on.",
    "Drawn alike: tokens that Full draws in float32 after the text's own past, in brackets the largest error in the "
    "difference of two logits, in nats, that explains the rest (`replay.csv`).",
    "A drafter is as fast as its code here. After rewritten tokens InfLLM-V2, NOSA and DMA make pooled keys and "
    "importances again in torch's operations: 1.4 ms a step for InfLLM-V2 on SmolLM2 and an H200 (printed, not "
    "recorded), two of Full's steps. A kernel for it, which is not built, would make them faster drafters.",
    "Run: the job that wrote the text, shown where a table has several. Of a draft in several jobs the newest stands, "
    "the others are below the table. Code: measured before, where the code behind a text has changed since.",
)


def matrix(results: Results, folder: Path, writer: FigureWriter) -> list[Section]:
    """Return the best of each checkpoint, a section for each checkpoint, sampler and prompt, and what is missing.

    Args:
        results: the run's configuration and confidence.
        folder: its results.
        writer: where figures go.

    Returns:
        Nothing for a run without drafters.
    """
    records = [r for r in texts(folder) if "+" in r.label]
    if not records:
        return []
    order = {name: number for number, name in enumerate(results.config.get("models") or {})}
    places = dict(sorted(_places(records).items(), key=lambda at: order.get(at[0][0].model, len(order))))
    several = Counter(checkpoint.model for checkpoint in dict.fromkeys(at[0] for at in places))
    found = [_matrix(results, folder, at, here, several[at[0].model] > 1) for at, here in places.items()]
    sections = [one.section(_figure(one, writer) if len(one.lengths) > 1 else None) for one in found]
    profile = results.profile
    command = f"snakemake --cores 8 results/{profile}/generation/{{run}}.parquet --config profile={profile}"
    return [
        Section("The best of each checkpoint", "best", best_of_each(found)),
        *sections,
        Section("Methods without a text", "missing", missing(results.config, records, command)),
        Section("How to read the tables", "how-to-read", [Listing(_NOTES)]),
    ]


def best_of_each(found: Sequence[Matrix]) -> list[Block]:
    """Return the fastest lossless draft of each checkpoint, and of each drafter where there are several."""
    rows = []
    for one in found:
        first = next(iter(one.lossless), None)
        speed = first.speedup if first else None
        told = [first.drafter, shape_text(first.shape)] if first else [wording.DASH] * 2
        bounds = speed.bounds(one.confidence) if speed else ""
        same, every = one.in_float32.get(first.records[0].label, (0, 0)) if first else (0, 0)
        checked = f"{same} of {every}" if every else "not tried"
        faster = f"{sum(each.order > 1 for each in one.lossless)} of {len(one.lossless)}"
        place = [one.weights, one.place[1], f"{one.place[2]:,}"]
        rows.append([*place, *told, wording.number(speed and speed.mean, 2), bounds, checked, faster])
    heads = ("Checkpoint", "Sampler", "Prompt", "Best drafter", "Drafted", "Over Full", "Interval", "In float32",
             "Faster than Full")  # fmt: skip
    caption = "The fastest draft that wrote no other text than Full's in float32, as far as it was looked at."
    drafters = dict.fromkeys(name for one in found for name, _ in one.best) if len(found) > 1 else ()
    lines = [[drafter, *(_best(one, drafter) for one in found)] for drafter in drafters]
    columns = ("Drafter", *(f"{one.weights}, {one.place[1]}, {one.place[2]:,}" for one in found))
    across = "Each drafter's fastest draft by checkpoint, over Full on that checkpoint: compare rows within a column."
    return [
        Prose(
            "A speed is over Full on the same checkpoint, prompt and job. Checkpoints write different texts, of which "
            "some are easier to draft, so that drafts of different checkpoints are not ranked with one another. "
            "How TokenSwift, Medusa and n-grams do is on [TokenSwift's page](paper-tokenswift.html)."
        ),
        Cells(caption, heads, rows, frozenset({2, 5})),
        *([Cells(across, columns, lines, frozenset(range(1, len(columns))))] if lines else []),
    ]


def _best(one: Matrix, drafter: str) -> str:
    orders = [draft.order for (name, _), draft in one.best.items() if name == drafter]
    return wording.number(max(orders, default=None), 2)


def _places(records: Sequence[Record]) -> dict[tuple[Checkpoint, str, int], list[Record]]:
    found: dict[tuple[Checkpoint, str, int], list[Record]] = {}
    for record in records:
        found.setdefault((checkpoint_of(record), record.task, record.context), []).append(record)
    return found


def _matrix(
    results: Results, folder: Path, at: tuple[Checkpoint, str, int], here: Sequence[Record], by_weights: bool
) -> Matrix:
    (checkpoint, sampler, prompt), theirs = at, fulls(folder)
    newest, older = standing_drafts(folder, here)
    spec = (results.config.get("models") or {}).get(checkpoint.model)
    names = ("run", "model", "label", "budget", "context", "sampler", "sample")
    return Matrix(
        place=(checkpoint.words if by_weights else checkpoint.model, sampler, prompt),
        weights=checkpoint.words + _origin(spec),
        drafted=sorted((Drafted(group, theirs) for group in newest), key=lambda one: -one.order),
        replaced=[Drafted(group, theirs) for group in older],
        folder=folder,
        confidence=results.confidence,
        config=_config(spec),
        in_float32=_in_float32(folder, checkpoint.model),
        replayed={tuple(row[name] for name in names): row for row in replay(folder)},
    )


def _origin(spec: Mapping[str, Any] | None) -> str:
    """Return what a fork was trained from, by its place ``forks/<model>/<attention>``; nothing for other models."""
    parts = Path(str((spec or {}).get("path", ""))).parts
    if "forks" not in parts[:-2]:
        return ""
    base, attention = parts[parts.index("forks") + 1 :][:2]
    return f", {base} trained on for {attention}"


def _in_float32(folder: Path, model: str) -> dict[str, tuple[int, int]]:
    """Return for each label of a model how many of its texts in float32 equal plain decoding's, and how many it has."""
    found: dict[str, tuple[int, int]] = {}
    for row in exact_texts(folder):
        if row["model"] == model and row["status"] == "ok":
            same, every = found.get(row["label"], (0, 0))
            found[row["label"]] = same + int(row["identical"]), every + int(row["batch"])
    return found


def _config(spec: Mapping[str, Any] | None) -> ModelConfig | None:
    """Return the shape of a configured model, ``None`` where its folder is not at hand."""
    path = str((spec or {}).get("path", ""))
    folder = built_model(path) or Path(path)
    return read_config(folder) if (folder / "config.json").is_file() else None


def _figure(found: Matrix, writer: FigureWriter) -> Figure:
    """Draw speed over Full against the length of the draft, a panel a tree and a line a drafter and budget."""
    model, sampler, prompt = found.place
    rows = []
    for one in found.ran:
        assert one.speedup is not None
        seen, (branches, drafts) = one.speedup.estimate(found.confidence), one.shape
        rows.append({"method": one.drafter, "budget": one.budget, "branches": branches, "drafted": drafts,
                     "value": seen.value, "low": seen.low, "high": seen.high, "n": one.speedup.prompts})  # fmt: skip
    data = pd.DataFrame(rows).sort_values(["branches", "method", "budget", "drafted"], ignore_index=True)
    top = max(1.0, float(data[["value", "high"]].max().max()))
    panels = [_panel(data[data["branches"] == b], tree(b), top, writer) for b in sorted(set(data["branches"]))]
    about = f"{model}, sampler {sampler}, prompts of {prompt:,} tokens, n = {int(data['n'].max())}."
    layout = Layout("drafted tokens a step", "×", wide=2, narrow=1, panel_in=2.3)
    name = f"lossless-{wording.slug(f'{model} {sampler} {prompt}')}"
    return writer.write(name, Words("lossless", about, {}), panels, data, layout)


def _panel(data: pd.DataFrame, title: str, top: float, writer: FigureWriter) -> Panel:
    def draw(axes: Axes) -> None:
        axes.set_title(title)
        drawing.token_axis(axes, data["drafted"])
        axes.set_ylim(0, 1.08 * top)
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        drawing.level(axes, 1.0, "Full")
        for place, ((label, _), mine) in enumerate(data.groupby(["method", "budget"], sort=False)):
            drawing.line(axes, writer.looks[str(label)], list(mine["drafted"]), mine, 1.0, place=place % 5)

    return draw
