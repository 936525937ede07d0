"""Decode steps as blocks to time: the whole step that a user pays for, token choice included, or projections alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decode_run import DecodeRun
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.request import Prompt, Request
from longdecode.engine.sampling import Sampling
from longdecode.evals.throughput.ceilings import sharing_cache
from longdecode.evals.throughput.timing import Block
from longdecode.kernels.linear import gated_linear, linear

WARMUP_STEPS = 2
_ENDLESS = 1 << 14
"""Tokens a request may generate: more than a block has steps, so that no row ends while it is timed."""


def fill_cache(cache: KVCache, tokens: int, seed: int) -> None:
    """Fill a cache with random normal keys and values, and set ``tokens`` of each row as stored."""
    generator = torch.Generator(cache.device).manual_seed(seed)
    for layer in range(cache.k.shape[0]):
        cache.k[layer].normal_(generator=generator)
        cache.v[layer].normal_(generator=generator)
    set_lengths(cache, tokens)


def set_lengths(cache: KVCache, tokens: int) -> None:
    """Say that each row holds ``tokens`` tokens and stands at that position."""
    cache.lengths.fill_(tokens)
    cache.positions.fill_(tokens)


def step_block(
    decoder: Decoder, cache: KVCache, method: AttentionMethod, label: str, context: int, steps: int
) -> Block:
    """A block of ``steps`` decode steps that ends with a query over ``context`` tokens.

    The method decodes in ``cache`` itself (or in a smaller one of its own). Lengths, positions and tokens go back to
    their start before each block, so that the context does not drift. On CUDA the step is captured as a graph.

    Args:
        cache: filled, with ``context`` slots a row; other blocks may work in it too, each after its own reset.
    """
    run = _run(decoder, cache, method, context - steps)
    reset = _resetter(run)
    advance = _captured(run, run.step, reset)

    def block() -> None:
        for _ in range(steps):
            advance()

    return Block(label, block, calls=steps, reset=reset, keep=(run, advance))


def correction_block(decoder: Decoder, cache: KVCache, method: AttentionMethod, label: str, context: int) -> Block:
    """One correction as the method asks for it: a dense step, or its latest tokens run again as one chunk.

    Either ends with a query over ``context`` tokens. The tokens are any: time does not depend on them. A rewrite leaves
    other keys in the cache than it found, as random as those.

    Raises:
        UnsupportedCellError: the method corrects nothing or drops tokens, or more is rewritten than the context has.
    """
    correction = method.correction
    if correction is None:
        raise UnsupportedCellError(f"{label} corrects nothing")
    if correction.mode == "rewrite" and correction.period > context:
        raise UnsupportedCellError(f"{correction.period} tokens are rewritten; the context has {context}")
    run = _run(decoder, cache, method, context if correction.mode == "rewrite" else context - 1)
    reset = _resetter(run)
    correct = _captured(run, lambda: run.correct(correction), reset)
    return Block(label, correct, reset=reset, keep=(run, correct))


def projections_block(decoder: Decoder, batch: int) -> Block:
    """All linear calls of one step and nothing else, on fixed inputs: every layer's projections and the LM head."""
    config, dtype, device = decoder.config, decoder.dtype, decoder.device
    x = torch.randn(batch, 1, config.hidden_size, device=device).to(dtype)
    heads = torch.randn(batch, 1, config.num_heads * config.head_dim, device=device).to(dtype)

    def run() -> None:
        for layer in decoder.weights.layers:
            linear(x, layer.qkv, layer.qkv_bias)
            linear(heads, layer.o, layer.o_bias)
            linear(gated_linear(x, layer.gate_up), layer.down)
        linear(x[:, 0], decoder.weights.lm_head)

    return Block("projections", captured(run, device), keep=(x, heads))


@torch.no_grad()
def captured(run: Callable[[], None], device: torch.device, warmup: int = WARMUP_STEPS) -> Callable[[], None]:
    """On CUDA the replay of ``run`` captured as a graph, after a warm-up on a side stream; elsewhere ``run`` itself.

    The graph is kept alive by what is returned; the tensors that ``run`` closes over by the caller.
    """
    if device.type != "cuda":
        return torch.no_grad()(run)
    warm_up(run, device, warmup)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        run()
    return graph.replay


def warm_up(run: Callable[[], Any], device: torch.device, times: int) -> None:
    """Run work a few times on a side stream, as graph capture asks for, and wait for it."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(times):
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)


def tensors_of(cache: object) -> Iterator[Tensor]:
    """Every tensor of a cache, those of the stores that it is made of included."""
    for value in vars(cache).values():
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, Tensor):
                yield part
            elif isinstance(part, KVCache):
                yield from tensors_of(part)


def _run(decoder: Decoder, cache: KVCache, method: AttentionMethod, tokens: int) -> DecodeRun:
    """A run that starts in ``cache`` with ``tokens`` tokens a row and does not end while it is timed."""
    set_lengths(cache, tokens)
    requests = tuple(Request((0,), max_new_tokens=_ENDLESS) for _ in range(cache.batch))
    logits = torch.zeros(cache.batch, decoder.config.vocab_size, dtype=torch.float32, device=decoder.device)
    return DecodeRun(decoder, Sampling(), Prompt(requests, cache, logits, 0.0), sharing_cache(method))


def _captured(run: DecodeRun, work: Callable[[], None], reset: Callable[[], None]) -> Callable[[], None]:
    """The work of a run, as a graph where there are graphs."""

    def from_the_start() -> None:
        reset()  # more steps in a row than a block has would leave the cache
        work()

    if run.decoder.device.type != "cuda":
        return work
    with torch.no_grad():
        warm_up(from_the_start, run.decoder.device, WARMUP_STEPS)
        reset()
        return run.capture(work)


def _resetter(run: DecodeRun) -> Callable[[], None]:
    """What brings a run back to where it is now: tokens, counts, activity, lengths and positions; the cache stays.

    Keys and values are the floating-point tensors of a cache; all others say where in it the run stands.
    """
    counters = [tensor for tensor in tensors_of(run.state.cache) if not tensor.is_floating_point()]
    saved = [(tensor, tensor.clone()) for tensor in (run.tokens, run.chosen_count, run.state.active, *counters)]

    def reset() -> None:
        for tensor, value in saved:
            tensor.copy_(value)

    return reset
