"""Selections of a decode, recorded in order: sets by step, what a resident set of slots would miss, a compact file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from longdecode.engine.errors import DataUnavailableError

EMPTY = 65_535
"""Stands in a slot without a block."""


@dataclass(frozen=True)
class Trace:
    """Blocks read by step: ``ids`` ``[steps, L, B, H, K]`` uint16, ``EMPTY`` where fewer are read, in any order.

    ``about`` says what made it: model, label, method, budget, block size, context, forced first and latest blocks.
    """

    ids: np.ndarray
    about: Mapping[str, Any]

    def write(self, path: Path) -> None:
        """Write a compressed npz; blocks keep their slots from step to step, so that most differences are 0."""
        slots = self.ids.copy()
        for before, now in pairwise(slots):
            _settle(before.reshape(-1, before.shape[-1]), now.reshape(-1, now.shape[-1]))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial.npz")
        about = json.dumps(dict(self.about), sort_keys=True)
        np.savez_compressed(partial, changes=np.diff(slots, axis=0, prepend=np.uint16(0)), about=np.array(about))
        partial.replace(path)

    @staticmethod
    def read(path: Path) -> Trace:
        """Read a file that ``write`` wrote.

        Raises:
            DataUnavailableError: there is no such file.
        """
        if not path.is_file():
            raise DataUnavailableError(
                f"no trace at {path}; `snakemake nosa_locality --config profile=nosa` records it"
            )
        with np.load(path) as file:
            ids = np.cumsum(file["changes"], axis=0, dtype=np.uint16)
            return Trace(ids, json.loads(str(file["about"])))

    def overlaps(self) -> np.ndarray:
        """Return the share of each step's blocks that the step before read too, ``[steps - 1, L, B, H]``."""
        return self._shared(self.ids, np.zeros_like(self.ids, dtype=bool))

    def free_overlaps(self) -> np.ndarray:
        """Return the same without the blocks that every query reads; 1 where there are no others."""
        first, latest = self.about["forced"]
        known = self.ids != EMPTY
        newest = np.where(known, self.ids, 0).max(axis=-1, keepdims=True).astype(np.int64)
        return self._shared(self.ids, known & ((self.ids < first) | (self.ids > newest - latest)))

    def _shared(self, ids: np.ndarray, left_out: np.ndarray) -> np.ndarray:
        ids = np.where(left_out, EMPTY, ids)
        now, before = ids[1:], ids[:-1]
        out = np.ones(now.shape[:-1])
        for place in np.ndindex(out.shape):
            mine = now[place][now[place] != EMPTY]
            if len(mine):
                out[place] = np.isin(mine, before[place]).mean()
        return out

    def union(self) -> np.ndarray:
        """Return the share of the blocks in use at the end that some step read, ``[L, B, H]``."""
        out = np.zeros(self.ids.shape[1:-1])
        for place in np.ndindex(out.shape):
            read = np.unique(self.ids[(slice(None), *place)])
            read = read[read != EMPTY]
            out[place] = len(read) / (int(read.max()) + 1)
        return out

    def misses(self, slots: int) -> np.ndarray:
        """Return the mean misses a step, ``[L, B, H]``, of a set of ``slots`` blocks that drops the least recent.

        The first step fills the set and is left out.
        """
        out = np.zeros(self.ids.shape[1:-1])
        for place in np.ndindex(out.shape):
            last: dict[int, int] = {}
            missed = 0
            for step, row in enumerate(self.ids[(slice(None), *place)]):
                for block in row[row != EMPTY].tolist():
                    missed += step > 0 and block not in last
                    last[block] = step
                for block in sorted(last, key=lambda block: (last[block], block))[: max(0, len(last) - slots)]:
                    del last[block]
            out[place] = missed / max(1, len(self.ids) - 1)
        return out


def _settle(before: np.ndarray, now: np.ndarray) -> None:
    """Put the blocks of each list of ``now`` in the slots that they had ``before``, others in the slots left."""
    for was, row in zip(before, now, strict=True):
        stays = np.isin(was, row) & (was != EMPTY)
        fresh = row[~np.isin(row, was[stays])]
        row[stays] = was[stays]
        row[~stays] = fresh
