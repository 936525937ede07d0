"""Selections of a recorded trace, laid out for another model's layers, heads and rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.errors import DataUnavailableError, UnsupportedCellError
from longdecode.evals.throughput.wandering import Wander, guessed

EMPTY = 65_535
"""Stands in a trace where fewer blocks are read."""


def replay(
    path: Path,
    newest: Tensor,
    layers: int,
    lists: tuple[int, int],
    listed: int,
    device: torch.device,
    recall: float = 1.0,
    seed: int = 0,
) -> Wander:
    """Return the block lists of consecutive steps, read from a trace that ``nosa_locality`` recorded.

    Blocks keep their numbers, and a trace's newest block becomes the newest of the replay: what is missing from one
    step to the next is what was missing there. The trace's layers and heads are spread over those wanted, its rows are
    repeated; a repeated row starts a step later, so that rows do not move in step.

    Args:
        path: npz with ``changes`` ``[T, L, B, H, K]`` uint16, differences along the steps, and ``about``.
        newest: ``[T']`` int64, the newest block of the replay in each of its steps.
        layers: of the model.
        lists: rows of the batch and KV heads.
        listed: most blocks that a list may name.
        device: of the result.
        recall: see ``wander``.
        seed: of the guesses.

    Raises:
        DataUnavailableError: there is no such file.
        UnsupportedCellError: the trace has fewer steps, longer lists or more blocks than the replay.
    """
    if not path.is_file():
        raise DataUnavailableError(f"no trace at {path}; `snakemake nosa_locality --config profile=nosa` records it")
    with np.load(path) as file:
        ids = np.cumsum(file["changes"], axis=0, dtype=np.uint16)
        about = json.loads(str(file["about"]))
    steps, (rows, heads) = len(newest), lists
    known = ids != EMPTY
    most, blocks = int(known.sum(axis=-1).max()), int(ids[known].max()) + 1
    late = -(-rows // ids.shape[2]) - 1
    for have, need, what in (
        (len(ids), steps + late, "steps"), (listed, most, "blocks a list"), (int(newest[0]), blocks, "blocks"),
    ):  # fmt: skip
        if have < need:
            where = "the trace has" if what == "steps" else "the replay takes"
            raise UnsupportedCellError(f"{path} ({about.get('label')}): {need} {what} are needed, {where} {have}")
    last = np.where(known, ids, 0).max(axis=-1, keepdims=True)
    layer = np.arange(layers) * ids.shape[1] // layers
    row, head = np.arange(rows) % ids.shape[2], np.arange(heads) * ids.shape[3] // heads
    step = np.arange(steps)[:, None] + np.arange(rows) // ids.shape[2]
    at = step[:, None, :, None], layer[None, :, None, None], row[None, None, :, None], head[None, None, None]
    found = torch.from_numpy(ids[at].astype(np.int64)).to(device)
    newer = torch.from_numpy((ids == last)[at]).to(device)
    valid = torch.from_numpy(known[at]).to(device)
    found = torch.where(newer, newest.to(device).view(-1, 1, 1, 1, 1), found)
    # Valid entries first, in their order.
    order = (~valid).to(torch.int8).argsort(dim=-1, stable=True)[..., :listed]
    chosen = found.gather(-1, order)
    generator = torch.Generator(device).manual_seed(seed)
    return Wander(chosen, guessed(chosen, int(newest[0]), recall, generator), valid.sum(dim=-1))
