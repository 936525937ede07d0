"""The generation loop: one dense prefill, then decoding through any attention method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decode_run import DecodeRun, warm_up
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError, ContextLimitError, DeviceMemoryError
from longdecode.engine.request import Completion, Prompt, Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.timer import Timer

__all__ = ["Completion", "Generator", "Prompt", "Request", "Sampling"]

GRAPH_FROM_STEPS = 24
"""Decode steps from which capturing a CUDA graph repays itself."""
STOP_CHECK_STEPS = 16
"""Steps between two looks at the active rows on CUDA, where each look waits for the device."""


class Generator:
    """Runs batches of requests; keeps nothing from one call to the next.

    Args:
        cuda_graph: capture the decode step as a CUDA graph: always, never, or (``None``) where enough steps are due.
        prefill_tokens: tokens of the whole batch that one prefill chunk works on.
    """

    def __init__(
        self,
        decoder: Decoder,
        sampling: Sampling | None = None,
        cuda_graph: bool | None = None,
        *,
        prefill_tokens: int = 16384,
    ):
        if cuda_graph and decoder.device.type != "cuda":
            raise ConfigError(f"cuda_graph was asked for on {decoder.device}; graphs exist on CUDA only")
        if prefill_tokens < 1:
            raise ConfigError(f"prefill_tokens is {prefill_tokens}, expected 1 or more")
        self.decoder = decoder
        self.sampling = sampling or Sampling()
        self.cuda_graph = cuda_graph
        self.prefill_tokens = prefill_tokens

    def run(self, requests: Sequence[Request], method: AttentionMethod) -> list[Completion]:
        """Prefill and decode one batch."""
        return self.decode(self.prefill(requests), method)

    @torch.no_grad()
    def prefill(self, requests: Sequence[Request]) -> Prompt:
        """Read a batch of prompts densely, with room in the cache for all that may follow.

        Raises:
            ContextLimitError: a request is longer than the model's context.
            ConfigError: no requests, or a token id outside the vocabulary.
            DeviceMemoryError: the batch does not fit the device.
        """
        self._refuse(requests)
        capacity = max(request.total_tokens for request in requests)
        prompts = [torch.tensor(request.prompt_ids, dtype=torch.int64) for request in requests]
        with _memory_guard(self.decoder.device, len(requests), capacity):
            cache = self.decoder.new_cache(len(requests), capacity)
            with Timer(self.decoder.device) as timer:
                logits = self.decoder.prefill(prompts, cache, self.prefill_tokens)
        return Prompt(tuple(requests), cache, logits, timer.ms)

    @torch.no_grad()
    def decode(self, prompt: Prompt, method: AttentionMethod) -> list[Completion]:
        """Continue every row of a prefilled batch; the prompt is left as it was.

        The decode time covers the steps alone, not the copying of the cache nor a graph's capture.

        Raises:
            DeviceMemoryError: the method's state does not fit beside the prompt.
            UnsupportedCellError: the method asks for Cache Correction and decodes in a cache that drops tokens.
        """
        device = self.decoder.device
        with _memory_guard(device, prompt.cache.batch, prompt.cache.capacity):
            steps = max(request.continuation_tokens for request in prompt.requests) - 1
            graph = self._wants_graph(steps)
            if graph:
                warm_up(self.decoder, self.sampling, prompt, method)
            run = DecodeRun(self.decoder, self.sampling, prompt, method)
            advance = run.advance(steps, graph)
            look_every = STOP_CHECK_STEPS if device.type == "cuda" else 1
            with Timer(device) as timer:
                for done in range(max(0, steps)):
                    if run.can_stop and done % look_every == 0 and not bool(run.state.active.any()):
                        break
                    advance(done)
            return _completions(run, prompt, timer.ms)

    def _wants_graph(self, steps: int) -> bool:
        if self.decoder.device.type != "cuda" or steps < 1:
            return False
        return steps >= GRAPH_FROM_STEPS if self.cuda_graph is None else self.cuda_graph

    def _refuse(self, requests: Sequence[Request]) -> None:
        config = self.decoder.config
        if not requests:
            raise ConfigError("a batch of no requests")
        for row, request in enumerate(requests):
            if request.total_tokens > config.max_positions:
                raise ContextLimitError(
                    f"request {row}: {len(request.prompt_ids)} prompt + {len(request.forced_ids)} forced + "
                    f"{request.max_new_tokens} new tokens are {request.total_tokens}; "
                    f"the model's context is {config.max_positions}"
                )
            for ids in (request.prompt_ids, request.forced_ids):
                if ids and not (min(ids) >= 0 and max(ids) < config.vocab_size):
                    raise ConfigError(f"request {row}: a token id is outside the vocabulary of {config.vocab_size}")


def _completions(run: DecodeRun, prompt: Prompt, decode_ms: float) -> list[Completion]:
    """Fetch the results of all rows in one go."""
    reads = run.state.reads
    counts, chosen = run.chosen_count.tolist(), run.chosen.tolist()
    logprobs, greedy = run.logprobs.tolist(), run.greedy.tolist()
    all_reads = reads.mean(dim=0).tolist()
    sparse_reads = _governed_reads(run, reads)
    completions = []
    for row, request in enumerate(prompt.requests):
        forced = len(request.forced_ids)
        output = tuple(chosen[row][forced : counts[row]])
        stopped = bool(output) and output[-1] in request.stop_ids
        reason: Literal["stop", "length"] = "stop" if stopped else "length"
        steps = max(0, counts[row] - 1)
        completions.append(
            Completion(
                output_ids=output,
                forced_logprobs=tuple(logprobs[row][:forced]),
                forced_greedy=tuple(greedy[row][:forced]),
                finish_reason=reason,
                read_tokens_mean=all_reads[row] / max(1, steps),
                read_tokens_sparse=sparse_reads[row] / max(1, steps),
                prefill_ms=prompt.prefill_ms,
                decode_ms=decode_ms,
                decode_steps=steps,
            )
        )
    return completions


def _governed_reads(run: DecodeRun, reads: Tensor) -> list[float]:
    """Tokens read by each KV head that does not read everything, summed over steps; by all where none is governed."""
    heads = run.state.cache.config.num_kv_heads
    dense = sum(map(len, run.method.dense_heads()))
    governed = reads.shape[0] * heads - dense
    if governed == 0:
        return reads.mean(dim=0).tolist()
    return ((reads.sum(dim=0) * heads - run.state.seen * dense) / governed).tolist()


@contextmanager
def _memory_guard(device: torch.device, batch: int, capacity: int) -> Iterator[None]:
    """Turn the allocator's failure into a status of the cell."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise DeviceMemoryError(f"batch {batch} with {capacity} tokens a row does not fit {device}: {error}") from error
