"""duo: retrieval heads read everything, streaming heads sinks and the latest tokens of a cache that is really small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.request import Prompt
from longdecode.methods.head_roles import RoleFile, write_role_file
from longdecode.methods.registry import get_method

LENGTHS = [33, 3, 20, 1]
ROLES = [[0, 1, 0, 0, 1], [1, 1, 0, 0, 0], [1, 0, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]
"""Heads of both kinds in any order, and layers of one kind only; twelve retrieve."""


@pytest.fixture
def config(config: ModelConfig) -> ModelConfig:
    """Five layers, five KV heads that serve two query heads each."""
    return replace(config, num_layers=5, num_heads=10, num_kv_heads=5)


@pytest.fixture
def role_file(tmp_path: Path) -> str:
    """A role file with ``ROLES`` as scores."""
    scores = [[0.9 * role + 0.01 for role in row] for row in ROLES]
    roles = RoleFile(model="test", layers=5, kv_heads=5, kind="duo", scores=scores, roles=ROLES)
    write_role_file(tmp_path / "roles.json", roles)
    return str(tmp_path / "roles.json")


@pytest.mark.parametrize("heads", [0, 5, 24])
def test_memory_is_whole_rows_and_rings(config: ModelConfig, prompt_cache: Callable[..., Prompt], heads: int) -> None:
    prompt = prompt_cache(LENGTHS, 60)
    cache = get_method("duo").from_budget(12, config, retrieval_heads=heads).start(prompt).cache
    tokens = heads * 60 + (25 - heads) * 12
    assert cache.nbytes() == 2 * tokens * len(LENGTHS) * config.head_dim * 8
    assert cache.nbytes() == prompt.cache.nbytes() * tokens // (25 * 60)
    parts = [t for store in (cache.whole, cache.ring) for t in (store.k, store.v) if t.numel()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in parts}
    assert sum(storages.values()) == cache.nbytes(), "what is held is no view of anything larger"
    assert prompt.cache.k.untyped_storage().data_ptr() not in storages


def test_half_of_the_heads_retrieve_by_default(config: ModelConfig, role_file: str) -> None:
    for params in ({}, {"roles": "random", "roles_seed": 3}, {"roles": role_file}):
        assert sum(map(len, get_method("duo").from_budget(8, config, **params).dense_heads())) == 12
    draws = {get_method("duo").from_budget(8, config, roles="random", roles_seed=n).dense_heads() for n in range(5)}
    assert len(draws) > 1


def test_traffic_is_what_a_step_reads(config: ModelConfig, role_file: str) -> None:
    method = get_method("duo").from_budget(10, config, roles=role_file, retrieval_heads=12)
    head_token_bytes = 2 * config.head_dim * 2
    assert method.traffic(100, 2).total_bytes == (12 * 100 + 13 * 10) * head_token_bytes
    assert method.traffic(7, 2).total_bytes == 25 * 7 * head_token_bytes


def test_a_prompt_that_fits_the_rings_is_kept_whole(config: ModelConfig, prompt_cache: Callable[..., Prompt]) -> None:
    prompt = prompt_cache([5, 2], 12)
    method = get_method("duo").from_budget(12, config)
    assert method.start(prompt, keep_prompt=False).cache is prompt.cache
    assert method.start(prompt).cache is not prompt.cache


def test_bad_roles_are_refused(config: ModelConfig, tmp_path: Path) -> None:
    for error, message, params in (
        (ConfigError, "no such role file", {"roles": str(tmp_path / "none.json")}),
        (ConfigError, "'best'", {"roles": "best"}),
        (UnsupportedCellError, "26 retrieval heads", {"retrieval_heads": 26}),
        (UnsupportedCellError, "5 layers dense", {"retrieval_heads": 25}),
    ):
        with pytest.raises(error, match=message):
            get_method("duo").from_budget(8, config, **params)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, so CPU tensors cannot run them")
def test_the_kernels_in_force_compute_their_definitions(
    rng: torch.Generator, config: ModelConfig, prompt_cache: Callable[..., Prompt], attend: Callable,
    begin: Callable, role_file: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Two steps in Triton's interpreter, on strided heads in either order and with a launch that has no queries."""
    method = get_method("duo").from_budget(8, config, roles=role_file, retrieval_heads=12)
    prompt = prompt_cache([19, 7], 24)
    cache = prompt.cache
    cache.k, cache.v = cache.k.float(), cache.v.float()
    cache.shape = replace(cache.shape, dtype=torch.float32)
    heads = [torch.randn(2, heads, 1, 8, generator=rng) for heads in (10, 5, 5)]

    def outputs() -> list[Tensor]:
        state, outs = method.start(prompt), []
        for _ in range(2):
            begin(method, state)
            outs += [attend(method, layer, *heads, state) for layer in (0, 1, 4)]
            state.accept()
        return [*outs, state.counted]

    want = outputs()
    monkeypatch.setattr("longdecode.kernels.dispatch.kernel_path", lambda *given: "triton")
    for got, wanted in zip(outputs(), want, strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=2e-5)
