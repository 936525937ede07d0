"""Measure what consecutive steps share on real text: overlap by layer and head, union, misses by slots."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.attention import Selection
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.device import lease_gpu, resolve_device, resolve_dtype
from longdecode.engine.errors import ConfigError, DataUnavailableError, UnsupportedCellError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.evals.datasets.books import UNSEEN, read_books
from longdecode.evals.generators.narrative import narrative
from longdecode.evals.retrospection import watched
from longdecode.evals.run_config import RunConfig
from longdecode.methods.prompt_selection import SelectivePrefill
from longdecode.methods.registry import get_method
from longdecode.training.files import write_csv
from longdecode.training.forks.traces import EMPTY, BlockTrace

_DIGITS = 4
"""Significant digits of a figure; over documents it spreads by 0.003 and more."""
STATISTICS = ("gamma", "gamma_free", "worst", "union")
"""Mean overlap of a step with the one before, over all blocks and over those not forced; its minimum; share of the
blocks that all steps together read."""


@dataclass(frozen=True, slots=True)
class LocalitySpec:
    """Forced text that variants read, of ``samples`` books at most; ``slots`` are sizes of a resident set in blocks."""

    budget: int
    context: int
    steps: int = 1024
    samples: int = 8
    slots: tuple[int, ...] = (64, 80, 96, 128)


def columns(spec: LocalitySpec) -> tuple[str, ...]:
    """Return the columns of locality.csv."""
    misses = (f"misses_{slots}" for slots in spec.slots)
    place = ("label", "model", "method", "text", "context", "budget", "document", "layer", "head", "steps")
    return (*place, *STATISTICS, *misses)


def record(method: SelectivePrefill, generator: Generator, requests: Sequence[Request]) -> np.ndarray:
    """Decode the forced tokens of some requests and return the blocks read, ``[steps, L, B, H, K]`` uint16.

    Raises:
        UnsupportedCellError: a block number does not fit 16 bits.
    """
    made: list[Tensor] = []

    def note(q: Tensor, state: DecodeState, layer: int, chosen: Selection | None) -> None:
        assert chosen is not None
        ids = chosen.indices.masked_fill(
            torch.arange(chosen.indices.shape[2], device=q.device) >= chosen.counts[..., None], EMPTY
        )
        made.append(ids.to(torch.int32))  # stays on the device: a copy would wait for each layer

    with watched(method, "select", note):
        generator.run(requests, method)
    ids = torch.stack(made).cpu().numpy()
    if ids.max() > EMPTY:
        raise UnsupportedCellError(f"block {ids.max():,} in a trace; block numbers up to {EMPTY - 1:,} are recorded")
    return ids.astype(np.uint16).reshape(-1, method.config.num_layers, *ids.shape[1:])


def measure_locality(config: RunConfig, output: Path, device: str | None = None) -> None:
    """Write locality.csv, at the run's first budget and four times as many tokens, as forks are trained.

    Raises:
        ConfigError: the configuration asks for none, its budget is no number of tokens, or a method selects nothing.
        LongDecodeError: a model or its text cannot be loaded.
    """
    if not config.locality:
        raise ConfigError(f"{config.source}: no locality is configured (key 'locality')")
    budget = config.budgets[0].value
    if not isinstance(budget, int):
        raise ConfigError(f"{config.source}: locality is measured at the first of 'budgets', in tokens; it is {budget}")
    spec = LocalitySpec(budget, 4 * budget)
    rows: list[list[Any]] = []
    with lease_gpu(resolve_device(device or config.device)) as target:
        for label, model in ((variant, model) for variant, models in config.locality.items() for model in models):
            folder = config.models[model].checkpoint()
            decoder = load_decoder(folder, device=target, dtype=resolve_dtype(config.dtype, target))
            method = get_method(config.methods[label].method).from_budget(
                spec.budget, decoder.config, **config.methods[label].params_of(model)
            )
            if not isinstance(method, SelectivePrefill):
                raise ConfigError(f"{config.source}: {label} reads no listed blocks, so that nothing overlaps")
            text, requests = requests_of(spec, load_tokenizer(folder), config.data.get("pg19"))
            about = {
                "label": label, "model": model, "method": method.name, "text": text, "context": spec.context,
                "budget": spec.budget, "block_size": method.list_block, "forced": list(method.forced),
            }  # fmt: skip
            ids = record(method, Generator(decoder, cuda_graph=False), requests)
            rows += locality_rows(spec, BlockTrace(ids, about, target))
    write_csv(output, columns(spec), rows, _DIGITS)


def requests_of(spec: LocalitySpec, tokenizer: TextTokenizer, books: Path | None) -> tuple[str, list[Request]]:
    """Return what the text is, and requests whose prompt and forced tokens are consecutive text.

    Raises:
        DataUnavailableError: fewer than two books are long enough.
    """
    need = spec.context + spec.steps + 1
    texts: Iterable[str]
    if books is None:
        drawn = (random.Random(f"locality {number}") for number in range(spec.samples))
        texts, kind = (narrative(rng, need * 8) for rng in drawn), "generated"
    else:
        texts, kind = read_books(books, UNSEEN).values(), "books"
    encoded = (list(tokenizer.encode(text[: need * 12]))[:need] for text in texts)
    found = list(islice((ids for ids in encoded if len(ids) == need), spec.samples))
    if len(found) < 2:
        raise DataUnavailableError(f"{books}: {len(found)} books of {need:,} tokens, 2 are needed for an interval")
    cut = spec.context
    return kind, [Request(tuple(ids[:cut]), 0, tuple(ids[cut:])) for ids in found]


def locality_rows(spec: LocalitySpec, trace: BlockTrace) -> list[list[Any]]:
    """Return the rows of one label, one a document, layer and head."""
    about = [trace.about[name] for name in ("label", "model", "method", "text", "context", "budget")]
    whole = trace.overlaps()
    tables = [whole.mean(axis=0), trace.free_overlaps().mean(axis=0), whole.min(axis=0), trace.union()]
    # A method that lists tokens has no slots to speak of.
    misses = trace.misses(spec.slots) if trace.about["block_size"] > 1 else [None] * len(spec.slots)
    steps, layers, documents, heads, _ = trace.ids.shape
    return [
        [
            *about, document, layer, head, steps, *(round(float(table[layer, document, head]), 5) for table in tables),
            *("" if table is None else round(float(table[layer, document, head]), 5) for table in misses),
        ]
        for document, layer, head in np.ndindex(documents, layers, heads)
    ]  # fmt: skip
