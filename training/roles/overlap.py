"""Measure the overlap of adjacent layers' top tokens, head by head, at decode steps with full attention."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.attention import DecodeState, DenseAttention, Selection
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import resolve_device, resolve_dtype
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.request import Request
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.evals.run_config import RunConfig
from longdecode.evals.tasks.registry import get_task
from longdecode.training.files import write_csv

COLUMNS = ("model", "task", "context", "k_tokens", "layer", "head_kind", "head", "mean_overlap", "n")
"""``head_kind`` is ``kv`` or ``query``: a KV head scores with its group's mean query, a query head with its own."""


@dataclass(slots=True)
class _Record:
    """Sums of overlaps ``[K, L, Hkv + Hq]`` float64, the top sets of the layer below, and steps seen."""

    sums: Tensor
    below: list[Tensor]
    count: Tensor


class OverlapProbe(DenseAttention):
    """Full attention that compares each layer's top tokens with those of the layer below.

    The overlap of two sets of ``k`` tokens is the share of one that the other holds.
    """

    def __init__(self, sizes: tuple[int, ...], config: ModelConfig):
        super().__init__((), config)
        self.sizes = sizes
        self.record: _Record | None = None

    def make_method_state(self, cache: KVCache) -> _Record:
        """Empty sums."""
        config = self.config
        shape = (len(self.sizes), config.num_layers, config.num_kv_heads + config.num_heads)
        sums = torch.zeros(shape, dtype=torch.float64, device=cache.device)
        self.record = _Record(sums, [], torch.zeros((), dtype=torch.float64, device=cache.device))
        return self.record

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Compare, and read everything."""
        record: _Record = state.method_state
        sets = self._top_sets(q, state.dense.keys(layer), state.kv_lengths)
        if layer:
            for row, (upper, lower, size) in enumerate(zip(sets, record.below, self.sizes, strict=True)):
                shared = (upper & lower).sum(dim=-1).double() / size
                record.sums[row, layer] += (shared * state.active[:, None]).sum(dim=0)
        else:
            record.count += state.active.sum()
        record.below = sets
        return None

    def _top_sets(self, q: Tensor, keys: Tensor, visible: Tensor) -> list[Tensor]:
        """Membership ``[B, Hkv + Hq, S]`` of each size's set, KV heads first."""
        batch, kv_heads, total, dim = keys.shape
        logits = q.float().reshape(batch, kv_heads, -1, dim) @ keys.float().transpose(-1, -2)
        unseen = torch.arange(total, device=q.device) >= visible[:, None, None]
        # Slots that no token has been written to may hold anything, NaN included.
        scores = torch.cat((logits.mean(dim=2), logits.flatten(1, 2)), dim=1).masked_fill(unseen, -torch.inf)
        order = scores.topk(max(self.sizes), dim=-1).indices
        empty = torch.zeros_like(scores, dtype=torch.bool)
        return [empty.scatter(-1, order[..., :size], True) for size in self.sizes]


@dataclass(frozen=True, slots=True)
class OverlapSpec:
    """One model, a generated task at some contexts, and sizes ``k`` of the sets that a step compares."""

    model: str
    contexts: tuple[int, ...]
    k: tuple[int, ...] = (64, 256)
    task: str = "mini_longgen_15"
    samples: int = 4
    steps: int = 16
    seed: int = 0


def overlap_rows(spec: OverlapSpec, decoder: Decoder, tokenizer: TextTokenizer) -> list[list[Any]]:
    """Rows in the order of ``COLUMNS``: one a context, size, upper layer and head; ``n`` counts (sample, step) pairs.

    Raises:
        UnsupportedCellError: the task does not fit a context or the model.
        ConfigError: a set is larger than what a step sees.
    """
    rows: list[list[Any]] = []
    task = get_task(spec.task)
    for context in spec.contexts:
        requests = [
            Request(tokenizer.encode(s.prompt), spec.steps, tokenizer.encode(s.forced))
            for s in task.samples(context, spec.samples, spec.seed, tokenizer)
        ]
        shortest = min(len(request.prompt_ids) for request in requests)
        if max(spec.k) > shortest:
            raise ConfigError(f"overlap: k = {max(spec.k)}; prompts of {spec.task} at {context} have {shortest} tokens")
        probe = OverlapProbe(spec.k, decoder.config)
        Generator(decoder, cuda_graph=False).run(requests, probe)
        rows += _rows(spec, context, probe)
    return rows


def measure_overlap(config: RunConfig, output: Path) -> None:
    """Write overlap.csv for a configuration.

    Raises:
        ConfigError: the configuration asks for none.
        LongDecodeError: as for ``overlap_rows``; or the model cannot be loaded.
    """
    if not config.overlap:
        raise ConfigError(f"{config.source}: no overlap is configured (key 'overlap')")
    target = resolve_device(config.device)
    rows: list[list[Any]] = []
    for name, contexts in config.overlap.items():
        folder = config.models[name].checkpoint()
        decoder = load_decoder(folder, device=target, dtype=resolve_dtype(config.dtype, target))
        rows += overlap_rows(OverlapSpec(name, contexts), decoder, load_tokenizer(folder))
    write_csv(output, COLUMNS, rows)


def _rows(spec: OverlapSpec, context: int, probe: OverlapProbe) -> list[list[Any]]:
    record = probe.record
    assert record is not None
    count = int(record.count)
    means = (record.sums / count).tolist()
    heads = [("kv", head) for head in range(probe.config.num_kv_heads)]
    heads += [("query", head) for head in range(probe.config.num_heads)]
    return [
        [spec.model, spec.task, context, size, layer, kind, head, means[row][layer][place], count]
        for row, size in enumerate(spec.k)
        for layer in range(1, probe.config.num_layers)
        for place, (kind, head) in enumerate(heads)
    ]
