"""streaming keeps the sinks and the latest tokens, in a cache no larger than its budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from decoding import kept
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.request import Prompt
from longdecode.methods.head_roles import RoleFile, write_role_file
from longdecode.methods.registry import get_method

LENGTHS = [33, 3, 20, 1]


def turn(x: Tensor, position: int, base: float) -> Tensor:
    """Rotary embedding of one vector, pair by pair."""
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = position * base ** (-i / half)
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


@pytest.mark.parametrize("budget", [5, 16, 60])
def test_cache_positions_equal_keys_rotated_by_slot(
    rng: torch.Generator, config: ModelConfig, attend: Callable, begin: Callable,
    prompt_cache: Callable[[list[int], int], Prompt], budget: int,
) -> None:  # fmt: skip
    """The released rule, literally: keep keys unrotated, then rotate keys and query by their slots in the cache."""
    lengths, steps, base = [33, 3, 14], 8, 100.0
    prompt = prompt_cache(lengths, 33 + steps)
    plain, values = prompt.cache.k[0].clone(), prompt.cache.v[0].clone()
    for row, length in enumerate(lengths):
        for head in range(2):
            for p in range(length):
                prompt.cache.k[0, row, head, p] = turn(plain[row, head, p], p, base)
    method = get_method("streaming").from_budget(budget, config, positions="cache")
    state = method.start(prompt)
    for step in range(steps):
        q, k, v = (torch.randn(3, heads, 1, 8, generator=rng, dtype=torch.float64) for heads in (6, 2, 2))
        turned_q, turned_k = q.clone(), k.clone()
        for row, length in enumerate(lengths):
            at = length + step
            plain[row, :, at], values[row, :, at] = k[row, :, 0], v[row, :, 0]
            for head in range(6):
                turned_q[row, head, 0] = turn(q[row, head, 0], at, base)
            for head in range(2):
                turned_k[row, head, 0] = turn(k[row, head, 0], at, base)
        begin(method, state)
        out = attend(method, 0, turned_q, turned_k, v, state)
        state.accept()
        for row, length in enumerate(lengths):
            tokens = kept(length + step + 1, budget, 4)
            for head in range(6):
                keys = torch.stack([turn(plain[row, head // 3, p], slot, base) for slot, p in enumerate(tokens)])
                query = turn(q[row, head, 0], len(tokens) - 1, base)
                want = (keys @ query / math.sqrt(8)).softmax(0) @ values[row, head // 3, tokens]
                # The frequencies are float32, so the angles agree to about that.
                torch.testing.assert_close(out[row, head, 0], want, atol=1e-4, rtol=1e-4)


def test_a_finished_row_stands_still(
    rng: torch.Generator, config: ModelConfig, attend: Callable, begin: Callable, prompt_cache: Callable,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Streaming, and duo with a retrieval head beside a streaming one in layer 0."""
    roles = RoleFile(model="test", layers=7, kv_heads=2, kind="duo", scores=[[0.9, 0.1]] * 7, roles=[[1, 0]] * 7)
    write_role_file(tmp_path / "roles.json", roles)
    for name, params, read in (
        ("streaming", {}, 40.0),
        ("duo", {"roles": str(tmp_path / "roles.json")}, (sum(range(13, 18)) + 40) / 2),
    ):
        method = get_method(name).from_budget(8, config, **params)
        state = method.start(prompt_cache([12, 6], 40))
        state.active[1] = False
        for _ in range(5):
            q, k = (torch.randn(2, heads, 1, 8, generator=rng, dtype=torch.float64) for heads in (6, 2))
            begin(method, state)
            attend(method, 0, q, k, k, state)
            state.accept()
        assert state.cache.positions.tolist() == [17, 6]
        assert [len(state.cache.stored_kv(0, row, 1)[0]) for row in (0, 1)] == [8, 6]
        assert state.kv_tokens_per_head[0].tolist() == [read, 0.0]
