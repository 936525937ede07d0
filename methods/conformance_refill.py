"""Hold rows that are refilled while others are under way to what they generate and read alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from longdecode.engine import refill
from longdecode.engine.errors import GateError, UnsupportedCellError
from longdecode.engine.generation import Completion, Generator, Request
from longdecode.engine.refill import Part
from longdecode.engine.sampling import Sampling
from longdecode.methods.conformance_bench import MethodBench, uninitialised_memory_is_nan
from longdecode.methods.conformance_model import SPIKES

CONTINUATIONS = ((1, 3, 2), (2, 0, 9), (2, 8, 0), (2, 0, 5), (1, 0, 4), (2, 0, 1))
"""Prompt, tokens forced and tokens generated of each request; a long prompt follows a short one, and a short a long."""
SAMPLING = Sampling(temperature=1.0, penalty=1.3, penalty_window=9)
COMPARED = ("output_ids", "forced_greedy", "finish_reason", "decode_steps", "read_tokens_mean", "read_tokens_sparse")
TOLERANCE = 2e-4
"""Largest difference of log-probabilities: the batch is another."""


def refilled_rows_equal_rows_alone(bench: MethodBench) -> None:
    """Rows that end and are refilled, full of NaN in between, generate and read what each request does alone.

    Left out where the method's batches are refused: no number comes of rows that were refilled.
    """
    with suppress(UnsupportedCellError):
        compare_refilled(bench)


def compare_refilled(
    bench: MethodBench, rows: int = 3, group: int = 2, sampling: Sampling = SAMPLING, *, replayed: bool = False
) -> None:
    """Decode requests in ``rows`` rows, with ``replayed`` from a CUDA graph, and one by one, eagerly.

    Prompts are prefilled by ``group``, of which the last ends with its first token.

    Raises:
        GateError: tokens, log-probabilities, steps or reads differ.
        UnsupportedCellError: the method's batches cannot be refilled.
    """
    requests, method = requests_of(bench), bench.method
    # To fill memory asks torch for deterministic ops, whose capture in a graph nobody has tried.
    with uninitialised_memory_is_nan(not replayed), _rows_are_nan_before():
        generator = Generator(bench.decoder, sampling, cuda_graph=replayed, prefill_tokens=64)
        refilled = dict(refill.stream(generator, requests, method, rows, group=group))
    alone = Generator(bench.decoder, sampling, cuda_graph=False, prefill_tokens=64)
    for index, request in enumerate(requests):
        _compare(f"request {index}", refilled[index], alone.run([request], method)[0])


def requests_of(bench: MethodBench) -> list[Request]:
    """Return requests of many lengths, each with noise of its own; the same few tokens end them."""
    given, stops = bench.inputs.requests(), frozenset(range(SPIKES, 2 * SPIKES))
    return [
        Request(given[row].prompt_ids, new, given[row].forced_ids[:forced], stops, seed, top_tokens=2)
        for seed, (row, forced, new) in enumerate(CONTINUATIONS)
    ]


def _compare(what: str, got: Completion, want: Completion) -> None:
    for name in COMPARED:
        if getattr(got, name) != getattr(want, name):
            raise GateError(f"{what}: {name} is {getattr(got, name)} in a refilled row, {getattr(want, name)} alone")
    logprobs = torch.tensor([got.forced_logprobs, want.forced_logprobs])
    if got.top_logprobs is not None and want.top_logprobs is not None:
        logprobs = torch.cat((logprobs, torch.stack((got.top_logprobs, want.top_logprobs)).flatten(1)), dim=1)
    if not bool(((logprobs[0] - logprobs[1]).abs() <= TOLERANCE).all()):
        raise GateError(f"{what}: log-probabilities {logprobs[0].tolist()} in a refilled row, {logprobs[1].tolist()}")


@contextmanager
def _rows_are_nan_before() -> Iterator[None]:
    """Fill a row of every part with NaN, or a number that is wrong by 1, before it is refilled, while inside."""
    copy = refill.copy_row

    def poisoned(parts: Sequence[Part], row: int, at: int) -> None:
        for _, batch, group, axis in parts:
            if axis is not None:
                batch.select(axis, row).copy_(_wrong(group.select(axis, at)))
        copy(parts, row, at)

    setattr(refill, "copy_row", poisoned)  # noqa: B010
    try:
        yield
    finally:
        setattr(refill, "copy_row", copy)  # noqa: B010


def _wrong(right: torch.Tensor) -> torch.Tensor:
    if right.is_floating_point():
        return torch.full_like(right, torch.nan)
    return ~right if right.dtype == torch.bool else right + 1
