"""The read bandwidth of this device: the best of several ways to read memory, against which all floors are taken."""

from __future__ import annotations

from dataclasses import replace

import torch

from longdecode.evals.throughput.harness import SpeedCell
from longdecode.evals.throughput.kernel_ops import Size, make_op
from longdecode.evals.throughput.models import shape_config
from longdecode.evals.throughput.peers import PEERS
from longdecode.evals.throughput.spec import Grid
from longdecode.evals.throughput.timing import Case, captured

PLACE, _CPU_PLACE = (131072, 4), (4096, 1)
"""Context and batch of the dense decode shape at which an H200 read fastest (one layer of Llama-3-8B)."""
_SUM_BYTES, _CPU_SUM_BYTES, _CPU_LINEAR_ROWS = 8 << 30, 64 << 20, 4096


def probe_cells(grid: Grid, device: torch.device) -> list[SpeedCell]:
    """Return one cell a probe: a sum, attention of torch and of ours, and our largest projection."""
    place = PLACE if device.type == "cuda" else _CPU_PLACE
    places = {"torch_sum": (0, 1), "torch_flash": place, "longdecode": place, "longdecode_linear": (0, 1)}
    return [SpeedCell(grid, "ceiling", "read_bandwidth", name, "op", *at) for name, at in places.items()]


def make_probe(cell: SpeedCell, device: torch.device, dtype: torch.dtype) -> Case:
    """Return a probe with its inputs in memory.

    Raises:
        UnsupportedCellError: the probe's library cannot run here.
    """
    if cell.variant == "torch_sum":
        count = (_SUM_BYTES if device.type == "cuda" else _CPU_SUM_BYTES) // 4
        values = torch.ones(count, dtype=torch.float32, device=device)
        return Case(cell.variant, captured(values.sum, device), keep=values, bytes_min=values.nbytes)
    config = shape_config(cell.grid.model)
    if device.type != "cuda":
        config = replace(config, vocab_size=min(config.vocab_size, _CPU_LINEAR_ROWS))
    size = Size(config, cell.context, cell.batch, None, device, dtype)
    op = make_op("linear_lm_head" if cell.variant == "longdecode_linear" else "decode_attention", size)
    inputs = op.draw()
    peers = PEERS["decode_attention"]
    call = peers[cell.variant](size, inputs) if cell.variant in peers else lambda: op.ours(inputs)
    return Case(cell.variant, captured(call, device), keep=(inputs, call), bytes_min=op.read_bytes)
