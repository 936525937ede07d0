"""ShadowKV's cache: rebuilt keys, outliers, and values in host memory."""

from __future__ import annotations

import pytest
import torch

from longdecode.engine.kv_cache import CacheShape
from longdecode.engine.rope import RopeTable
from longdecode.kernels.rope import rotate
from longdecode.methods.conformance_bench import CONFIG
from longdecode.methods.shadowkv.cache import ShadowCache, ShadowPlan

CPU = torch.device("cpu")
HEADS, DIM = CONFIG.num_kv_heads, CONFIG.head_dim


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("rank", [6, 3])
def test_keys_of_low_rank_are_rebuilt(rng: torch.Generator, rank: int, offload: bool) -> None:
    """Keys of rank 6 before their rotation come back from six factors and not from three; a ragged row is its own."""
    lengths, tokens = torch.tensor([90, 41]), 90
    plain = torch.randn(2, tokens, 6, generator=rng) @ torch.randn(2, 6, HEADS * DIM, generator=rng)
    plain = plain.unflatten(2, (HEADS, DIM)).transpose(1, 2)
    keys = rotate(plain, *RopeTable(CONFIG, CPU).at(torch.arange(tokens).expand(2, tokens)))
    values = torch.randn(keys.shape, generator=rng)
    keys[1, :, 41:], values[1, :, 41:] = float("nan"), float("nan")
    cache = ShadowCache(CacheShape(CONFIG, 2, 100, CPU, torch.float32, 10), ShadowPlan(8, 3, 1, 1, rank), offload)
    cache.fill_layer(4, keys, values, lengths)
    cache.stand_at(lengths)
    assert cache.scored.tolist() == [11 - 1 - 1, 5 - 1 - 1] and cache.recent_start.tolist() == [80, 32]
    for row, prompt in enumerate(lengths.tolist()):
        for head in range(HEADS):
            count = int(cache.scored[row])
            chunks = cache.layers[4].chunks[row, head, :count].tolist()
            assert chunks == sorted(set(chunks)) and max(chunks) < prompt // 8 - 1
            missing = set(range(prompt // 8 - 1)) - set(chunks)
            parts = [keys[row, head, 8 * at : 8 * at + 8].double() for at in range(prompt // 8 - 1)]
            alike = [min(float(torch.cosine_similarity(key, part.mean(0), dim=0)) for key in part) for part in parts]
            assert missing == {alike.index(min(alike))}
            at = slice(8 * next(iter(missing)), 8 * next(iter(missing)) + 8)
            assert cache.layers[4].outlier_k[row, head].equal(keys[row, head, at])
            assert cache.layers[4].outlier_v[row, head].equal(values[row, head, at])
            places = torch.arange(count).expand(2, HEADS, count)
            rebuilt, fetched = cache.rebuild(4, places)
            spans = torch.tensor([8 * chunk + i for chunk in chunks for i in range(8)])
            error = (rebuilt[row, head] - keys[row, head, spans]).abs().max()
            assert error < 2e-4 if rank == 6 else error > 0.1
            assert fetched[row, head].equal(values[row, head, spans])
    assert (cache.host_nbytes() > 0) == offload


def test_a_copy_keeps_its_values_in_a_host_buffer_of_its_own() -> None:
    """A GPU reads them by their address, which must be pinned memory in a copy too."""
    cache = ShadowCache(CacheShape(CONFIG, 1, 24, CPU, torch.float32, 4), ShadowPlan(8, 1, 1, 1, 3), offload=True)
    cache.values.fill_(1.5)
    copy = cache.clone()
    assert isinstance(copy, ShadowCache) and copy.host is not None
    assert copy.values.data_ptr() == copy.host.bytes.data_ptr() != cache.values.data_ptr()
    assert copy.values.equal(cache.values)
