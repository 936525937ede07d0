"""The sum over GPUs by one kernel, its peers played by hand: what it waits for, reads, and leaves to them."""

from __future__ import annotations

from threading import Thread, Timer

import pytest
import torch

from longdecode.kernels.peer_sum import peer_sum_norm_kernel
from longdecode.kernels.rms_norm.naive import add_rms_norm


def words_of(parts: torch.Tensor, call: int) -> torch.Tensor:
    """Elements below the number of their call."""
    width = 8 * parts.element_size()
    bits = parts.view(torch.int32).long() if width == 32 else parts.view(torch.int16).int()
    return bits & ((1 << width) - 1) | ((call & 0xFFFF) << width)


@pytest.mark.parametrize(("rank", "dtype", "first"), [(0, torch.float32, 1), (2, torch.float16, 65_535)])
def test_sums_what_peers_left_and_leaves_its_part(rank: int, dtype: torch.dtype, first: int, seed: int) -> None:
    world, rows, width, rng = 3, 2, 77, torch.Generator().manual_seed(seed)
    buffers = words_of(torch.zeros(world, 2, world, 4, width, dtype=dtype), first - 3)  # of a call before
    before, calls = buffers.clone(), torch.full((4,), first - 1, dtype=torch.int32)
    peers = [peer for peer in range(world) if peer != rank]
    for call in range(first, first + 3):
        parts = torch.randn(world, rows, width, generator=rng).to(dtype)
        residual, weight = (torch.randn(*shape, generator=rng).to(dtype) for shape in ((rows, width), (width,)))
        words = words_of(parts, call)
        buffers[rank, call % 2, peers[0], :rows] = words[peers[0]]
        late = Timer(0.2, lambda: buffers[rank, call % 2, peers[1], :rows].copy_(words[peers[1]]))  # noqa: B023
        late.start()
        out, total = torch.full((2, rows, width), float("nan"), dtype=dtype)
        places = tuple(buffers[i].data_ptr() for i in range(world))
        constants = {"RANK": rank, "WORLD": world, "ROWS": 4, "WIDTH": width, "BLOCK": 128, "PDL": False}
        given = parts[rank], residual, weight, out, total, places, calls, 1e-6
        launch = Thread(target=lambda: peer_sum_norm_kernel[(rows,)](*given, **constants), daemon=True)  # noqa: B023
        launch.start()
        launch.join(60)
        assert not launch.is_alive(), "waits for words that nobody writes"
        expected = add_rms_norm(sum(parts.float()).to(dtype), residual, weight, 1e-6)
        assert torch.equal(total, expected[1])
        torch.testing.assert_close(out, expected[0])
        assert all(torch.equal(buffers[peer, call % 2, rank, :rows], words[rank]) for peer in peers)
        assert torch.equal(buffers[:, :, :, rows:], before[:, :, :, rows:])
        assert calls.tolist() == [call, call, first - 1, first - 1]
