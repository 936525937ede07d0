"""The conformance suite over every method and every variant of its card."""

from __future__ import annotations

import os

import pytest
import torch

from longdecode.engine.errors import GateError
from longdecode.kernels import dispatch
from longdecode.kernels.dispatch import VARIABLE
from longdecode.kernels.silu_mul import gpu as silu_mul_gpu
from longdecode.methods import conformance_bench
from longdecode.methods.conformance import CHECKS, FAST_PATH_CHECKS, TOLERANCE, check_method, fast_path_equals_naive
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


@pytest.mark.gpu
@pytest.mark.parametrize("check", FAST_PATH_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", method_names())
def test_on_cuda_through_triton(name: str, check, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of the test above that runs through Triton, check by check and on fresh inputs."""
    monkeypatch.delenv(VARIABLE, raising=False)
    for overrides in ({}, *map(load_card(name).variant_params, load_card(name).variants)):
        check(make_bench(name, "cuda", overrides, dtype=torch.float32, seed=torch.seed() % 2**31))


@pytest.fixture
def triton_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 runs through the Triton kernels on the CPU, in Triton's interpreter, for two steps over short prompts."""

    def path(device: torch.device, dtype: torch.dtype = torch.float32) -> str:
        naive = os.environ.get(VARIABLE) == "naive" or dtype not in dispatch.TRITON_DTYPES
        return "naive" if naive else "triton"

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(dispatch, "kernel_path", path)
    monkeypatch.setattr(conformance_bench, "STEPS", 2)
    monkeypatch.setattr(conformance_bench, "PROMPT_TOKENS", (70, 40, 9))


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, so CPU tensors cannot run them")
@pytest.mark.parametrize("name", ["quest", "streaming"])
def test_the_gate_compares_the_kernels_in_force_with_their_definitions(name: str, triton_in_force: None) -> None:
    fast_path_equals_naive(make_bench(name, "cpu", {}, dtype=torch.float32, seed=torch.seed() % 2**31))


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, so CPU tensors cannot run them")
def test_the_gate_catches_a_kernel_that_is_a_little_wrong(
    triton_in_force: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = silu_mul_gpu.silu_mul_gpu
    monkeypatch.setattr(silu_mul_gpu, "silu_mul_gpu", lambda x: right(x) * 1.01)
    with pytest.raises(GateError, match="kernels in force"):
        fast_path_equals_naive(make_bench("full", "cpu", {}, dtype=torch.float32, seed=torch.seed() % 2**31))


@pytest.mark.gpu
def test_triton_decodes_what_naive_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full attention of one model, fed the same tokens, along both paths."""
    full = make_bench("full", "cuda", {}, dtype=torch.float32, seed=torch.seed() % 2**31)
    monkeypatch.delenv(VARIABLE, raising=False)
    fast = full.trace(full.build(BUDGET)).logits
    monkeypatch.setenv(VARIABLE, "naive")
    torch.testing.assert_close(fast, full.trace(full.build(BUDGET)).logits, atol=TOLERANCE, rtol=0)
