"""Tokens that four-bit attention reads, and what it reads of them."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.methods.rule import ReadsEverything


class Int4Rule(ReadsEverything):
    """Read everything: the latest 64 to 127 tokens exactly, each number before them as one of 16 of its run.

    A run of keys is one channel of 64 tokens, one of values 64 channels of a token. The 16 lie evenly between its least
    and its largest number; both ends of that grid are float16.
    """

    def stored(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers that the codes stand for, and exact ones for the latest tokens."""
        keys, values = keys.clone(), values.clone()
        for head in range(keys.shape[0]):
            for first in range(0, (keys.shape[1] // 64 - 1) * 64, 64):
                group = slice(first, first + 64)
                keys[head, group] = sixteen(keys[head, group], 0)
                for run in range(0, values.shape[2], 64):
                    values[head, group, run : run + 64] = sixteen(values[head, group, run : run + 64], 1)
        return keys, values

    def metadata_bytes(self, kv_length: int, bytes_per_element: int) -> int:
        """Return four bytes for each run's scale and least number."""
        dim = self.config.head_dim
        groups = max(0, kv_length // 64 - 1)
        runs = groups * dim + groups * 64 * len(range(0, dim, 64))
        return 4 * runs * self.config.num_layers * self.config.num_kv_heads


def sixteen(x: Tensor, dim: int) -> Tensor:
    """Return the nearest of 16 numbers along an axis."""
    least = x.min(dim=dim, keepdim=True).values
    step = ((x.max(dim=dim, keepdim=True).values - least) / 15).to(torch.float16).double()
    step = torch.where(step == 0, 1.0, step)
    least = least.to(torch.float16).double()
    return least + step * ((x - least) / step + 0.5).floor().clamp(0, 15)


RULE = Int4Rule
