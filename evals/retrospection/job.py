"""Measure on one model what selections share and what corrections change, and write one tidy table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import device_name, resolve_device
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.engine.request import Prompt, Request
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals import provenance
from longdecode.evals.model_job import ModelJob
from longdecode.evals.retrospection import traces
from longdecode.evals.run_config import RunConfig
from longdecode.evals.stats import Spread, bootstrap_interval, generator
from longdecode.evals.store import write_table
from longdecode.evals.tasks.base import Task
from longdecode.evals.tasks.registry import get_task
from longdecode.methods.paged import PagedMethod
from longdecode.methods.registry import get_method

COLUMNS = (
    "model", "task", "context", "budget", "variant", "measure", "layer", "index", "value", "low", "high", "n",
    "revision", "device",
)  # fmt: skip
ALL_LAYERS = -1
MINUS = "_minus_quest"
"""End of a measure's name where the value is the paired difference to Quest's."""
SAMPLES, LAGS, RESAMPLES = 8, 15, 1000

Values = tuple[str, str, int, int, Tensor]
"""Variant, measure, layer, index (lag, steps ahead or last step of a part), and a value for each sample."""


def measure_retrospection(config: RunConfig, model: str, output: Path, device: str | None = None) -> None:
    """Write the table of one model.

    Raises:
        ConfigError: the configuration asks for none, or none of its variants is Quest.
        LongDecodeError: the model cannot be loaded, or a task does not fit it.
    """
    spec = config.retrospection
    if model not in spec.models:
        raise ConfigError(f"{config.source}: retrospection.models has no {model!r}")
    rows: list[tuple[object, ...]] = []
    spread = Spread(config.confidence, RESAMPLES, config.seed)
    with lease_gpu(resolve_device(device or config.device)) as target:
        job, task = ModelJob(config, model, target), get_task(spec.models[model], config.data)
        for context in spec.contexts:
            prompt, tokens = forced_continuation(task, context, spec.steps, config.seed, job.decoder, job.tokenizer)
            for budget in config.budgets:
                built = {variant: job.build(variant, budget.tokens(context)) for variant in spec.variants}
                for *what, values in measured(job.decoder, prompt, tokens, built):
                    cell = (model, task.name, context, budget.text, *what)
                    rng = generator("retrospection", *cell)
                    mean = bootstrap_interval([values.cpu().numpy()], spread, rng)
                    made = (provenance.revision(), device_name(target))
                    rows.append((*cell, mean.value, mean.low, mean.high, len(values), *made))
    write_table(output, pd.DataFrame(rows, columns=list(COLUMNS)))


def forced_continuation(
    task: Task, context: int, steps: int, seed: int, decoder: Decoder, tokenizer: TextTokenizer
) -> tuple[Prompt, Tensor]:
    """Return the prefilled samples and the ``steps + 1`` tokens that follow each, ``[B, steps + 1]``.

    The task's forced tokens come first; where they end, Full goes on greedily.
    """
    requests = []
    for sample in task.samples(context, SAMPLES, seed, tokenizer):
        forced = tokenizer.encode(sample.forced)[: steps + 1]
        requests.append(Request(tokenizer.prompt_ids(sample.prompt, task.chat), steps + 1 - len(forced), forced))
    full = get_method("full").from_budget(None, decoder.config)
    prompt = Generator(decoder).prefill(requests, [full])
    done = Generator(decoder).decode(prompt, full)
    texts = [(*request.forced_ids, *one.output_ids) for request, one in zip(requests, done, strict=True)]
    return prompt, torch.tensor(texts, device=decoder.device)


def measured(decoder: Decoder, prompt: Prompt, tokens: Tensor, methods: dict[str, AttentionMethod]) -> Iterator[Values]:
    """Yield every measure, a value for each sample.

    Raises:
        ConfigError: none of the methods is Quest.
    """
    base = next((variant for variant, method in methods.items() if method.name == "quest"), "")
    quest = methods.get(base)
    if not isinstance(quest, PagedMethod):
        raise ConfigError("retrospection.variants: one of method 'quest' is needed, what the others correct")
    choices = traces.record_pages(decoder, prompt, quest, tokens[:, :-1])
    for lag in range(1, min(LAGS, tokens.shape[1] - 2) + 1):
        top, following = traces.overlap(choices, lag)
        yield base, "overlap_top", ALL_LAYERS, lag, top
        yield base, "overlap_next", ALL_LAYERS, lag, following
        yield base, "effective_budget", ALL_LAYERS, lag, traces.effective_budget(choices, lag)
    full = traces.record(decoder, prompt, get_method("full").from_budget(None, decoder.config), tokens)
    # The same tokens for all variants: those that have left the widest window.
    widest = max(method.window for method in methods.values())
    of_quest: dict[tuple[str, int, int], Tensor] = {}
    for variant in [base, *(variant for variant in methods if variant != base)]:
        trace = traces.record(decoder, prompt, methods[variant], tokens)
        found = {("loss_gap", ALL_LAYERS, index): values for index, values in traces.loss_gaps(trace, full)}
        for measure, by_layer in traces.errors(trace, full, widest).items():
            found |= {(measure, layer, 0): values for layer, values in enumerate(by_layer)}
            found[measure, ALL_LAYERS, 0] = by_layer.mean(dim=0)
        of_quest = of_quest or found
        for (measure, layer, index), values in found.items():
            yield variant, measure, layer, index, values
            if variant != base:
                yield variant, measure + MINUS, layer, index, values - of_quest[measure, layer, index]
