"""A generation that survives being killed: its whole state goes to disk at marks, and it goes on from there."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import Timer
from longdecode.engine.generation import STOP_CHECK_STEPS, Generator, memory_guard
from longdecode.engine.request import Request
from longdecode.engine.steppers import SpeculativeStepper, Stepper, capture, make_stepper
from longdecode.engine.weights import load_decoder
from longdecode.evals.store import replacing

MARKS = 10
"""Places of a text at which its totals are noted, evenly spread; the paper's 102,400 tokens have theirs at 10,240."""
SAVE_SECONDS = 300.0
"""Least time between two states on disk; that of 100,000 tokens is gigabytes."""
_LOADED: WeakValueDictionary[tuple[str | None, torch.dtype], Decoder] = WeakValueDictionary()
"""Models at hand by checkpoint, for states that are read."""


@dataclass(slots=True)
class State:
    """Everything that the next step of a text depends on, the weights left out.

    ``marks`` are totals by place: tokens, steps and milliseconds at the first look past it, and drafts kept on paths
    that end in an n-gram. The token that the prefill chooses is written, but neither a step nor timed.
    """

    fingerprint: str
    stepper: Stepper
    prefill_ms: float
    calls: int = 0
    ms: float = 0.0
    marks: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[int, ...]:
        """Tokens written so far by the only row."""
        sequences = self.stepper.sequences
        return tuple(sequences.chosen[0, : int(sequences.counts[0])].tolist())


@torch.no_grad()
def write_text(
    generator: Generator, method: AttentionMethod, request: Request, file: Path, fingerprint: str
) -> tuple[tuple[int, ...], dict[str, float]]:
    """Write a text, or what is left of it, and return it with its measures.

    The state is pickled whole (caches, tables, counters of the method and its drafter), because sparse and evicting
    caches cannot be computed again from the text: a resumed text is the same, bit for bit, in any precision. Only files
    that this project wrote are loaded; the caller keeps them in the run's own folder.

    Args:
        generator: the model and the sampling.
        method: writes; between two marks no step waits for the host.
        request: one prompt.
        file: the state on disk; each takes the place of the one before.
        fingerprint: of all that the text depends on; a file with another one is not used.

    Returns:
        The tokens, and ``measures_of`` them.

    Raises:
        ContextLimitError: prompt and text are over the model's context.
        UnsupportedCellError: the method cannot run here.
        DeviceMemoryError: they do not fit the device.
    """
    device, total = generator.decoder.device, request.max_new_tokens
    every, saved_at = -(-total // MARKS), time.monotonic()
    with memory_guard(device, 1, request.total_tokens):
        state = _load(file, fingerprint, generator.decoder) or _begin(generator, method, request, fingerprint)
        graph = generator.wants_graph(total - 1)
        if graph:
            _warm_up(state.stepper, total)
            del state  # what was warmed up on has moved on
            state = _load(file, fingerprint, generator.decoder) or _begin(generator, method, request, fingerprint)
        works = state.stepper.works(total - 1)
        advance = state.stepper.plan(tuple(capture(work, device) for work in works) if graph else works, total - 1)
        while (written := len(state.ids)) < total:
            with Timer(device) as timer:
                until = min(total, (written // every + 1) * every)
                while int(state.stepper.sequences.counts[0]) < until:
                    # A look at the count waits for the device.
                    for _ in range(STOP_CHECK_STEPS if device.type == "cuda" else 1):
                        advance(state.calls)
                        state.calls += 1
            state.ms += timer.ms
            state.marks[until] = _totals(state)
            if time.monotonic() - saved_at >= SAVE_SECONDS:
                with replacing(file) as temporary:
                    torch.save(state, temporary, pickle_module=_PICKLE)
                saved_at = time.monotonic()
    return state.ids, measures_of(state, method)


def measures_of(state: State, method: AttentionMethod) -> dict[str, float]:
    """Return the measures of a finished text; ``at_<n>_<total>`` are the totals at its marks.

    ``alpha`` is the drafts kept a step over the tree's depth, ``beta`` those kept on paths that end in an n-gram.

    Source: TokenSwift (arXiv 2502.18890), equations 4 and 6.
    """
    last = state.marks[max(state.marks)]
    tokens, steps = last["tokens"], last["steps"]
    found = {
        "tokens": tokens, "decode_steps": steps, "decode_ms": state.ms, "prefill_ms": state.prefill_ms,
        "tokens_per_step": (tokens - 1) / steps, "ms_per_token": state.ms / (tokens - 1), "depth": 0.0, "rows": 1.0,
    }  # fmt: skip
    if method.draft is not None:
        tree = method.draft.tree
        found |= {"depth": float(tree.depth), "rows": float(tree.rows)}
        found["alpha"] = (tokens - 1 - steps) / (tree.depth * steps)
        found["beta"] = last["ngram_tokens"] / (tree.depth * steps)
    return found | {f"at_{at}_{name}": value for at, totals in state.marks.items() for name, value in totals.items()}


def _totals(state: State) -> dict[str, float]:
    stepper, sequences = state.stepper, state.stepper.sequences
    counted: dict[str, Any] = dict(stepper.proposer.counts()) if isinstance(stepper, SpeculativeStepper) else {}
    ngrams = float(counted["ngram_tokens"][0]) if "ngram_tokens" in counted else 0.0
    tokens, steps = float(sequences.counts[0]), float(sequences.steps[0]) - 1
    return {"tokens": tokens, "steps": steps, "ms": state.ms, "ngram_tokens": ngrams}


def _begin(generator: Generator, method: AttentionMethod, request: Request, fingerprint: str) -> State:
    prompt = generator.prefill_for([request], method)
    stepper = make_stepper(generator.decoder, generator.sampling, prompt, method, keep_prompt=False)
    return State(fingerprint, stepper, prompt.prefill_ms)


def _warm_up(stepper: Stepper, total: int) -> None:
    """Run each kind of work twice on a side stream, as graph capture asks for."""
    device = stepper.decoder.device
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for work in stepper.works(total - 1):
            work()
            work()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)


def _load(file: Path, fingerprint: str, decoder: Decoder) -> State | None:
    """Read a state, ``None`` where there is none of this text."""
    if not file.is_file():
        return None
    _LOADED[_name(decoder)] = decoder
    state = torch.load(file, map_location=decoder.device, weights_only=False)
    return state if isinstance(state, State) and state.fingerprint == fingerprint else None


class _Pickler(pickle.Pickler):
    """Pickle a model by name: weights are not part of a state."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, Decoder):
            return _decoder, (*_name(thing), thing.device)
        return NotImplemented


_PICKLE = ModuleType("longdecode_pickle")
_PICKLE.__dict__["Pickler"] = _Pickler
"""All that ``torch.save`` asks of a pickle module."""


def _name(decoder: Decoder) -> tuple[str | None, torch.dtype]:
    return (None if decoder.checkpoint is None else str(decoder.checkpoint)), decoder.dtype


def _decoder(source: str | None, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Return the model that writes, or load the other one that a drafter is."""
    if found := _LOADED.get((source, dtype)):
        return found
    return load_decoder(resolve_checkpoint(str(source), None), device=device, dtype=dtype)
