"""Time what drawing costs: whole steps under a sampler in pairs with the same steps drawn greedily.

``python -m longdecode.evals.sampled_steps results/tokenswift --labels full tokenswift_lean`` writes
``sampled_steps.csv``. The throughput jobs time steps greedily, without a penalty, so that a method's kernels decide; a
text with penalty and noise pays for drawing too, once a row of the tree. ``throughput.step_block`` draws greedily by
its own hand: a sampler there would make every time on record one of older code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import device_name, resolve_device, resolve_dtype
from longdecode.engine.errors import ConfigError, LongDecodeError, UnsupportedCellError
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.engine.kv_cache import DenseCache, KVCache
from longdecode.engine.prefill import Observed
from longdecode.engine.request import Prompt, Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.steppers import make_stepper
from longdecode.evals import manifest, provenance
from longdecode.evals.failures import free_memory
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.evals.store import write_table
from longdecode.evals.throughput.models import TimedModel, load_model
from longdecode.evals.throughput.speed_job import REFERENCE, make_guard
from longdecode.evals.throughput.statistics import good_times, median, median_ratio
from longdecode.evals.throughput.step_block import captured, fill_cache, resetter
from longdecode.evals.throughput.timing import Block, clock_for, time_pair
from longdecode.methods.registry import get_method

NAME = "sampled_steps.csv"
ENDLESS = 1 << 14
"""Tokens that a request may generate: no row ends while it is timed."""


def whole_step(decoder: Decoder, cache: KVCache, method: AttentionMethod, context: int, sampling: Sampling) -> Block:
    """Make a block of one whole step, drafting and drawing included, whose last row reads ``context`` tokens.

    Args:
        cache: dense and filled; blocks may share it, each after its own reset.

    Raises:
        ConfigError: a step verifies more rows than the context has.
        UnsupportedCellError: the method decodes in a cache of its own.
    """
    if method.draft is None and method.make_cache(cache.shape) is not None:
        raise UnsupportedCellError(f"{method.name} decodes in a cache of its own, not in the dense one")
    rows = 1 if method.draft is None else method.draft.tree.rows
    if rows >= context:
        raise ConfigError(f"{rows} rows are verified; the context has {context} tokens")
    cache.stand_at(torch.full_like(cache.positions, context - rows))
    requests = tuple(Request((0,) * (context - rows), ENDLESS, seed=row) for row in range(cache.batch))
    logits = torch.zeros(cache.batch, decoder.config.vocab_size, dtype=torch.float32, device=decoder.device)
    with torch.no_grad():
        prompt = Prompt(requests, cache, logits, 0.0, _observed(method, cache, context - rows))
        stepper = make_stepper(decoder, sampling, prompt, method, keep_prompt=False)
    method.settle(stepper.state)
    reset = resetter(stepper)
    step = captured(stepper.step, decoder.device, reset)
    return Block("step", step, reset=reset, keep=(stepper, step))


def _observed(method: AttentionMethod, cache: KVCache, tokens: int) -> Observed:
    """Return random values in place of what a drafter's prefill observers keep."""
    found: dict[str, Sequence[torch.Tensor]] = {}
    for observer in method.observers() if method.draft else ():
        observer.begin(cache.shape, [tokens] * cache.batch)
        found[observer.key] = [observer.layer(layer).normal_() for layer in range(cache.shape.config.num_layers)]
    return found


def rows(
    config: RunConfig,
    model: TimedModel,
    labels: Sequence[str],
    contexts: Sequence[int],
    sampler: str,
    budget: int,
    rounds: int,
) -> Iterator[dict[str, object]]:
    """Yield a row for each context and label: microseconds of a step under the sampler and greedily, and their ratio.

    Raises:
        ConfigError: the configuration has no such label or sampler.
    """
    known = config.generation.samplers if config.generation is not None else {}
    if sampler not in known:
        raise ConfigError(f"{config.source}: no sampler {sampler!r} is configured (key 'generation.samplers')")
    if unknown := set(labels) - set(config.methods):
        raise ConfigError(f"{config.source}: no method {', '.join(sorted(unknown))}; {', '.join(config.methods)}")
    decoder, device = model.decoder, model.decoder.device
    clock, guard = clock_for(device), make_guard(device)
    for context in contexts:
        cache = DenseCache(decoder.cache_shape(1, context, 0))
        fill_cache(cache, context - 1, config.seed)
        for label in labels:
            spec = config.methods[label]
            tokens = budget if spec.takes_budget else None
            made = [
                get_method(spec.method).from_budget(tokens, model.config, **spec.params_of(model.name)) for _ in "ab"
            ]
            drawn = whole_step(decoder, cache, made[0], context, Sampling(**asdict(known[sampler])))
            greedy = whole_step(decoder, cache, made[1], context, Sampling())
            samples = time_pair(drawn, greedy, rounds=rounds, clock=clock, guard=guard)
            times = [(mine, theirs) for mine, theirs in good_times(samples) if theirs is not None]
            ratio = median_ratio(
                [mine / theirs for mine, theirs in times], config.confidence, config.bootstrap_resamples,
                (NAME, model.name, label, context, sampler),
            )  # fmt: skip
            yield {
                "model": model.name, "weights": model.weights, "label": label, "context": context,
                "rows": 1 if made[0].draft is None else made[0].draft.tree.rows, "sampler": sampler,
                "sampled_us": round(median([mine for mine, _ in times]), 2),
                "greedy_us": round(median([theirs for _, theirs in times]), 2),
                "ratio": round(ratio.value, 4), "low": round(ratio.low, 4), "high": round(ratio.high, 4),
                "n": len(times), "disturbed": len(samples) - len(times), "device": device_name(device),
                "revision": provenance.revision()[:12],
            }  # fmt: skip
            del drawn, greedy
            free_memory(device)
        del cache
        free_memory(device)


def main(arguments: list[str] | None = None) -> int:
    """Time whole steps under a sampler of the configuration in pairs with greedy ones."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("results", type=Path, help="a results folder with config.yaml")
    parser.add_argument("--model", default="llama3-8b", help="a shape, with random weights, or a model of the run")
    parser.add_argument("--labels", nargs="+", required=True, help=f"methods of the run, {REFERENCE} among them")
    parser.add_argument("--contexts", nargs="+", type=int, default=(102_400,))
    parser.add_argument("--sampler", default="minp", help="a name under generation.samplers")
    parser.add_argument("--budget", type=int, default=4096, help="tokens that a drafter keeps")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, help=f"the table; {NAME} of the results folder when left out")
    given = parser.parse_args(arguments)
    try:
        config, table = load_run_config(given.results / "config.yaml"), pd.DataFrame()
        path = given.output or given.results / NAME
        with lease_gpu(resolve_device(given.device), alone=True) as device:
            model = load_model(config, given.model, device, resolve_dtype(config.dtype, device), max(given.contexts))
            for row in rows(config, model, given.labels, given.contexts, given.sampler, given.budget, given.rounds):
                print(row, flush=True)
                table = pd.concat([table, pd.DataFrame([row])], ignore_index=True)
                write_table(path, table)
        if given.output is None:
            manifest.seal(given.results, [path])
    except LongDecodeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
