"""The read bandwidth of this device: the best of several ways to read memory, against which all floors are taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from longdecode.evals.throughput.attention_cases import decode_attention_case
from longdecode.evals.throughput.cells import SpeedCell
from longdecode.evals.throughput.kernel_case import Size
from longdecode.evals.throughput.models import shape_config
from longdecode.evals.throughput.peers import peers_of
from longdecode.kernels.linear import linear

CONTEXT, BATCH = 131072, 4
"""The dense decode shape at which an H200 read fastest (one layer of Llama-3-8B)."""
_CPU_CONTEXT, _CPU_BATCH = 4096, 1
_SUM_BYTES = 8 << 30
_CPU_SUM_BYTES = 64 << 20
_CPU_LINEAR_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Probe:
    """One way to read: what is called, on what, and how many bytes that is."""

    call: Callable[[], Any]
    read_bytes: int
    keep: Any


def ceiling_cells(device: torch.device) -> list[SpeedCell]:
    """One cell a probe."""
    context, batch = (CONTEXT, BATCH) if device.type == "cuda" else (_CPU_CONTEXT, _CPU_BATCH)
    return [
        SpeedCell("ceiling", "read_bandwidth", "torch_sum", "op", 0, 1),
        SpeedCell("ceiling", "read_bandwidth", "torch_flash", "op", context, batch),
        SpeedCell("ceiling", "read_bandwidth", "longdecode", "op", context, batch),
        SpeedCell("ceiling", "read_bandwidth", "longdecode_linear", "op", 0, 1),
    ]


def make_probe(cell: SpeedCell, shape: str, device: torch.device, dtype: torch.dtype) -> Probe:
    """The probe of a cell, with inputs in memory.

    Raises:
        DeviceMemoryError: they do not fit.
        PeerUnavailableError: the probe's library cannot run here.
    """
    if cell.label == "torch_sum":
        count = (_SUM_BYTES if device.type == "cuda" else _CPU_SUM_BYTES) // 4
        values = torch.ones(count, dtype=torch.float32, device=device)
        return Probe(values.sum, values.nbytes, values)
    if cell.label == "longdecode_linear":
        config = shape_config(shape)
        rows = config.vocab_size if device.type == "cuda" else min(config.vocab_size, _CPU_LINEAR_ROWS)
        weight = torch.randn(rows, config.hidden_size, device=device).to(dtype)
        x = torch.randn(1, config.hidden_size, device=device).to(dtype)
        return Probe(lambda: linear(x, weight), weight.nbytes, (x, weight))
    case = decode_attention_case(Size(shape_config(shape), cell.context, cell.batch, None, device, dtype))
    case.refuse_if_too_large()
    (inputs,) = case.make_sets(1)
    if cell.label == "torch_flash":
        (call,) = peers_of("decode_attention")["torch_flash"](case, [inputs])
        return Probe(call, case.read_bytes, inputs)
    return Probe(lambda: case.ours(inputs), case.read_bytes, inputs)
