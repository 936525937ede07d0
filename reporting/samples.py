"""Read samples: those that Full answers and a method does not, with prompt, gold spans and both outputs."""

from __future__ import annotations

import argparse
import functools
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdecode.engine.errors import DataUnavailableError, LongDecodeError
from longdecode.engine.model_cache import built_model
from longdecode.evals.hashing import hash_texts
from longdecode.evals.records import Record
from longdecode.evals.tasks.base import Sample
from longdecode.evals.tasks.registry import get_task
from longdecode.reporting.results import REFERENCE_METHOD, ReportError, Results, load_results
from longdecode.reporting.wording import budget, budget_order, slug

PAGE_SAMPLES = 20
_AROUND = 60
_HEAD, _TAIL = 240, 160
_LEAST_SPAN = 5
_UNSEEN = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


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
class Reading:
    """One sample: pieces of its prompt (text, and whether it is gold), what was expected, and what both sides wrote.

    ``lacks`` says what the records or this machine do not have.
    """

    cell: Cell
    seed: int
    index: int
    pieces: list[tuple[str, bool]]
    gold: list[str]
    missed: list[str]
    full: str
    method: str
    lacks: list[str]

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
        self._by_cell: dict[Cell, dict[tuple[int, int], Record]] = {}
        for r in results.records:
            if r.status == "ok" and r.parts and set(r.parts) <= {0.0, 1.0}:
                cell = Cell(r.model, r.suite, r.task, r.context, r.label, r.budget)
                self._by_cell.setdefault(cell, {})[r.seed, r.sample_index] = r
        self._full = {
            (c.model, c.task, c.context): found
            for c, found in self._by_cell.items()
            if _kind(found) == REFERENCE_METHOD
        }

    def cells(self, model: str, suite: str, labels: Iterable[str]) -> list[Cell]:
        """Return, for each method, the cell at the shortest context and the largest budget that lost any answer."""
        found = []
        for label in labels:
            mine = [c for c in self._by_cell if (c.model, c.suite, c.label) == (model, suite, label)]
            lost = [cell for cell in mine if self.lost(cell)]
            if lost:
                found.append(max(lost, key=lambda c: (-c.context, budget_order(c.budget), c.task)))
        return found

    def lost(self, cell: Cell) -> list[tuple[int, int]]:
        """Return seed and number of the samples with an answer that is right under Full alone."""
        theirs = self._full.get((cell.model, cell.task, cell.context), {})
        mine = self._by_cell.get(cell, {})
        if not mine or _kind(mine) == REFERENCE_METHOD:
            return []
        return sorted(key for key in mine if key in theirs and any(_flipped(mine[key], theirs[key])))

    def read(self, cell: Cell, start: int = 0, count: int = PAGE_SAMPLES) -> list[Reading]:
        """Return a page of the samples that a cell lost.

        Raises:
            PromptMismatchError: a prompt made again differs from the one that was scored.
        """
        return [self._reading(cell, key) for key in self.lost(cell)[start : start + count]]

    def told(self, cell: Cell, count: int) -> list[Reading]:
        """Return those of the first samples that a cell lost whose outputs the records keep; raises as ``read``."""
        return [reading for reading in self.read(cell, 0, count) if reading.method]

    def example(self, model: str, suite: str, labels: Iterable[str]) -> Reading | None:
        """Return one sample to open a suite's page with: a lost one where any method lost one, with outputs at best."""
        lost = [self.read(cell, 0, 1)[0] for cell in self.cells(model, suite, labels)]
        if lost:
            return next((reading for reading in lost if reading.method), lost[0])
        for cell, found in self._by_cell.items():
            if (cell.model, cell.suite) == (model, suite) and cell.label in set(labels) - {REFERENCE_METHOD}:
                return self._reading(cell, min(found))
        return None

    def _reading(self, cell: Cell, key: tuple[int, int]) -> Reading:
        mine = self._by_cell[cell][key]
        full = self._full.get((cell.model, cell.task, cell.context), {}).get(key)
        lacks: list[str] = []
        sample = self._sample(mine, lacks)
        gold = [str(item) for item in sample.meta] if sample and isinstance(sample.meta, tuple) else []
        flipped = _flipped(mine, full) if full else []
        missed = [item for item, lost in zip(gold, flipped, strict=False) if lost]
        prompt = sample.prompt + sample.forced if sample else ""
        return Reading(
            cell, *key, pieces(prompt, missed or gold[:1]), list(map(shown, gold)), list(map(shown, missed)),
            self._output(full, "Full", lacks), self._output(mine, cell.label, lacks), lacks,
        )  # fmt: skip

    def _sample(self, record: Record, lacks: list[str]) -> Sample | None:
        """Make a record's sample again; ``None``, with the reason in ``lacks``, where that is not possible here."""
        try:
            task = get_task(record.task, _places(self.results.config))
            if task.version != record.task_version:
                lacks.append(f"the prompt: {record.task} has version {task.version}, its record {record.task_version}")
                return None
            made = _samples(
                task,
                record.context,
                record.sample_index // task.samples_per_problem + 1,
                record.seed,
                self._tokenizer(record.model),
            )
        except (LongDecodeError, DataUnavailableError, OSError) as error:
            lacks.append(f"the prompt: {error}")
            return None
        sample = next((s for s in made if s.index == record.sample_index), None)
        digest = hash_texts([sample.prompt, sample.forced]) if sample else "none"
        if record.prompt_sha256 != digest:
            raise PromptMismatchError(
                f"{record.task} at {record.context} tokens, seed {record.seed}, sample {record.sample_index}: the "
                f"prompt made again has SHA-256 {digest[:12]}, the one scored {str(record.prompt_sha256)[:12]}; the "
                "generator changed without a new task version, or the data are others"
            )
        return sample

    def _output(self, record: Record | None, whose: str, lacks: list[str]) -> str:
        if record is None or (record.output_text is None and record.output_ids is None):
            lacks.append(f"the output of {whose}: the record keeps its marks alone")
            return ""
        if record.output_text is not None:
            return shown(record.output_text)
        try:
            return shown(self._tokenizer(record.model).decode(record.output_ids or []))
        except (LongDecodeError, OSError) as error:
            lacks.append(f"the output of {whose}: {error}")
            return ""

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


def shown(text: str) -> str:
    """Return a text with control characters made visible; markup is the template's to escape."""
    text = "".join(_visible(c) for c in text)
    return _UNSEEN.sub("\ufffd", text)


def _visible(letter: str) -> str:
    if ord(letter) < 32 and letter not in "\n\t":
        return chr(0x2400 + ord(letter))
    return "\u2421" if letter == "\x7f" else letter


def spans(prompt: str, item: str) -> list[tuple[int, int]]:
    """Return where an expected item stands in a prompt: whole, or its longest beginning and end that do."""
    if (at := prompt.find(item)) >= 0:
        return [(at, at + len(item))]
    found = []
    for part in (
        _longest(lambda size: item[:size], prompt, len(item)),
        _longest(lambda size: item[-size:], prompt, len(item)),
    ):
        if part and (place := (prompt.find(part), prompt.find(part) + len(part))) not in found:
            found.append(place)
    return found


def _longest(cut: Callable[[int], str], prompt: str, most: int) -> str:
    return next((cut(size) for size in range(most - 1, _LEAST_SPAN - 1, -1) if cut(size) in prompt), "")


def pieces(prompt: str, items: Sequence[str]) -> list[tuple[str, bool]]:
    """Cut a prompt to its beginning, its end and what surrounds the gold spans; a piece tells whether it is gold."""
    marked = sorted({span for item in items for span in spans(prompt, item)})
    kept = [(0, min(_HEAD, len(prompt))), (max(0, len(prompt) - _TAIL), len(prompt))]
    kept += [(max(0, low - _AROUND), min(len(prompt), high + _AROUND)) for low, high in marked]
    found: list[tuple[str, bool]] = []
    end = 0
    for low, high in sorted(kept):
        low = max(low, end)
        if high <= low:
            continue
        if low > end:
            found.append((f" \u2026 {low - end:,} characters \u2026 ", False))
        found += _cut(prompt, low, high, marked)
        end = high
    return [(shown(text), gold) for text, gold in found]


def _cut(prompt: str, low: int, high: int, marked: Sequence[tuple[int, int]]) -> list[tuple[str, bool]]:
    found = []
    for start, end in marked:
        start, end = max(start, low), min(end, high)
        if start < end:
            found += [(prompt[low:start], False), (prompt[start:end], True)]
            low = end
    return [(text, gold) for text, gold in [*found, (prompt[low:high], False)] if text]


def _flipped(mine: Record, full: Record) -> list[bool]:
    """Mark the answers that are right under Full alone."""
    ours, theirs = mine.parts or [], full.parts or []
    return [a < b for a, b in zip(ours, theirs, strict=True)] if len(ours) == len(theirs) else []


def _kind(found: dict[tuple[int, int], Record]) -> str:
    return next(iter(found.values())).method


def _places(config: Any) -> dict[str, Path | None]:
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
