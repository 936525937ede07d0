"""streaming keeps the sinks and the latest tokens, in a cache no larger than its budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.head_roles import RoleFile, write_role_file
from longdecode.methods.registry import get_method


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
