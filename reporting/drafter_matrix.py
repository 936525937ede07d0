"""All drafts of one checkpoint, sampler and length of prompt: the fastest, what pays, and a row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from longdecode.engine.errors import LongDecodeError
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.records import Record
from longdecode.methods.registry import get_method
from longdecode.reporting import wording
from longdecode.reporting.drafted import Drafted, shape_text, tree
from longdecode.reporting.figure import Figure
from longdecode.reporting.papers.blocks import Block, Cells, Listing, Picture, Prose, Section, share_text
from longdecode.reporting.papers.tokenswift.texts import Value, is_old, longest, run_of

LOOPED = 0.25
"""Share of repeated 8-grams in Full's text from which on the page says that it goes in circles."""
BFLOAT16_BYTES = 2
_HEADS = ("Drafter", "Drafted", "Tree", "Budget", "Texts", "Tokens a step", "alpha", "Over Full", "Interval",
          "KV bytes, % of Full's", "In float32", "In this run", "Drawn alike", "Run", "Device", "Code")  # fmt: skip
_NUMERIC = frozenset({"Drafted", "Texts", "Tokens a step", "alpha", "Over Full", "KV bytes, % of Full's"})


@dataclass(frozen=True)
class Matrix:
    """All drafters at one checkpoint, sampler and length of prompt, fastest first.

    Args:
        place: model, sampler and tokens of the prompt; the model with its weights where a name has several.
        weights: the checkpoint in words.
        drafted: those that ran, and those that could not.
        replaced: the same drafts by older runs.
        folder: the run's results.
        confidence: coverage of the intervals.
        config: of the model, where its folder is at hand.
        in_float32: by drafter and draft, texts that equal plain decoding's, and all.
        replayed: rows of replay.csv by label, budget, prompt, sampler and number.
    """

    place: tuple[str, str, int]
    weights: str
    drafted: Sequence[Drafted]
    replaced: Sequence[Drafted]
    folder: Path
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
        found: list[Block] = [Prose(self.answer())]
        if self.ran:
            found += [Prose(self.paying()), *self.looped(), *self.apart(), *([Picture(figure)] if figure else [])]
        if len({one.shape for one in self.ran}) > 1:
            found.append(self.fastest())
        found += [*([self.table()] if self.ran else []), *self.twice(), *self.lacking()]
        return Section(self.title, wording.slug(self.title), found)

    @property
    def title(self) -> str:
        """Model, sampler and length of the prompts in words."""
        model, sampler, prompt = self.place
        return f"{model}, {sampler}, prompts of {prompt:,} tokens"

    @property
    def devices(self) -> list[str]:
        """Devices that wrote the texts of drafts that ran."""
        return list(dict.fromkeys(r.provenance.device for one in self.ran for r in one.done))

    def old(self, one: Drafted) -> bool:
        """Return whether other code than today's wrote a text of the draft."""
        return any(is_old(self.folder, record) for record in one.records)

    def run(self, one: Drafted) -> str:
        """Return the job that wrote a draft's texts."""
        return run_of(self.folder, one.records[0])

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
        checked += "; measured before today's code" if self.old(first) else ""
        return (
            f"Best lossless sparse method on {model}: {first.words}, {wording.number(seen.mean, 2)} times Full{bounds} "
            f"at {wording.short_tokens(prompt)} ({sampler}, {wording.plural(seen.prompts, 'text')}; {checked}). "
            f"{self._next(first)}{verdict}"
        )

    def _next(self, first: Drafted) -> str:
        """Return the fastest draft of another drafter, where one text alone does not tell the two apart."""
        others = [one for one in self.lossless if one.drafter != first.drafter]
        if not others or first.speedup is None or first.speedup.prompts > 1:
            return ""
        speed = wording.number(others[0].order, 2)
        return f"Next is {others[0].words}, {speed}; one text gives no interval. "

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

    def apart(self) -> list[Block]:
        """Return a warning where drafts of several devices stand in one table."""
        words = f"Drafts ran on {wording.listing(self.devices)}: each speed is over Full's on its own device."
        return [Prose(words)] if len(self.devices) > 1 else []

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
        _, sampler, prompt = self.place
        budgets = dict.fromkeys(one.budget for one in self.ran)
        done = [r for one in self.ran for r in one.done]
        devices, dtypes = (
            list(dict.fromkeys(getattr(r.provenance, name) for r in done)) for name in ("device", "dtype")
        )
        caption = (
            f"Every draft: {self.weights}, sampler {sampler}, prompts of {prompt:,} tokens, {longest(done):,} tokens "
            f"written, budget {wording.listing(list(budgets))}, {wording.listing(devices)}, {wording.listing(dtypes)}."
        )
        told_apart = {"Budget": budgets, "Device": devices, "Run": {self.run(one) for one in self.ran},
                      "Code": {False} | {self.old(one) for one in self.ran}}  # fmt: skip
        left_out = {head for head, values in told_apart.items() if len(values) == 1}
        left_out |= set() if any(one.speedup and one.speedup.prompts > 1 for one in self.ran) else {"Interval"}
        heads = [head for head in _HEADS if head not in left_out]
        rows = [[cells[head] for head in heads] for cells in map(self._row, self.ran)]
        return Cells(caption, heads, rows, frozenset(place for place, head in enumerate(heads) if head in _NUMERIC))

    def twice(self) -> list[Block]:
        """Return the drafts that older runs have too, folded, beside the ones that stand."""
        now = {(one.drafter, one.budget, one.shape): one for one in self.drafted}
        rows = []
        for one in sorted(self.replaced, key=lambda one: (one.drafter, one.shape)):
            stands = now[one.drafter, one.budget, one.shape]
            cells = [one.drafter, shape_text(one.shape), one.budget]
            for each in (stands, one):
                speed = each.speedup
                cells += [self.run(each), wording.number(speed and speed.mean, 2), _code(self.old(each))]
            rows.append(cells)
        heads = ("Drafter", "Drafted", "Budget", "Stands", "Over Full", "Code", "Replaced", "Over Full", "Code")
        caption = "Drafts that several runs measured, each over Full's text of its own job."
        return [Cells(caption, heads, rows, frozenset({4, 7}), fold="Measured in several runs")] if rows else []

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
        return found | {
            "KV bytes, % of Full's": share, "In this run": _same(one.done), "Drawn alike": self._drawn(one),
            "Run": self.run(one), "Device": first.provenance.device, "Code": _code(self.old(one)),
        }  # fmt: skip

    def _drawn(self, one: Drafted) -> str:
        places = [(self.run(one), r.model, r.label, r.budget, r.context, r.task, r.sample_index) for r in one.done]
        told = [self.replayed[at] for at in places if at in self.replayed]
        if not told:
            return wording.DASH
        alike = f"{sum(row['drawn'] for row in told):,} of {sum(row['tokens'] for row in told):,}"
        most = max(row["largest"] for row in told)
        return alike + (f" ({wording.number(most, 2)})" if most > 0 else "")


def _code(old: bool) -> str:
    return "measured before" if old else "today's"


def _same(done: Sequence[Record]) -> str:
    same = f"{sum(int(r.measures['identical']) for r in done)} of {len(done)}"
    others = [int(r.measures["same_tokens"]) for r in done if not r.measures["identical"]]
    return same + (f" (token {min(others):,})" if others else "")


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
