"""Refilled batches: a row that ends takes the next request, so that none waits for the longest answer of its batch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from fractions import Fraction
from itertools import groupby
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

Part = tuple[str, Any, Any, int | None]
"""A part of a state by name: of the running batch, of a started group, and its batch axis, ``None`` if shared."""
_PLAIN = (bool, int, float, str, Fraction, frozenset, slice, torch.dtype, torch.device, type(None))


def can_refill(method: AttentionMethod) -> bool:
    """Return true where a row may begin while others are under way: no correction and no draft is due by batch."""
    return method.correction is None and method.draft is None


@torch.no_grad()
def stream(
    generator: Generator, requests: Sequence[Request], method: AttentionMethod, rows: int,
    wanted: Iterable[int] | None = None, group: int | None = None,
) -> Iterator[tuple[int, Completion]]:  # fmt: skip
    """Decode requests in ``rows`` rows, each of which takes the next request once its own has ended.

    Prompts are prefilled in groups: the first ``group`` requests, the next ones and so on, whichever are wanted. Shapes
    are those of all requests. So a completion depends on its group alone, not on what runs beside it. ``prefill_ms``
    are the group's. ``decode_ms`` run from a row's first step until its end is seen, prefills of other groups among
    them.

    Args:
        generator: model, sampling, and whether the step is captured as a CUDA graph.
        requests: all that are ever run together.
        method: decodes them.
        rows: 2 or more.
        wanted: numbers of the requests to run, all where left out.
        group: prompts prefilled together, fewer than ``rows``; a quarter of ``rows`` where left out.

    Yields:
        The number of a request and its completion, in the order in which they end.

    Raises:
        UnsupportedCellError: the method corrects or drafts, or keeps a state that cannot be copied by row; the message
            names the part.
        ConfigError: as ``Generator.prefill``, for fewer than 2 rows, and for a group of none or as many as rows.
        ContextLimitError: a request is longer than the model's context.
        DeviceMemoryError: rows and one group more do not fit the device.
    """
    if not can_refill(method):
        what = "drafts" if method.draft else "corrections"
        raise UnsupportedCellError(f"{method.name}: {what} are due for a whole batch, whose rows are not refilled")
    group = max(1, rows // 4) if group is None else group
    if not 1 <= group < rows:
        raise ConfigError(f"{rows} rows and groups of {group}: refilled are 2 rows or more, from smaller groups")
    generator.refuse(requests)
    with memory_guard(generator.decoder.device, rows + group, batch_capacity(requests, (method,))):
        batch = _Batch(generator, requests, method, rows)
        waiting = batch.begin(sorted(range(len(requests)) if wanted is None else wanted), group)
        while True:
            active = batch.stepper.sequences.active.tolist()
            ended = [batch.end(row) for row in [*batch.under_way] if not active[row]]
            while len(batch.under_way) < rows and (over := next(waiting, None)) is not None:
                ended += over
            for _ in range(generator.look_every if batch.under_way else 0):
                batch.advance()
            yield from ended  # while a GPU works on the steps
            if not batch.under_way:
                return


class _Batch:
    """The rows that decode together; tensors keep their addresses, so that a captured step can be replayed.

    It is started on copies of the shortest prompt, whose rows are over at once: every row is then filled by a copy.
    ``under_way`` holds by row the number of its request, its group's prefill time and when it began.
    """

    def __init__(self, generator: Generator, requests: Sequence[Request], method: AttentionMethod, rows: int):
        self.generator, self.requests, self.method, self.rows = generator, requests, method, {*range(rows)}
        self.under_way: dict[int, tuple[int, float, float]] = {}
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

    def begin(self, wanted: Iterable[int], size: int) -> Iterator[list[tuple[int, Completion]]]:
        """Begin one request after the other, each in the first free row; prefill a group once one is due.

        Yields:
            For each request nothing, or its number and completion where its first token ended it.
        """
        for first, due in groupby(wanted, lambda index: index - index % size):
            stepper, prefill_ms = self._start(self.requests[first : first + size])
            parts, active = [*paired(self.parts, row_parts(stepper))], stepper.sequences.active.tolist()
            for index in due:
                if active[index - first]:
                    copy_row(parts, row := min(self.rows - self.under_way.keys()), index - first)
                    self.under_way[row] = index, prefill_ms, time.perf_counter()
                    yield []
                else:
                    yield [(index, completion_of(stepper, index - first, self.requests[index], prefill_ms, 0.0))]
            del stepper, parts  # freed before the next group is prefilled

    def end(self, row: int) -> tuple[int, Completion]:
        """Fetch the number and the completion of the request that has ended in a row."""
        index, prefill_ms, began = self.under_way.pop(row)
        ms = 1000 * (time.perf_counter() - began)
        return index, completion_of(self.stepper, row, self.requests[index], prefill_ms, ms)

    def _start(self, requests: Sequence[Request]) -> tuple[Stepper, float]:
        prompt = self.generator.prefill_for(requests, self.method, self.requests)
        given = self.generator.decoder, self.generator.sampling, prompt, self.method
        return make_stepper(*given, keep_prompt=False, among=self.requests), prompt.prefill_ms


def row_parts(stepper: Stepper) -> Mapping[str, Any]:
    """Return all that the next step of a plain stepper's rows depends on, by where it stands in the state.

    Raises:
        UnsupportedCellError: the state holds an object of unknown kind.
    """
    return dict([*_walk(stepper.state, "state"), *_walk(stepper.sequences, "sequences")])


def paired(running: Mapping[str, Any], started: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the parts of a running batch beside those of a started group, which has fewer rows.

    The batch axis of a tensor is the one that differs. What does not differ is shared by all rows.

    Raises:
        UnsupportedCellError: a part cannot be told apart by row; the message names it.
    """
    if running.keys() != started.keys():
        raise UnsupportedCellError(f"started rows keep other parts: {sorted(running.keys() ^ started.keys())}")
    rows = [len(parts["sequences.active"]) for parts in (started, running)]
    for where, group in started.items():
        batch, axes = running[where], []
        if isinstance(group, Tensor) and group.shape != batch.shape:
            axes = [axis for axis, (a, b) in enumerate(zip(group.shape, batch.shape, strict=False)) if a != b]
            if group.dim() != batch.dim() or [[part.shape[axis] for part in (group, batch)] for axis in axes] != [rows]:
                raise UnsupportedCellError(f"{where} has no row: {[*group.shape]} started, {[*batch.shape]} in all")
        yield where, batch, group, axes[0] if axes else None


def copy_row(parts: Sequence[Part], row: int, at: int) -> None:
    """Copy row ``at`` of a started group into a row of the running batch.

    Raises:
        UnsupportedCellError: a part that all rows share is not equal; the message names it.
    """
    copies: dict[Any, list[tuple[Tensor, Tensor]]] = {}
    for where, batch, group, axis in parts:
        if axis is not None:
            # One launch copies all slices of a type and axis; it knows no 8-bit floats.
            dtype = torch.uint8 if batch.dtype.itemsize == 1 else batch.dtype
            pair = batch.select(axis, row).view(dtype), group.select(axis, at).view(dtype)
            copies.setdefault((batch.device, dtype, axis), []).append(pair)
        elif not (group.equal(batch) if isinstance(group, Tensor) else group == batch):
            raise UnsupportedCellError(f"{where} is shared by all rows of a batch, and a new row needs another")
    for pairs in copies.values():
        torch._foreach_copy_([to for to, _ in pairs], [of for _, of in pairs])


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
