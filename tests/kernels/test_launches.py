"""Launches fit the device: small devices get less."""

from __future__ import annotations

import pytest
import torch

from longdecode.kernels import multiprocessors
from longdecode.kernels import score_rows as rows
from longdecode.kernels.decode_attention import launch as dense
from longdecode.kernels.linear import launch as linear
from longdecode.kernels.sparse_decode_attention import launch as sparse

HOPPER = torch.device("meta")
ADA_BYTES = 99 << 10
"""Shared memory of a program on compute capability 8.9 (CUDA C++ programming guide, table 27)."""


def test_launches_on_hopper_are_those_that_won() -> None:
    for n, k in ((6144, 4096), (4096, 14336), (128256, 4096)):
        for rows_of_x in (2, 16):
            chosen = linear.choose_launch(n, k, rows_of_x, torch.bfloat16)
            assert chosen is not None and chosen.num_stages == 4
    assert [linear.norm_launch(k, gated).block_n for k in (1536, 4096) for gated in (False, True)] == [8, 4, 8, 4]
    parts = [sparse.choose_launch(lists, 4, 128, 8192, 32_768, torch.bfloat16, HOPPER) for lists in (2, 8, 16, 32)]
    assert [(part.splits, part.fused_merge) for part in parts] == [(64, False), (16, False), (8, False), (4, True)]


@pytest.mark.parametrize("dim", [32, 64, 128, 256])
def test_less_shared_memory_means_fewer_tiles_in_flight(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program stays under the shared memory of a device with less than half of Hopper's."""
    monkeypatch.setattr(multiprocessors, "shared_limit", lambda device: ADA_BYTES)
    monkeypatch.setattr(rows, "shared_limit", lambda device: ADA_BYTES)
    for batch in (1, 16):
        one = dense.choose_launch(batch, 8, 4, dim, 32_768, torch.bfloat16, HOPPER)
        other = sparse.choose_launch(8 * batch, 4, dim, 4096, 32_768, torch.bfloat16, HOPPER)
        for launch in (one, other):
            size = multiprocessors.program_bytes(launch.rows, launch.tokens, launch.num_stages, dim, torch.bfloat16)
            assert size <= ADA_BYTES and launch.num_stages >= 2
        score = rows.choose_score_launch(8192, 8 * batch, dim, torch.bfloat16, 2, HOPPER)
        assert score.keys * dim * 2 * 2 * score.num_stages < ADA_BYTES
        if projection := linear.choose_launch(28_672, 4096, 1 + batch, torch.bfloat16, shared_bytes=ADA_BYTES):
            tile = (projection.block_n + projection.block_rows) * projection.block_k * 2
            assert projection.num_stages * tile <= ADA_BYTES
