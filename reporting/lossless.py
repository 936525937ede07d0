"""The matrix of drafters: every attention method as the drafter of Full, by length and shape of the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from longdecode.engine.config_reader import read_config
from longdecode.engine.errors import LongDecodeError
from longdecode.engine.model_cache import built_model
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.records import Record
from longdecode.methods.registry import get_method
from longdecode.reporting import drawing, wording
from longdecode.reporting.drafted import Drafted, shape_text, tree
from longdecode.reporting.figure import Figure, FigureWriter, Layout, Panel, Words
from longdecode.reporting.papers.blocks import (
    Block,
    Cells,
    Listing,
    Picture,
    Prose,
    Section,
    share_text,
)
from longdecode.reporting.papers.tokenswift.exactness import exact_texts, replay
from longdecode.reporting.papers.tokenswift.texts import Value, fulls, longest, texts
from longdecode.reporting.results import Results

LOSSLESS = (
    "Lossless",
    "Which sparse method is the best lossless one? Each drafts for full attention, which verifies every token.",
)
"""Heading and first paragraph of the page."""
LOOPED = 0.25
"""Share of repeated 8-grams in Full's text from which on the page says that it goes in circles."""
BFLOAT16_BYTES = 2
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
)
_HEADS = ("Drafter", "Drafted", "Tree", "Budget", "Texts", "Tokens a step", "alpha", "Over Full", "Interval",
          "KV bytes, % of Full's", "In float32", "In this run", "Drawn alike")  # fmt: skip
_NUMERIC = frozenset({"Drafted", "Texts", "Tokens a step", "alpha", "Over Full", "KV bytes, % of Full's"})


@dataclass(frozen=True)
class Matrix:
    """All drafters at one model, sampler and length of prompt, fastest first.

    Args:
        place: model, sampler and tokens of the prompt.
        drafted: those that ran, and those that could not.
        confidence: coverage of the intervals.
        config: of the model, where its folder is at hand.
        in_float32: by drafter and draft, texts that equal plain decoding's, and all.
        replayed: rows of replay.csv by label, budget, prompt, sampler and number.
    """

    place: tuple[str, str, int]
    drafted: Sequence[Drafted]
    confidence: float
    config: ModelConfig | None
    in_float32: Mapping[str, tuple[int, int]]
    replayed: Mapping[Any, Mapping[str, Any]]

    @cached_property
    def ran(self) -> list[Drafted]:
        """Drafts with a measured speedup."""
        return [one for one in self.drafted if one.speedup is not None]

    @cached_property
    def lossless(self) -> list[Drafted]:
        """Those of them that wrote no other text than plain decoding's in float32, as far as it was looked at."""
        checked = ((one, *self.in_float32.get(one.records[0].label, (0, 0))) for one in self.ran)
        return [one for one, same, every in checked if same == every]

    @cached_property
    def best(self) -> dict[tuple[str, str], Drafted]:
        """The fastest draft of each drafter and budget, the fastest drafter first."""
        found: dict[tuple[str, str], Drafted] = {}
        for one in self.ran:
            found.setdefault((one.drafter, one.budget), one)
        return found

    @cached_property
    def lengths(self) -> list[int]:
        """Lengths of the drafts that ran."""
        return sorted({one.shape[1] for one in self.ran})

    def section(self, figure: Figure | None) -> Section:
        """Return the answer, the lengths that pay best, and every draft."""
        model, sampler, prompt = self.place
        title = f"{model}, {sampler}, prompts of {prompt:,} tokens"
        found: list[Block] = [Prose(self.answer())]
        if self.ran:
            found += [Prose(self.paying()), *self.looped(), *([Picture(figure)] if figure else [])]
        if len({one.shape for one in self.ran}) > 1:
            found.append(self.fastest())
        found += [*([self.table()] if self.ran else []), *self.lacking()]
        return Section(title, wording.slug(title), found)

    def answer(self) -> str:
        """Return in a sentence which drafter is the fastest, and whether any beats plain decoding."""
        if not self.lossless:
            return "No drafter wrote a text here that is known to be lossless, so that none is named."
        first, (model, sampler, prompt) = self.lossless[0], self.place
        assert first.speedup is not None
        seen, faster = first.speedup, [one for one in self.lossless if one.order > 1]
        bounds = f" {seen.bounds(self.confidence)}" if seen.prompts > 1 else ""
        same, every = self.in_float32.get(first.records[0].label, (0, 0))
        checked = f"{same} of {every} texts in float32 are Full's" if every else "not yet held to Full's in float32"
        verdict = (
            f"{len(faster)} of {len(self.lossless)} drafts are faster than plain decoding."
            if faster
            else f"None of {len(self.lossless)} drafts is faster than plain decoding."
        )
        return (
            f"Best lossless sparse method on {model}: {first.words}, {wording.number(seen.mean, 2)} times Full{bounds} "
            f"at {wording.short_tokens(prompt)} ({sampler}, {wording.plural(seen.prompts, 'text')}; {checked}). "
            f"{verdict}"
        )

    def paying(self) -> str:
        """Return which length of draft and which tree each drafter is fastest with."""
        if len(self.lengths) == 1:
            return f"Drafts of {self.lengths[0]} tokens alone ran here, so that no length is compared. {self._trees()}"
        by_length: dict[int, list[str]] = {}
        for (drafter, _), one in self.best.items():
            by_length.setdefault(one.shape[1], []).append(f"`{drafter}`")
        parts = [f"{length} for {wording.listing(by_length[length])}" for length in sorted(by_length)]
        return f"Drafted tokens that pay best, by the fastest run of each drafter: {'; '.join(parts)}. {self._trees()}"

    def _trees(self) -> str:
        """Return in how many pairs two candidates a place are faster than one."""
        at = {(one.drafter, one.budget, *one.shape): one for one in self.ran}
        pairs = [(one, at[drafter, budget, 1, drafts]) for (drafter, budget, branches, drafts), one in at.items()
                 if branches > 1 and (drafter, budget, 1, drafts) in at]  # fmt: skip
        if not pairs:
            return ""
        faster = sum(tree.order > chain.order for tree, chain in pairs)
        return f"A tree is faster than the chain of its length in {faster} of {len(pairs)} pairs."

    def looped(self) -> list[Block]:
        """Return a warning where Full's own text goes in circles."""
        references = [one.theirs[id(r)] for one in self.ran for r in one.done if id(r) in one.theirs]
        again = max(full.measures["repeated_8"] for full in references)
        words = (
            f"Of Full's 8-grams here, {share_text(again)} stood in the text before: it goes in circles, which any "
            "drafter foretells, so that alpha tells the drafters apart less than their cost does."
        )
        return [Prose(words)] if again > LOOPED else []

    def fastest(self) -> Cells:
        """Return speedups by length of draft and tree, a drafter a row."""
        shapes = sorted({one.shape for one in self.ran})
        at = {(one.drafter, one.budget, *one.shape): one.order for one in self.ran}
        budgets = len({budget for _, budget in self.best}) > 1
        rows = []
        for (drafter, budget), one in self.best.items():
            shown = [wording.number(at.get((drafter, budget, *shape)), 2) for shape in shapes]
            of = [drafter, *([budget] if budgets else [])]
            rows.append([*of, *shown, shape_text(one.shape)])
        heads = ["Drafter", *(["Budget"] if budgets else []), *map(shape_text, shapes), "Fastest"]
        caption = "Times Full's speed, by drafted tokens and tree; the fastest drafter first."
        return Cells(caption, heads, rows, frozenset(range(1 + budgets, len(heads) - 1)))

    def table(self) -> Cells:
        """Return a row for each draft that ran, without columns that tell nothing apart."""
        model, sampler, prompt = self.place
        budgets = dict.fromkeys(one.budget for one in self.ran)
        tokens, made = longest([r for one in self.ran for r in one.done]), self.ran[0].records[0].provenance
        caption = (
            f"Every draft: {model}, sampler {sampler}, prompts of {prompt:,} tokens, {tokens:,} tokens written, "
            f"budget {wording.listing(list(budgets))}, {made.device}, {made.dtype}."
        )
        left_out = {"Budget"} if len(budgets) == 1 else set()
        left_out |= set() if any(one.speedup and one.speedup.prompts > 1 for one in self.ran) else {"Interval"}
        heads = [head for head in _HEADS if head not in left_out]
        rows = [[cells[head] for head in heads] for cells in map(self._row, self.ran)]
        return Cells(caption, heads, rows, frozenset(place for place, head in enumerate(heads) if head in _NUMERIC))

    def lacking(self) -> list[Block]:
        """Return drafts that have no text, or none beside Full's, by their reason."""
        found: dict[str, list[str]] = {}
        for one in self.drafted:
            if one.speedup is None:
                first = one.records[0]
                reason = "no text of Full beside it" if one.done else f"{first.status}: {first.reason}"
                found.setdefault(reason, []).append(f"`{one.records[0].label}`")
        items = [f"{wording.listing(labels)}: {reason}." for reason, labels in found.items()]
        return [Prose("Without a number:"), Listing(items)] if items else []

    def _row(self, one: Drafted) -> dict[str, str]:
        """Return the cells of a draft by heading."""
        branches, drafts = one.shape
        first, found = one.records[0], dict.fromkeys(_HEADS, wording.DASH)
        found |= {"Drafter": one.drafter, "Drafted": str(drafts), "Tree": tree(branches), "Budget": one.budget,
                  "Texts": str(len(one.done))}  # fmt: skip
        steps = one.of("tokens_per_step")
        for head, rate in (("Tokens a step", steps), ("alpha", one.of("alpha")), ("Over Full", one.speedup)):
            found[head] = wording.DASH if rate is None else wording.number(rate.mean, 2)
        if one.speedup is not None:
            found["Interval"] = one.speedup.bounds(self.confidence)
        if first.label in self.in_float32:
            same, every = self.in_float32[first.label]
            found["In float32"] = f"{same} of {every}"
        share = _cache_share(one.done[0], self.config, steps)
        return found | {"KV bytes, % of Full's": share, "In this run": _same(one.done), "Drawn alike": self._drawn(one)}

    def _drawn(self, one: Drafted) -> str:
        places = [(r.label, r.budget, r.context, r.task, r.sample_index) for r in one.done]
        told = [self.replayed[at] for at in places if at in self.replayed]
        if not told:
            return wording.DASH
        alike = f"{sum(row['drawn'] for row in told):,} of {sum(row['tokens'] for row in told):,}"
        most = max(row["largest"] for row in told)
        return alike + (f" ({wording.number(most, 2)})" if most > 0 else "")


def matrix(results: Results, folder: Path, writer: FigureWriter) -> list[Section]:
    """Return a section for each model, sampler and prompt, and how to read them; nothing for a run without drafters.

    Args:
        results: the run's configuration and confidence.
        folder: its results.
        writer: where figures go.
    """
    records = [r for r in texts(folder) if "+" in r.label]
    if not records:
        return []
    theirs, known = fulls(folder), results.config.get("models") or {}
    replayed = {
        (row["label"], row["budget"], row["context"], row["sampler"], row["sample"]): row for row in replay(folder)
    }
    sections = []
    for model, sampler, prompt in dict.fromkeys((r.model, r.task, r.context) for r in records):
        here = [r for r in records if (r.model, r.task, r.context) == (model, sampler, prompt)]
        drafted = sorted((Drafted(group, theirs) for group in _groups(here)), key=lambda one: -one.order)
        found = Matrix((model, sampler, prompt), drafted, results.confidence, _config(known.get(model)),
                       _in_float32(folder, model), replayed)  # fmt: skip
        sections.append(found.section(_figure(found, writer) if len(found.lengths) > 1 else None))
    return [*sections, Section("How to read the tables", "how-to-read", [Listing(_NOTES)])]


def _groups(records: Sequence[Record]) -> list[list[Record]]:
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record.label, record.budget), []).append(record)
    return list(found.values())


def _same(done: Sequence[Record]) -> str:
    same = f"{sum(int(r.measures['identical']) for r in done)} of {len(done)}"
    others = [int(r.measures["same_tokens"]) for r in done if not r.measures["identical"]]
    return same + (f" (token {min(others):,})" if others else "")


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


def _cache_share(record: Record, config: ModelConfig | None, steps: Value | None) -> str:
    """Return the bytes of the cache that a token costs, over those of Full."""
    if config is None or steps is None:
        return wording.DASH
    try:
        method = get_method(record.method).from_budget(record.budget_tokens, config, **record.params)
    except LongDecodeError:
        return wording.DASH
    read = method.traffic(record.context, BFLOAT16_BYTES).total_bytes
    whole = record.context * config.kv_bytes_per_token(BFLOAT16_BYTES)
    return wording.number(100 * read / whole / steps.mean, 0)


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
