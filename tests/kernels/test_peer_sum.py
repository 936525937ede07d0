"""The sum over GPUs by one kernel, its peers played by hand: what it reads, and what it leaves to them."""

from __future__ import annotations

import pytest
import torch

from longdecode.kernels.peer_sum import BLOCK, CAPACITY, peer_sum_kernel


@pytest.mark.parametrize("rank", [0, 2])
def test_sums_what_peers_left_and_leaves_its_part(rank: int, seed: int) -> None:
    world, numel = 3, BLOCK + 77
    rng = torch.Generator().manual_seed(seed)
    buffers = torch.full((world, 2, world, CAPACITY), float("nan"))
    flags = torch.zeros(world, CAPACITY // BLOCK, world, dtype=torch.int32)
    calls = torch.zeros(CAPACITY // BLOCK, dtype=torch.int32)
    places = [tuple(x[i].data_ptr() for i in range(world)) for x in (buffers, flags)]
    for call in (1, 2, 3):
        parts = torch.randn(world, numel, generator=rng)
        peers = [peer for peer in range(world) if peer != rank]
        buffers[rank, call % 2, peers, :numel] = parts[peers]
        flags[rank, :2, peers] = call
        mine = parts[rank].clone()
        constants = {"RANK": rank, "WORLD": world, "CAPACITY": CAPACITY, "BLOCK": BLOCK, "PDL": False}
        peer_sum_kernel[(2,)](mine, *places, calls, numel, **constants)
        assert torch.equal(mine, parts[0] + parts[1] + parts[2])
        for peer in range(world):
            assert torch.equal(buffers[peer, call % 2, rank, :numel], parts[rank])
        assert (flags[:, :2, rank] == call).all() and not flags[:, 2:].any() and calls.tolist()[:3] == [call, call, 0]
        assert buffers[:, call % 2, rank, numel:].isnan().all()
