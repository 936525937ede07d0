"""The generation loop: one dense prefill, then decoding through any attention method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import Timer
from longdecode.engine.errors import ConfigError, ContextLimitError, DeviceMemoryError
from longdecode.engine.kv_cache import DenseCache, WholeCache
from longdecode.engine.request import Completion, Prompt, Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.steppers import SpeculativeStepper, Stepper, capture, make_stepper, warming_up

__all__ = ["Completion", "Generator", "Prompt", "Request", "Sampling"]

GRAPH_FROM_STEPS = 24
"""Decode steps from which capturing a CUDA graph repays itself."""
STOP_CHECK_STEPS = 16


class Generator:
    """Runs batches of requests; keeps nothing from one call to the next.

    Args:
        cuda_graph: capture the decode step as a CUDA graph: always, never, or (``None``) where enough steps are due.
        prefill_tokens: tokens of the whole batch that one prefill chunk works on.
    """

    def __init__(
        self, decoder: Decoder, sampling: Sampling | None = None, cuda_graph: bool | None = None, *,
        prefill_tokens: int = 16384,
    ):  # fmt: skip
        if cuda_graph and decoder.device.type != "cuda":
            raise ConfigError(f"cuda_graph was asked for on {decoder.device}; graphs exist on CUDA only")
        if prefill_tokens < 1:
            raise ConfigError(f"prefill_tokens is {prefill_tokens}, expected 1 or more")
        self.decoder = decoder
        self.sampling = sampling or Sampling()
        self.cuda_graph = cuda_graph
        self.prefill_tokens = prefill_tokens

    def run(self, requests: Sequence[Request], method: AttentionMethod) -> list[Completion]:
        """Prefill into the method's own cache and decode one batch."""
        return self.decode(self.prefill_for(requests, method), method, keep_prompt=False)

    def prefill(self, requests: Sequence[Request], methods: Sequence[AttentionMethod] = ()) -> Prompt:
        """Read a batch of prompts densely, with room in the cache for all that may follow.

        Args:
            methods: all that will decode this prompt; their observers see the prefill, their drafts find room.

        Raises:
            ContextLimitError: a request is longer than the model's context.
            ConfigError: no requests, or a token id outside the vocabulary.
            DeviceMemoryError: the batch does not fit the device.
        """
        return self._prefill(requests, methods, None)

    def prefill_for(
        self, requests: Sequence[Request], method: AttentionMethod, among: Sequence[Request] = ()
    ) -> Prompt:
        """Read a batch of prompts into the one method's own cache, by its own prefill rule; raises as ``prefill``.

        Args:
            among: the cache has the capacity that these need, any token of which may be a decoded one.
        """
        return self._prefill(requests, (method,), method, among)

    @torch.no_grad()
    def decode(self, prompt: Prompt, method: AttentionMethod, *, keep_prompt: bool = True) -> list[Completion]:
        """Continue every row of a prefilled batch.

        The decode time covers the steps alone, not what comes before them nor a graph's capture. A dense prompt is
        decoded in its own cache, which holds it as before afterwards: no copy of the cache is made.

        Args:
            keep_prompt: leave the prompt as it was, so that another method can decode it.

        Raises:
            ConfigError: the prompt is not this method's to decode (``Prompt.require_for``), or was prefilled without
                room for its drafts.
            DeviceMemoryError: the method's state does not fit beside the prompt.
            UnsupportedCellError: the method corrects or verifies in a cache that drops tokens.
        """
        with self.ready(prompt, method, keep_prompt=keep_prompt) as (stepper, advance):
            may_end_early = stepper.sequences.can_stop or isinstance(stepper, SpeculativeStepper)
            with Timer(self.decoder.device) as timer:
                for done in range(prompt.steps):
                    if may_end_early and done % self.look_every == 0 and not bool(stepper.sequences.active.any()):
                        break
                    advance(done)
            return [
                completion_of(stepper, row, request, prompt.prefill_ms, timer.ms)
                for row, request in enumerate(prompt.requests)
            ]

    @contextmanager
    def ready(
        self, prompt: Prompt, method: AttentionMethod, *, keep_prompt: bool
    ) -> Iterator[tuple[Stepper, Callable[[int], None]]]:
        """Yield a stepper, and what advances it by a step, given how many are done: graphs where steps are many.

        Arguments and errors are those of ``decode``.
        """
        prompt.require_for(method)
        device, capacity = self.decoder.device, prompt.cache.shape.capacity
        if capacity < (need := batch_capacity(prompt.requests, (method,))):
            raise ConfigError(f"{method.name} needs {need} slots a row, the prompt was prefilled with {capacity}")
        dense = prompt.cache if isinstance(prompt.cache, DenseCache) else None
        returned = dense.lent() if dense is not None and keep_prompt else nullcontext()
        with memory_guard(device, prompt.cache.batch, capacity), returned:
            steps, graph = prompt.steps, self.wants_graph(prompt.steps)
            if graph:
                self._warm_up(prompt, method, steps, keep_prompt)
            copied = keep_prompt and dense is None
            stepper = make_stepper(self.decoder, self.sampling, prompt, method, keep_prompt=copied)
            works = stepper.works(steps)
            yield stepper, stepper.plan(tuple(capture(work, device) for work in works) if graph else works, steps)

    def _prefill(
        self, requests: Sequence[Request], methods: Sequence[AttentionMethod], owner: AttentionMethod | None,
        among: Sequence[Request] = (),
    ) -> Prompt:  # fmt: skip
        self.refuse(requests)
        capacity = batch_capacity(among or requests, methods)
        prompts = [torch.tensor(request.prompt_ids, dtype=torch.int64) for request in requests]
        decoded = capacity - (0 if among else min(len(request.prompt_ids) for request in requests))
        shape = self.decoder.cache_shape(len(requests), capacity, decoded)
        observers = {observer.key: observer for method in methods for observer in method.observers()}
        with memory_guard(self.decoder.device, len(requests), capacity):
            cache = (owner.make_cache(shape) if owner else None) or DenseCache(shape)
            with Timer(self.decoder.device) as timer:
                logits, observed = self.decoder.prefill(
                    prompts, cache, self.prefill_tokens, owner, tuple(observers.values())
                )
        shared = owner is None or (owner.prefills_densely and isinstance(cache, DenseCache))
        return Prompt(tuple(requests), cache, logits, timer.ms, observed, None if shared else owner)

    def _warm_up(self, prompt: Prompt, method: AttentionMethod, steps: int, keep_prompt: bool) -> None:
        """Run each kind of work on a scratch stepper on a side stream, as graph capture asks for.

        A dense prompt is worked on and put back; another that may be taken over is not copied where each step can be
        taken back, least of all in host memory.
        """
        cache = prompt.cache
        period = method.correction.period if method.correction else 1
        dense = isinstance(cache, DenseCache)
        undone = not dense and not keep_prompt and isinstance(cache, WholeCache) and method.correction is None
        saved = []
        scratch_prompt = prompt if dense or undone else replace(prompt, cache=cache.clone())
        with cache.lent(period) if isinstance(cache, DenseCache) else nullcontext():
            scratch = make_stepper(self.decoder, self.sampling, scratch_prompt, method, keep_prompt=False)
            with warming_up(self.decoder.device):
                for work in scratch.works(steps):
                    for _ in range(2):
                        saved += [cache.before_step()] if undone else []
                        work()
            for step in reversed(saved):
                cache.undo(step, torch.ones_like(cache.positions, dtype=torch.bool))

    @property
    def look_every(self) -> int:
        """Steps between two looks at what was written, each of which waits for a GPU."""
        return STOP_CHECK_STEPS if self.decoder.device.type == "cuda" else 1

    def wants_graph(self, steps: int) -> bool:
        """Return whether ``steps`` decode steps are captured as a CUDA graph."""
        if self.decoder.device.type != "cuda" or steps < 1:
            return False
        return steps >= GRAPH_FROM_STEPS if self.cuda_graph is None else self.cuda_graph

    def refuse(self, requests: Sequence[Request]) -> None:
        """Raise for requests that cannot be run, as ``prefill`` does."""
        config = self.decoder.config
        if not requests:
            raise ConfigError("a batch of no requests")
        for row, request in enumerate(requests):
            read = request.total_tokens - (not request.max_new_tokens)  # a last token that is only scored is not read
            if read > config.max_positions:
                raise ContextLimitError(
                    f"request {row}: {len(request.prompt_ids)} prompt + {len(request.forced_ids)} forced + "
                    f"{request.max_new_tokens} new tokens are {request.total_tokens}; "
                    f"the model's context is {config.max_positions}"
                )
            for ids in (request.prompt_ids, request.forced_ids):
                if ids and not (min(ids) >= 0 and max(ids) < config.vocab_size):
                    raise ConfigError(f"request {row}: a token id is outside the vocabulary of {config.vocab_size}")
            named = request.compared_ids
            if named is not None and named.numel() and not (named.min() >= 0 and named.max() < config.vocab_size):
                raise ConfigError(f"request {row}: compared_ids are outside the vocabulary of {config.vocab_size}")
            if not 0 <= request.top_tokens <= config.vocab_size:
                raise ConfigError(f"request {row}: top_tokens is {request.top_tokens}, not 0 to {config.vocab_size}")


def batch_capacity(requests: Sequence[Request], methods: Sequence[AttentionMethod]) -> int:
    """Return the slots of a row: the longest sequence, and the drafts that may lie beyond its end."""
    drafts = max((method.draft.tree.rows - 1 for method in methods if method.draft), default=0)
    return max(request.total_tokens for request in requests) + drafts


def completion_of(stepper: Stepper, row: int, request: Request, prefill_ms: float, decode_ms: float) -> Completion:
    """Fetch the result of one row."""
    sequences = stepper.sequences
    fed_and_newest, steps = int(sequences.counts[row]), max(0, int(sequences.steps[row]) - 1)
    forced, fed = len(request.forced_ids), max(0, fed_and_newest - 1)
    output = tuple(sequences.chosen[row, forced:fed_and_newest].tolist())
    counted = stepper.proposer.counts() if isinstance(stepper, SpeculativeStepper) else {}
    return Completion(
        output_ids=output,
        forced_logprobs=tuple(sequences.logprobs[row, :forced].tolist()),
        forced_greedy=tuple(sequences.greedy[row, :forced].tolist()),
        finish_reason="stop" if output and output[-1] in request.stop_ids else "length",
        read_tokens_mean=float(_reads(stepper)[row]) / max(1, fed),
        read_tokens_sparse=float(_governed_reads(stepper)[row]) / max(1, fed),
        prefill_ms=prefill_ms,
        decode_ms=decode_ms,
        decode_steps=steps,
        tokens_per_step=fed / max(1, steps),
        draft_counts={name: int(values[row]) for name, values in counted.items()},
        **(sequences.alternatives.of(row, request) if sequences.alternatives else {}),
    )


def _reads(stepper: Stepper) -> Tensor:
    """Tokens read by each KV head, a mean over heads and layers, summed over steps and over all that reads.

    A smaller model's tokens count as those of the verifying one that have as many bytes.
    """
    whole = stepper.decoder.config.kv_bytes_per_token(1)
    shares = [
        state.kv_tokens_per_head.mean(dim=0) * (state.cache.config.kv_bytes_per_token(1) / whole)
        for state in stepper.states
    ]
    return torch.stack(shares).sum(dim=0)


def _governed_reads(stepper: Stepper) -> Tensor:
    """Tokens read by each KV head that does not read everything, summed over steps; by all where none is governed."""
    config = stepper.decoder.config
    dense = sum(map(len, stepper.method.dense_heads()))
    governed = config.num_layers * config.num_kv_heads - dense
    if governed == 0 or len(stepper.states) > 1:
        return _reads(stepper)
    reads = stepper.state.kv_tokens_per_head.sum(dim=0) * config.num_kv_heads
    return (reads - stepper.state.dense_tokens * dense) / governed


@contextmanager
def memory_guard(device: torch.device, batch: int, capacity: int) -> Iterator[None]:
    """Turn the allocator's failure into a status of the cell."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise DeviceMemoryError(f"batch {batch} with {capacity} tokens a row does not fit {device}: {error}") from error
