"""Measure on one model what selections share and what corrections change, and write one tidy table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import device_name, resolve_device, resolve_dtype
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.engine.request import Prompt, Request
from longdecode.engine.weights import load_decoder
from longdecode.evals import provenance, stats
from longdecode.evals.retrospection import measures
from longdecode.evals.retrospection.spec import RetrospectionSpec
from longdecode.evals.retrospection.trace import record, record_pages
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import write_table
from longdecode.evals.tasks.registry import get_task
from longdecode.evals.tokenizing import TextTokenizer, load_tokenizer
from longdecode.methods.paged import PagedMethod
from longdecode.methods.registry import get_method

COLUMNS = (
    "model", "task", "context", "budget", "label", "measure", "layer", "index", "value", "low", "high", "n",
    "revision", "device",
)  # fmt: skip
ALL_LAYERS = -1
MINUS = "_minus_quest"
"""End of a measure's name where the value is the paired difference to Quest's."""
RESAMPLES = 1000

Values = tuple[str, str, int, int, Tensor]
"""Label, measure, layer, index (lag, steps ahead or last step of a part), and a value for each sample."""


def measure_retrospection(config: RunConfig, model: str, output: Path, device: str | None = None) -> None:
    """Write the table of one model.

    Raises:
        ConfigError: the configuration asks for none, or none of its labels is Quest.
        LongDecodeError: the model cannot be loaded, or a task does not fit it.
    """
    spec = config.retrospection
    if spec is None:
        raise ConfigError(f"{config.source}: nothing is configured (key 'retrospection')")
    with lease_gpu(resolve_device(device or config.device)) as target:
        rows = _rows(config, spec, model, target)
    made = (provenance.revision(), device_name(target))
    write_table(output, pd.DataFrame([(*row, *made) for row in rows], columns=list(COLUMNS)))


def _rows(config: RunConfig, spec: RetrospectionSpec, model: str, target: torch.device) -> list[tuple[object, ...]]:
    """Return the table's rows without the columns of provenance."""
    place = config.models[model]
    folder = resolve_checkpoint(place.path, place.revision)
    decoder = load_decoder(folder, device=target, dtype=resolve_dtype(config.dtype, target))
    rows: list[tuple[object, ...]] = []
    spread = stats.Spread(config.confidence, RESAMPLES, config.seed)
    for context in spec.contexts:
        prompt, tokens = forced_continuation(config, spec, model, decoder, load_tokenizer(folder), context)
        for budget in spec.budgets:
            methods = _methods(config, spec, decoder, model, budget.tokens(context) or context)
            for label, measure, layer, index, values in measured(spec, decoder, prompt, tokens, methods):
                rng = stats.generator("retrospection", model, context, budget.text, label, measure, layer, index)
                found = stats.bootstrap_interval([values.cpu().numpy()], spread, rng)
                cell = (model, spec.task_of(model), context, budget.text, label, measure, layer, index)
                rows.append((*cell, found.value, found.low, found.high, len(values)))
    return rows


def forced_continuation(
    config: RunConfig,
    spec: RetrospectionSpec,
    model: str,
    decoder: Decoder,
    tokenizer: TextTokenizer,
    context: int,
) -> tuple[Prompt, Tensor]:
    """Return the prefilled samples and the ``steps + 1`` tokens that follow each, ``[B, steps + 1]``.

    The task's forced tokens come first; where they end, Full goes on greedily.
    """
    task, wanted = get_task(spec.task_of(model), config.data), spec.steps + 1
    requests = []
    for sample in task.samples(context, spec.samples, config.seed, tokenizer):
        forced = tokenizer.encode(sample.forced)[:wanted]
        ids = tokenizer.prompt_ids(sample.prompt, task.chat)
        requests.append(Request(ids, wanted - len(forced), forced))
    generator = Generator(decoder)
    full = get_method("full").from_budget(None, decoder.config)
    prompt = generator.prefill(requests, [full])
    texts = [
        (*request.forced_ids, *done.output_ids)
        for request, done in zip(requests, generator.decode(prompt, full), strict=True)
    ]
    return prompt, torch.tensor(texts, device=decoder.device)


def measured(
    spec: RetrospectionSpec, decoder: Decoder, prompt: Prompt, tokens: Tensor, methods: dict[str, AttentionMethod]
) -> Iterator[Values]:
    """Yield every measure, a value for each sample.

    Raises:
        ConfigError: none of the methods is Quest.
    """
    base = next((label for label, method in methods.items() if method.name == "quest"), None)
    quest = methods.get(base or "")
    if base is None or not isinstance(quest, PagedMethod):
        raise ConfigError("retrospection.labels: one label of method 'quest' is needed, what the others correct")
    choices = record_pages(decoder, prompt, quest, tokens[:, :-1])
    for lag in range(1, spec.lags + 1):
        top, following = measures.overlap(choices, lag)
        yield base, "overlap_top", ALL_LAYERS, lag, top
        yield base, "overlap_next", ALL_LAYERS, lag, following
        yield base, "effective_budget", ALL_LAYERS, lag, measures.effective_budget(choices, lag)
    full = record(decoder, prompt, get_method("full").from_budget(None, decoder.config), tokens)
    # The same tokens for all labels: those that have left the widest window.
    widest = max(method.window for method in methods.values())
    of_quest: dict[tuple[str, int, int], Tensor] = {}
    for label in [base, *(label for label in methods if label != base)]:
        trace = record(decoder, prompt, methods[label], tokens)
        for measure, layer, index, values in _against_full(trace, full, widest):
            yield label, measure, layer, index, values
            if label == base:
                of_quest[measure, layer, index] = values
            else:
                yield label, measure + MINUS, layer, index, values - of_quest[measure, layer, index]


def _against_full(trace: measures.Trace, full: measures.Trace, window: int) -> Iterator[tuple[str, int, int, Tensor]]:
    for measure, by_layer in measures.distances(trace, full, window).items():
        for layer, values in enumerate(by_layer):
            yield measure, layer, 0, values
        yield measure, ALL_LAYERS, 0, by_layer.mean(dim=0)
    for index, values in measures.loss_gaps(trace, full):
        yield "loss_gap", ALL_LAYERS, index, values


def _methods(
    config: RunConfig, spec: RetrospectionSpec, decoder: Decoder, model: str, budget_tokens: int
) -> dict[str, AttentionMethod]:
    """Return the labels' methods at one budget, with their parameters on the model."""
    labels: Sequence[str] = spec.labels
    return {
        label: get_method(config.methods[label].method).from_budget(
            budget_tokens, decoder.config, **config.methods[label].params_of(model)
        )
        for label in labels
    }
