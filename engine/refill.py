"""Refilled batches: a row that ends takes the next request, so that none waits for the longest answer of its batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.generation import Generator, batch_capacity, completion_of, memory_guard
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.request import Completion, Request
from longdecode.engine.sequences import Alternatives, Sequences
from longdecode.engine.steppers import Stepper, capture, make_stepper, warming_up

Parts = Mapping[str, Any]
"""Tensors and plain values of a state, by where they stand in it."""
_PLAIN = (bool, int, float, str, Fraction, frozenset, slice, torch.dtype, torch.device, type(None))


def can_refill(method: AttentionMethod) -> bool:
    """Return true where a row may begin while others are under way: no correction and no draft is due by batch."""
    return method.correction is None and method.draft is None


@torch.no_grad()
def stream(
    generator: Generator, requests: Sequence[Request], method: AttentionMethod, rows: int,
    wanted: Iterable[int] | None = None,
) -> Iterator[tuple[int, Completion]]:  # fmt: skip
    """Decode requests in ``rows`` rows, each of which takes the next request once its own has ended.

    Every prompt is prefilled alone, and shapes are those of all requests, whichever are wanted: a completion does not
    depend on what runs beside it. Its ``decode_ms`` run from its first step until its end is seen, prefills of other
    rows among them.

    Args:
        generator: model, sampling, and whether the step is captured as a CUDA graph.
        requests: all that are ever run together.
        method: decodes them.
        rows: 2 or more.
        wanted: numbers of the requests to run, all where left out.

    Yields:
        The number of a request and its completion, in the order in which they end.

    Raises:
        UnsupportedCellError: the method corrects or drafts, or keeps a state that cannot be copied by row; the message
            names the part.
        ConfigError: as ``Generator.prefill``, and for fewer than 2 rows.
        ContextLimitError: a request is longer than the model's context.
        DeviceMemoryError: rows and one prompt more do not fit the device.
    """
    if not can_refill(method):
        what = "drafts" if method.draft else "corrections"
        raise UnsupportedCellError(f"{method.name}: {what} are due for a whole batch, whose rows are not refilled")
    if rows < 2:
        raise ConfigError(f"{rows} rows: a batch that is refilled has 2 or more")
    generator.refuse(requests)
    with memory_guard(generator.decoder.device, rows, batch_capacity(requests, (method,))):
        batch = _Batch(generator, requests, method, rows)
        waiting = iter(range(len(requests)) if wanted is None else wanted)
        under_way: dict[int, Callable[[], tuple[int, Completion]]] = {}
        while True:
            for row, active in enumerate(batch.stepper.sequences.active.tolist()):
                if not active and row in under_way:
                    yield under_way.pop(row)()
                while not active and (index := next(waiting, None)) is not None:
                    active, ended = batch.fill(row, index)
                    if active:
                        under_way[row] = ended
                    else:
                        yield ended()
            if not under_way:
                return
            for _ in range(generator.look_every):
                batch.advance()


class _Batch:
    """The rows that decode together; tensors keep their addresses, so that a captured step can be replayed.

    It is started on copies of the shortest prompt, whose rows are over at once: every row is then filled by a copy.
    """

    def __init__(self, generator: Generator, requests: Sequence[Request], method: AttentionMethod, rows: int):
        self.generator, self.requests, self.method = generator, requests, method
        shortest = min(requests, key=lambda request: len(request.prompt_ids))
        self.stepper, _ = self._start([shortest] * rows)
        # Taken before the first step: what a step puts in place of a part, it makes anew each time.
        self.parts = row_parts(self.stepper)
        self.stepper.sequences.active.zero_()
        device, self.advance = generator.decoder.device, self.stepper.step
        with warming_up(device) if device.type == "cuda" else nullcontext():
            # What a step changes for all rows at once is changed now, so that the first copy finds it.
            for _ in range(2):
                self.stepper.step()
        if generator.wants_graph(self.stepper.sequences.longest - 1):
            self.advance = capture(self.stepper.step, device)

    def fill(self, row: int, index: int) -> tuple[bool, Callable[[], tuple[int, Completion]]]:
        """Prefill a request alone, choose its first token, and let the row go on from there unless that was the last.

        Returns:
            Whether it goes on, and what fetches its number and its result once it has ended.
        """
        stepper, prefill_ms = self._start([self.requests[index]])
        active, began = bool(stepper.sequences.active), time.perf_counter()
        if active:
            copy_row(self.parts, row_parts(stepper), row)
            stepper = self.stepper  # nothing keeps the state of one row
        at = row if active else 0

        def ended() -> tuple[int, Completion]:
            decode_ms = 1000 * (time.perf_counter() - began)
            return index, completion_of(stepper, at, self.requests[index], prefill_ms, decode_ms)

        return active, ended

    def _start(self, requests: Sequence[Request]) -> tuple[Stepper, float]:
        model, prompt = self.generator, self.generator.prefill_for(requests, self.method, self.requests)
        stepper = make_stepper(
            model.decoder, model.sampling, prompt, self.method, keep_prompt=False, among=self.requests
        )
        return stepper, prompt.prefill_ms


def row_parts(stepper: Stepper) -> Parts:
    """Return all that the next step of a plain stepper's rows depends on.

    Raises:
        UnsupportedCellError: the state holds an object of unknown kind.
    """
    return dict([*_walk(stepper.state, "state"), *_walk(stepper.sequences, "sequences")])


def copy_row(running: Parts, started: Parts, row: int) -> None:
    """Copy the one row of a started state into a row of a running one.

    The batch axis of a tensor is the one that differs. What does not differ is shared by all rows and must be equal.

    Raises:
        UnsupportedCellError: a part cannot be told apart by row; the message names it.
    """
    if running.keys() != started.keys():
        raise UnsupportedCellError(f"a row alone keeps other parts: {sorted(running.keys() ^ started.keys())}")
    for where, one in started.items():
        all_rows = running[where]
        if isinstance(one, Tensor) and one.shape != all_rows.shape:
            axes = [axis for axis, (a, b) in enumerate(zip(one.shape, all_rows.shape, strict=False)) if a != b]
            if one.dim() != all_rows.dim() or len(axes) > 1 or one.shape[axes[0]] != 1:
                raise UnsupportedCellError(f"{where} has no row: {[*one.shape]} alone, {[*all_rows.shape]} in a batch")
            all_rows.select(axes[0], row).copy_(one.select(axes[0], 0))
        elif not (one.equal(all_rows) if isinstance(one, Tensor) else one == all_rows):
            raise UnsupportedCellError(f"{where} is shared by all rows of a batch, and a new row needs another")


def _walk(part: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(part, KVCache):
        part = part.row_state()
    elif isinstance(part, DecodeState | Sequences | Alternatives):
        part = vars(part)
    elif is_dataclass(part):
        part = {item.name: getattr(part, item.name) for item in fields(part)}
    elif isinstance(part, tuple | list):
        part = part._asdict() if hasattr(part, "_asdict") else dict(enumerate(part))
    if isinstance(part, Mapping):
        for name, value in part.items():
            yield from _walk(value, f"{where}.{name}")
    elif isinstance(part, (Tensor, *_PLAIN)):
        yield where, part
    else:
        raise UnsupportedCellError(f"{where}: a {type(part).__name__} is not known to be kept by row")
