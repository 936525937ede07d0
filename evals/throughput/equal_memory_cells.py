"""The cells of the throughput test at equal device memory, and how many sequences each holds."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import DataUnavailableError, LongDecodeError
from longdecode.engine.kv_cache import CacheShape, DenseCache
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.budgets import FULL_BUDGET
from longdecode.evals.run_config import RunConfig
from longdecode.evals.throughput.cells import SpeedCell
from longdecode.evals.throughput.decode_cells import FULL, Labels
from longdecode.evals.throughput.equal_memory_spec import EqualMemorySpec, Part


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one sequence: keys, values and what the method keeps on the device, and what lies on the host."""

    device: int
    host: int


def footprint(
    method: AttentionMethod, config: ModelConfig, context: int, decoded: int, dtype: torch.dtype
) -> Footprint:
    """Return the bytes of one sequence of ``context`` tokens, ``decoded`` of them decoded, without allocating any."""
    shape = CacheShape(config, 1, context, torch.device("meta"), dtype, decoded)
    state = method.decode_in(method.make_cache(shape) or DenseCache(shape))
    return Footprint(state.cache.nbytes() + _held(state.method_state), state.cache.host_nbytes())


def decoded_tokens(spec: EqualMemorySpec) -> int:
    """Return the tokens that a label's cache takes after the prompt: a block's, and that of the step before it."""
    return spec.steps + 1


def memory_bytes(spec: EqualMemorySpec, config: ModelConfig, context: int, dtype: torch.dtype) -> int:
    """Return the device memory for keys and values that every label has at a context."""
    return spec.sequences * context * config.kv_bytes_per_token(dtype.itemsize)


def equal_memory_cells(
    run: RunConfig, spec: EqualMemorySpec, config: ModelConfig, dtype: torch.dtype
) -> list[SpeedCell]:
    """Return every cell: at each context full first, then the labels, with their parts and hit rates where asked."""
    labels = Labels(run, spec.model)
    names = (FULL, *(label for label in spec.methods if labels.method_name(label) != FULL))
    cells = []
    for context in spec.contexts:
        for label in names:
            cell = _cell(labels, spec, config, dtype, label, context)
            cells.append(cell)
            if context == spec.parts_context and label in spec.parts:
                cells += [replace(cell, stage=stage) for stage in get_args(Part)]
            if context == spec.parts_context and label == spec.sweep_label:
                every = [(rate, [rate] * config.num_layers) for rate in spec.sweep]
                cells += [replace(cell, params={**cell.params, "hit_rate": r, "layer_hits": all_}) for r, all_ in every]
    return list({cell.key: cell for cell in cells}.values())


def _cell(
    labels: Labels, spec: EqualMemorySpec, config: ModelConfig, dtype: torch.dtype, label: str, context: int
) -> SpeedCell:
    budget = spec.tokens if label != FULL and labels.takes_budget(label) else FULL_BUDGET
    memory = memory_bytes(spec, config, context, dtype)
    try:
        one = footprint(
            labels.build(label, budget.tokens(context), config), config, context, decoded_tokens(spec), dtype
        )
    except LongDecodeError:
        one = Footprint(0, 0)  # timing the cell will meet the same error and record it
    most = [spec.max_batch, memory // max(1, one.device), (spec.host_gib << 30) // max(1, one.host)]
    batch = spec.sequences if label == FULL else max(1, min(most))
    params = {
        **labels.params(label), "hit_rate": _kind(spec, label), "layer_hits": _rates(spec, label, config),
        "memory_bytes": memory,
        "device_bytes_per_sequence": one.device, "host_bytes_per_sequence": one.host, "host_gib": spec.host_gib,
    }  # fmt: skip
    return SpeedCell("offload", labels.method_name(label), label, "step", context, batch, budget, params)


def _kind(spec: EqualMemorySpec, label: str) -> float | str | None:
    given = spec.hits.get(label)
    if (trace := spec.trace(label)) is not None:
        return f"trace {trace.stem}"
    return given if given is None or isinstance(given, float) else "by layer"


def _rates(spec: EqualMemorySpec, label: str, config: ModelConfig) -> list[float] | None:
    """Return a label's hit rate of each layer; ``None`` where it has none, or none was measured: timing meets that."""
    try:
        return list(spec.rates(label, config.num_layers) or ()) or None
    except DataUnavailableError:
        return None


def _held(kept: Any) -> int:
    """Return the bytes of all tensors in what a method keeps, each once."""
    seen: dict[int, int] = {}

    def visit(part: Any) -> None:
        if isinstance(part, Tensor):
            seen[id(part)] = part.nbytes
        elif is_dataclass(part):
            for item in fields(part):
                visit(getattr(part, item.name))
        elif isinstance(part, dict):
            for value in part.values():
                visit(value)
        elif isinstance(part, list | tuple):
            for value in part:
                visit(value)

    visit(kept)
    return sum(seen.values())
