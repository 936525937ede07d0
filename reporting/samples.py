"""Read samples: those that Full answers and a method does not, with prompt, gold spans and both outputs."""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdecode.engine.errors import DataUnavailableError, LongDecodeError
from longdecode.engine.model_cache import built_model
from longdecode.evals.fingerprint import hash_texts
from longdecode.evals.records import Record
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.registry import get_task
from longdecode.reporting.excerpts import Piece, cut, pieces, places, shown
from longdecode.reporting.flips import answers_of, degrees
from longdecode.reporting.results import REFERENCE_METHOD, ReportError, Results, load_results
from longdecode.reporting.wording import budget, budget_order, score, slug, with_unit

PAGE_SAMPLES = 20
_OUTPUT_HEAD, _OUTPUT_TAIL = 900, 200
_FORCED_SHOWN = 160


class PromptMismatchError(ReportError):
    """A prompt made again from its seed is not the one that was scored."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One method at one budget, on one task at one context of one model."""

    model: str
    suite: str
    task: str
    context: int
    label: str
    budget: str

    @property
    def words(self) -> str:
        """The cell as pages name it."""
        return f"{self.label} at {budget(self.budget)} on {self.task}, {self.context:,} tokens of {self.model}"


@dataclass(frozen=True, slots=True)
class Side:
    """One side's output and how much of it is right; no ``output`` where ``lacks`` says why."""

    output: list[Piece]
    marks: str
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample: its prompt, what was expected, and what both sides wrote.

    ``missed`` are the answers that Full alone gets right, ``forced`` says that the gold text was given and its
    probability scored, ``lacks`` why there is no prompt.
    """

    cell: Cell
    seed: int
    index: int
    pieces: list[Piece]
    gold: list[str]
    missed: list[str]
    full: Side
    method: Side
    forced: bool
    lacks: str

    @property
    def anchor(self) -> str:
        """The sample's place on its page."""
        return f"{slug(self.cell.label)}-{slug(self.cell.task)}-{self.cell.context}-s{self.seed}-{self.index}"


class SampleReader:
    """Pairs the records of Full and of methods, and makes their prompts again.

    Args:
        results: the run.
    """

    def __init__(self, results: Results):
        self.results = results
        self._shares = degrees(results.records)
        self._by_cell: dict[Cell, dict[tuple[int, int], Record]] = {}
        for r in results.records:
            if r.status == "ok" and r.score is not None:
                cell = Cell(r.model, r.suite, r.task, r.context, r.variant, r.budget)
                self._by_cell.setdefault(cell, {})[r.seed, r.sample_index] = r
        self._full = {
            (c.model, c.task, c.context): found
            for c, found in self._by_cell.items()
            if _kind(found) == REFERENCE_METHOD
        }

    def cells(self, model: str, suite: str, labels: Iterable[str]) -> list[Cell]:
        """Return, for each method, the cell at the shortest context and the largest budget that lost any answer.

        Cells go first whose lost samples the records keep the texts of.
        """
        found = []
        for label in labels:
            mine = [c for c in self._by_cell if (c.model, c.suite, c.label) == (model, suite, label)]
            lost = [cell for cell in mine if self.lost(cell)]
            if lost:
                found.append(max(lost, key=lambda c: (bool(self._kept(c)), -c.context, _largest(c.budget), c.task)))
        return found

    def lost(self, cell: Cell) -> list[tuple[int, int]]:
        """Return seed and number of the samples with an answer that is right under Full alone."""
        theirs = self._full.get((cell.model, cell.task, cell.context), {})
        mine = self._by_cell.get(cell, {})
        if not mine or _kind(mine) == REFERENCE_METHOD:
            return []
        return sorted(key for key in mine if key in theirs and any(self._flipped(mine[key], theirs[key])))

    def _kept(self, cell: Cell) -> list[tuple[int, int]]:
        return [key for key in self.lost(cell) if _told(self._by_cell[cell][key])]

    def read(self, cell: Cell, start: int = 0, count: int = PAGE_SAMPLES) -> list[Reading]:
        """Return a page of the samples that a cell lost.

        Raises:
            PromptMismatchError: a prompt made again differs from the one that was scored.
        """
        return [self._reading(cell, key) for key in self.lost(cell)[start : start + count]]

    def told(self, cell: Cell, count: int) -> list[Reading]:
        """Return the first samples that a cell lost of which the records keep the outputs; raises as ``read``."""
        return [self._reading(cell, key) for key in self._kept(cell)[:count]]

    def example(self, model: str, suite: str, labels: Iterable[str]) -> Reading | None:
        """Return one sample to open a suite's page with.

        Outputs that the records keep go first, then samples on which the method does worse than Full, then the order
        of ``labels``, the shortest context and the largest budget; on texts that are scored by their probability the
        smallest, at which methods differ.
        """
        order = list(labels)
        found = [
            (self._rank(cell, key, order), cell, key)
            for cell, mine in self._by_cell.items()
            if (cell.model, cell.suite) == (model, suite) and cell.label in order and _kind(mine) != REFERENCE_METHOD
            for key in mine
            if key in self._full.get((cell.model, cell.task, cell.context), {})
        ]
        if not found:
            return None
        _, cell, key = min(found, key=lambda entry: entry[0])
        return self._reading(cell, key)

    def _rank(self, cell: Cell, key: tuple[int, int], order: Sequence[str]) -> tuple[Any, ...]:
        mine, full = self._by_cell[cell][key], self._full[cell.model, cell.task, cell.context][key]
        worse = any(self._flipped(mine, full)) if answers_of(full, self._shares) else _worse(mine, full)
        kind, size = budget_order(cell.budget)
        told = _told(mine) and _told(full)
        least = size if full.unit != "fraction" else -size
        return not told, not worse, order.index(cell.label), cell.context, kind, least, cell.task, key

    def _reading(self, cell: Cell, key: tuple[int, int]) -> Reading:
        mine = self._by_cell[cell][key]
        full = self._full.get((cell.model, cell.task, cell.context), {}).get(key)
        sample, lacks = self._sample(mine)
        forced = mine.unit != "fraction"
        gold = _gold(sample, forced) if sample else []
        flipped = self._flipped(mine, full) if full else []
        missed = [item for item, lost in zip(gold, flipped, strict=False) if lost]
        prompt = sample.prompt + sample.forced if sample else ""
        return Reading(
            cell, *key, pieces(prompt, missed or gold[:1]), list(map(shown, gold)), list(map(shown, missed)),
            self._side(full, gold, forced), self._side(mine, gold, forced), forced, lacks,
        )  # fmt: skip

    def _side(self, record: Record | None, gold: Sequence[str], forced: bool) -> Side:
        if record is None:
            return Side([], "", "not in the records")
        marks = answers_of(record, self._shares)
        right = f"{sum(marks):.0f} of {len(marks)} right" if marks else ""
        scored = f"{record.metric} {with_unit(score(record.score or 0.0, record.unit), record.unit)}"
        said = right or scored
        if forced:
            return Side([], said)
        text, lacks = self._output(record)
        right_ones = [(at, at + len(item)) for item in gold for at in places(text, item)]
        return Side(cut(text, right_ones, _OUTPUT_HEAD, _OUTPUT_TAIL), said, lacks)

    def _flipped(self, mine: Record, full: Record) -> list[bool]:
        """Mark the answers that are right under Full alone."""
        ours, theirs = answers_of(mine, self._shares), answers_of(full, self._shares)
        return [a < b for a, b in zip(ours, theirs, strict=True)] if len(ours) == len(theirs) else []

    def _sample(self, record: Record) -> tuple[Sample | None, str]:
        """Make a record's sample again; ``None``, with the reason, where that is not possible here."""
        try:
            task = get_task(record.task, _folders(self.results.config))
            if task.version != record.task_version:
                return None, f"{record.task} has version {task.version}, its record {record.task_version}"
            made = _samples(
                task,
                record.context,
                record.sample_index // task.samples_per_problem + 1,
                record.seed,
                self._tokenizer(record.model),
            )
        except (LongDecodeError, DataUnavailableError, OSError) as error:
            return None, str(error)
        sample = next((s for s in made if s.index == record.sample_index), None)
        digest = hash_texts([sample.prompt, sample.forced]) if sample else "none"
        if record.prompt_sha256 != digest:
            raise PromptMismatchError(
                f"{record.task} at {record.context} tokens, seed {record.seed}, sample {record.sample_index}: the "
                f"prompt made again has SHA-256 {digest[:12]}, the one scored {str(record.prompt_sha256)[:12]}; the "
                "generator changed without a new task version, or the data are others"
            )
        return sample, ""

    def _output(self, record: Record) -> tuple[str, str]:
        """Return what a record's side wrote; nothing, with the reason, where that is not known here."""
        if record.output_text is not None:
            return record.output_text, ""
        if record.output_ids is None:
            return "", "The record keeps which answers are right, and no text."
        try:
            return str(self._tokenizer(record.model).decode(record.output_ids)), ""
        except (LongDecodeError, OSError) as error:
            return "", str(error)

    @functools.cache  # noqa: B019 (one reader a report)
    def _tokenizer(self, model: str) -> Any:
        from longdecode.evals.tokenizing import load_tokenizer

        path = str(((self.results.config.get("models") or {}).get(model) or {}).get("path", ""))
        folder = built_model(path) or Path(path)
        if not folder.is_dir():  # a report is made offline
            raise DataUnavailableError(f"the tokenizer of {model} is not on this machine ({path or 'no path'})")
        return load_tokenizer(folder)


@functools.lru_cache(maxsize=64)
def _samples(task: Any, context: int, count: int, seed: int, tokenizer: Any) -> list[Sample]:
    made: list[Sample] = task.samples(context, count, seed, tokenizer)
    return made


def _largest(text: str) -> tuple[int, float]:
    """Key whose largest is the largest budget in tokens, and one in bytes where there is no other."""
    kind, size = budget_order(text)
    return -kind, size


def _gold(sample: Sample, forced: bool) -> list[str]:
    """Return what a sample's task expects: its answers, or the beginning of the text that is scored."""
    if forced:
        return [sample.forced[:_FORCED_SHOWN]] if sample.forced else []
    meta = sample.meta
    if isinstance(meta, str):
        return [meta]
    if not isinstance(meta, tuple):
        return []
    return [str(item) for item in (meta[0] if meta and isinstance(meta[0], list | tuple) else meta)]


def _told(record: Record) -> bool:
    """Tell whether a record keeps what was written."""
    return record.output_text is not None or record.output_ids is not None


def _worse(mine: Record, full: Record) -> bool:
    ours, theirs = mine.score or 0.0, full.score or 0.0
    return ours < theirs if full.higher_is_better else ours > theirs


def _kind(found: dict[tuple[int, int], Record]) -> str:
    return next(iter(found.values())).method


def _folders(config: Any) -> dict[str, Path | None]:
    return {name: Path(place) if place else None for name, place in (config.get("data") or {}).items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages of one cell: the samples that Full answers and the method does not."""
    from longdecode.reporting.environment import make_environment

    parser = argparse.ArgumentParser(prog="python -m longdecode.reporting.samples", description=main.__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/h200"))
    parser.add_argument("--output", type=Path, default=Path("build/samples"))
    parser.add_argument("--model")
    for name in ("suite", "task", "label", "budget"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--context", type=int, required=True)
    asked = parser.parse_args(arguments)
    try:
        results = load_results(asked.results / "config.yaml", asked.results)
        cell = Cell(asked.model or results.models[0], asked.suite, asked.task, asked.context, asked.label, asked.budget)
        reader = SampleReader(results)
        lost = reader.lost(cell)
        if not lost:
            raise ReportError(f"{cell.words}: the records of {asked.results} hold no answer that Full alone gets right")
        template = make_environment().get_template("sample_pages.html")
        asked.output.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(__file__).parent / "templates" / "style.css", asked.output / "style.css")
        pages = -(-len(lost) // PAGE_SAMPLES)
        for number in range(pages):
            text = template.render(
                cell=cell,
                readings=reader.read(cell, number * PAGE_SAMPLES),
                number=number + 1,
                pages=pages,
                lost=len(lost),
            )
            (asked.output / f"samples-{number + 1}.html").write_text(text, encoding="utf-8")
    except LongDecodeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(asked.output / "samples-1.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
