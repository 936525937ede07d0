"""The conformance suite over every method and every variant of its card."""

from __future__ import annotations

import pytest
import torch

from longdecode.kernels.dispatch import VARIABLE
from longdecode.methods.conformance import (
    CHECKS,
    TOLERANCE,
    check_method,
    graph_replay_equals_eager,
    runs_leave_no_trace,
    unwritten_memory_is_never_read,
    whole_budget_equals_full,
)
from longdecode.methods.conformance_bench import BUDGET, Bench, make_bench
from longdecode.methods.registry import load_card, method_names

CASES = [(name, key) for name in method_names() for key in (None, *load_card(name).variants)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1] or 'defaults'}")
def bench(request: pytest.FixtureRequest) -> Bench:
    """The tiny model with one method and variant, on fresh weights and inputs."""
    name, key = request.param
    seed = torch.seed() % 2**31
    print(f"seed {seed}")
    overrides = {} if key is None else load_card(name).variant_params(key)
    return make_bench(name, "cpu", overrides, dtype=torch.float64, seed=seed)


CPU_CHECKS = [check for check in CHECKS if check.__name__ != "graph_replay_equals_eager"]


@pytest.mark.parametrize("check", CPU_CHECKS, ids=lambda check: check.__name__)
def test_on_cpu(bench: Bench, check) -> None:
    check(bench)


@pytest.mark.parametrize("name", method_names())
def test_on_cpu_along_the_paths_of_a_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branches that avoid a host wait, taken on the CPU."""
    ops = ("decode_attention", "sparse_decode_attention.naive", "prefill_attention.naive", "token_score.naive")
    for module in ops:
        monkeypatch.setattr(f"longdecode.kernels.{module}.on_host", lambda tensor: False)
    check_method(name, "cpu", seed=torch.seed() % 2**31)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: graphs are captured and replayed there")
@pytest.mark.parametrize("name", method_names())
def test_on_cuda(name: str) -> None:
    check_method(name, "cuda", seed=torch.seed() % 2**31)


# Not the checks that compare two ways of cutting a batch: in float32 a near-tie in a selection may fall either way.
SINGLE_PRECISION_CHECKS = (
    whole_budget_equals_full,
    unwritten_memory_is_never_read,
    runs_leave_no_trace,
    graph_replay_equals_eager,
)


@pytest.mark.gpu
@pytest.mark.parametrize("check", SINGLE_PRECISION_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", method_names())
def test_on_cuda_through_triton(name: str, check, monkeypatch: pytest.MonkeyPatch) -> None:
    """float64, which the test above runs in, never reaches the Triton kernels; float32 does."""
    monkeypatch.delenv(VARIABLE, raising=False)
    for overrides in ({}, *map(load_card(name).variant_params, load_card(name).variants)):
        check(make_bench(name, "cuda", overrides, dtype=torch.float32, seed=torch.seed() % 2**31))


@pytest.mark.gpu
def test_triton_decodes_what_naive_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full attention of one model, fed the same tokens, along both paths."""
    full = make_bench("full", "cuda", {}, dtype=torch.float32, seed=torch.seed() % 2**31)
    monkeypatch.delenv(VARIABLE, raising=False)
    fast = full.trace(full.build(BUDGET)).logits
    monkeypatch.setenv(VARIABLE, "naive")
    torch.testing.assert_close(fast, full.trace(full.build(BUDGET)).logits, atol=TOLERANCE, rtol=0)
