"""A generation that survives being killed: its whole state goes to disk at marks, and it goes on from there."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import CheckpointError
from longdecode.engine.generation import STOP_CHECK_STEPS, Generator, memory_guard
from longdecode.engine.request import Request
from longdecode.engine.steppers import SpeculativeStepper, Stepper, capture, make_stepper
from longdecode.engine.timer import Timer
from longdecode.engine.weights import load_decoder
from longdecode.evals.generation.measures import host_mib
from longdecode.evals.store import replacing

_MODEL: ContextVar[Decoder] = ContextVar("model of the run that is loaded")


@dataclass(frozen=True, slots=True)
class Mark:
    """Totals at the first look past ``past`` tokens.

    ``ngram_tokens`` are drafts kept on paths that end in an n-gram, ``host_mib`` the resident memory then.
    """

    past: int
    tokens: int
    steps: int
    ms: float
    ngram_tokens: int
    host_mib: float | None


@dataclass(slots=True)
class Saved:
    """One checkpoint: everything that the next step depends on, the weights left out."""

    fingerprint: str
    stepper: Stepper
    done: int
    prefill_ms: float
    ms: float = 0.0
    marks: list[Mark] = field(default_factory=list)

    @property
    def ids(self) -> tuple[int, ...]:
        """Tokens written so far by the only row."""
        sequences = self.stepper.sequences
        return tuple(sequences.chosen[0, : int(sequences.counts[0])].tolist())


class LongRun:
    """One text, written mark by mark; between two marks no step waits for the host.

    The state is pickled whole (caches, tables, counters of the method and its drafter), because sparse and evicting
    caches cannot be computed again from the text: a resumed run writes the same text, bit for bit, in any precision.
    Only files that this project wrote are loaded; the caller keeps them in the run's own folder.

    Args:
        generator: the model and the sampling.
        method: writes.
        file: the checkpoint; it takes the place of the one before.
        fingerprint: of all that the text depends on; a file with another one is not used.
    """

    def __init__(self, generator: Generator, method: AttentionMethod, file: Path, fingerprint: str):
        self.generator, self.method, self.file, self.fingerprint = generator, method, file, fingerprint

    @torch.no_grad()
    def write(self, request: Request, every: int, keep_every: int = 1) -> Iterator[Saved]:
        """Write a text and yield the state at every multiple of ``every`` tokens, and at the end.

        Every ``keep_every``-th state and the last are on disk before they are yielded; a text of one mark alone is not
        kept. Where the file holds a state of this run, its marks are not yielded again. The token that the prefill
        chooses is written, but neither a step nor timed.

        Raises:
            ContextLimitError: prompt and text are over the model's context.
            UnsupportedCellError: the method cannot run here.
            DeviceMemoryError: they do not fit the device.
        """
        device, total = self.generator.decoder.device, request.max_new_tokens
        with memory_guard(device, 1, request.total_tokens):
            saved = self._load() or self._begin(request)
            graph = self.generator.wants_graph(total - 1)
            if graph:
                self._warm_up(saved.stepper, total)
                del saved  # what was warmed up on has moved on
                saved = self._load() or self._begin(request)
            stepper = saved.stepper
            works = stepper.works(total - 1)
            works = tuple(capture(work, device) for work in works) if graph else works
            advance = stepper.plan(works, total - 1)
            while (written := int(stepper.sequences.counts[0])) < total:
                until = min(total, (written // every + 1) * every)
                self._advance(saved, advance, until)
                if total > every and (until == total or until // every % keep_every == 0):
                    self._save(saved)
                yield saved

    def finished(self, saved: Saved | None) -> tuple[tuple[int, ...], dict[str, float]]:
        """Return a finished text and its measures; ``None`` stands for a text that was finished before it was killed.

        ``alpha`` is the drafts kept a step over the tree's depth, ``beta`` those kept on paths that end in an n-gram.
        ``at_<n>_tokens``, ``_steps``, ``_ms`` and ``_ngram_tokens`` are totals at the first look past ``n`` tokens.

        Source: TokenSwift (arXiv 2502.18890), equations 4 and 6.
        """
        saved = saved or self._load()
        if saved is None or not saved.marks:
            raise CheckpointError(f"{self.file} holds no finished text")
        draft, last = self.method.draft, saved.marks[-1]
        depth = draft.tree.depth if draft else 1
        found = {
            "tokens": last.tokens, "decode_steps": last.steps, "decode_ms": last.ms, "prefill_ms": saved.prefill_ms,
            "tokens_per_step": (last.tokens - 1) / last.steps, "ms_per_token": last.ms / (last.tokens - 1),
            "cuda_graph": float(self.generator.wants_graph(last.tokens - 1)),
            "looks_every_steps": self.look_every,
        }  # fmt: skip
        if draft is not None:
            found["alpha"] = (last.tokens - 1 - last.steps) / (depth * last.steps)
            found["beta"] = last.ngram_tokens / (depth * last.steps)
        for mark in saved.marks:
            at = f"at_{mark.past}"
            found |= {f"{at}_{name}": getattr(mark, name) for name in ("tokens", "steps", "ms", "ngram_tokens")}
            if mark.host_mib is not None:
                found[f"{at}_host_mib"] = mark.host_mib
        return saved.ids, {name: float(value) for name, value in found.items()}

    @property
    def look_every(self) -> int:
        """Steps between two looks at the number of tokens; a look waits for the device."""
        return STOP_CHECK_STEPS if self.generator.decoder.device.type == "cuda" else 1

    def _advance(self, saved: Saved, advance: Callable[[int], None], until: int) -> None:
        """Run steps until ``until`` tokens are there; the count is looked at every 16 steps on a GPU."""
        device, sequences = self.generator.decoder.device, saved.stepper.sequences
        with Timer(device) as timer:
            while int(sequences.counts[0]) < until:
                for _ in range(self.look_every):
                    advance(saved.done)
                    saved.done += 1
        saved.ms += timer.ms
        counted: Any = {}
        if isinstance(saved.stepper, SpeculativeStepper):
            counted = saved.stepper.proposer.counts()
        ngrams = int(counted["ngram_tokens"][0]) if "ngram_tokens" in counted else 0
        tokens, steps = int(sequences.counts[0]), int(sequences.steps[0]) - 1
        saved.marks.append(Mark(until, tokens, steps, saved.ms, ngrams, host_mib()))

    def _begin(self, request: Request) -> Saved:
        generator = self.generator
        prompt = generator.prefill_for([request], self.method)
        stepper = make_stepper(generator.decoder, generator.sampling, prompt, self.method, keep_prompt=False)
        return Saved(self.fingerprint, stepper, 0, prompt.prefill_ms)

    def _warm_up(self, stepper: Stepper, total: int) -> None:
        """Run each kind of work twice on a side stream, as graph capture asks for."""
        device = self.generator.decoder.device
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for work in stepper.works(total - 1):
                for _ in range(2):
                    work()
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.synchronize(device)

    def _save(self, saved: Saved) -> None:
        with replacing(self.file) as temporary:
            torch.save(saved, temporary, pickle_module=_PICKLE)

    def _load(self) -> Saved | None:
        """Read the checkpoint, ``None`` where there is none of this run."""
        if not self.file.is_file():
            return None
        decoder = self.generator.decoder
        with _model(decoder):
            saved = torch.load(self.file, map_location=decoder.device, weights_only=False)
        return saved if isinstance(saved, Saved) and saved.fingerprint == self.fingerprint else None


class _Pickler(pickle.Pickler):
    """Pickle a model by name: weights are not part of a state."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Decoder):
            return _decoder, (None if thing.checkpoint is None else str(thing.checkpoint), str(thing.dtype))
        return NotImplemented


_PICKLE = ModuleType("longdecode_pickle")
_PICKLE.__dict__["Pickler"] = _Pickler
"""All that ``torch.save`` asks of a pickle module."""


def _decoder(source: str | None, dtype: str) -> Decoder:
    """Return the model that writes, or load the other one that a drafter is."""
    model = _MODEL.get()
    if source in (None, str(model.checkpoint)):
        return model
    assert source is not None
    kind = getattr(torch, dtype.removeprefix("torch."))
    return load_decoder(resolve_checkpoint(source, None), device=model.device, dtype=kind)


@contextmanager
def _model(decoder: Decoder) -> Iterator[None]:
    token = _MODEL.set(decoder)
    try:
        yield
    finally:
        _MODEL.reset(token)


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int | None:
    """Return the first place where two texts differ, ``None`` where they are the same."""
    if tuple(ids) == tuple(others):
        return None
    pairs = zip(ids, others, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(ids), len(others)))
