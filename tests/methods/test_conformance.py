"""The conformance suite over every method and every variant of its card, and budgets that grow with the context."""

from __future__ import annotations

import inspect
import os
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cache
from random import Random
from weakref import WeakSet

import pytest
import torch
from triton.runtime.interpreter import GridExecutor

from decoding import results
from longdecode.engine import refill
from longdecode.engine.errors import ConfigError, GateError, UnsupportedCellError
from longdecode.engine.generation import Generator, Prompt, Request, Sampling
from longdecode.kernels import dispatch
from longdecode.kernels.linear import silu_gpu as silu_mul_gpu
from longdecode.methods import conformance, conformance_bench, conformance_model
from longdecode.methods.conformance import (
    FAST_PATH_CHECKS,
    TOLERANCE,
    benches,
    check_method,
    fast_path_equals_naive,
    op_path,
)
from longdecode.methods.conformance_bench import make_bench
from longdecode.methods.conformance_launches import LaunchSize, check_launches
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.conformance_refill import SAMPLING, compare_refilled, requests_of
from longdecode.methods.registry import get_method, load_card, method_names

SEED = 0
ON_HOST = ("decode_attention", "prefill_attention", "rope.naive", "sparse_decode_attention.naive", "token_score.naive")
"""Modules that look at lengths where that is free."""


INPUTS = {layers: cache(conformance_bench.make_inputs.__wrapped__) for layers in (4, 7)}
"""Inputs of all methods, with what full attention makes of them."""


@pytest.fixture
def few_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers instead of seven: all planted bugs but those of methods with layers of several kinds show in them."""
    layers = 7 if name in ("omnikv", "tidal") else 4
    for module in (conformance_bench, conformance_model):
        monkeypatch.setattr(module, "CONFIG", replace(CONFIG, num_layers=layers))
    monkeypatch.setattr(conformance_bench, "make_inputs", INPUTS[layers])


@pytest.mark.parametrize("name", method_names())
def test_on_cpu(name: str, few_layers: None) -> None:
    check_method(name, "cpu", seed=SEED)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled where there is a GPU")
@pytest.mark.parametrize("name", method_names())
def test_a_step_binds_every_launch(name: str, few_layers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host code runs as on a GPU, on tensors without values; no launch is made."""

    def bind(self: GridExecutor, *args: object, **named: object) -> None:
        options = {"num_warps", "num_stages", "maxnreg", "launch_pdl"}
        inspect.signature(self.fn).bind(*args, **{key: named[key] for key in named.keys() - options})
        launched.append(self.fn.__name__)

    monkeypatch.setattr(GridExecutor, "__call__", bind)
    monkeypatch.setattr(dispatch, "kernel_path", lambda device, *_: "naive" if device.type == "cpu" else "triton")
    for params in ({}, *map(load_card(name).variant_params, load_card(name).variants)):
        launched: list[str] = []
        conformance.a_step_never_waits_for_the_host(make_bench(name, "cpu", params, dtype=torch.bfloat16, seed=SEED))
        assert launched


@pytest.mark.parametrize("name", method_names())
def test_on_cpu_along_the_paths_of_a_device(name: str, few_layers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The branches that avoid a host wait give the same decode; once for each set of ops and settings."""
    paths = set()
    for _, bench in benches(name, "cpu", None, dtype=torch.float64, seed=SEED):
        path = op_path(bench)
        if path in paths:
            continue
        paths.add(path)
        with monkeypatch.context() as patch:
            for module in ON_HOST:
                patch.setattr(f"longdecode.kernels.{module}.on_host", lambda tensor: False)
            elsewhere = bench.inputs.trace(bench.build(bench.budget))
        torch.testing.assert_close(elsewhere.logits, bench.small.logits, atol=TOLERANCE, rtol=0)
        assert elsewhere.kv_tokens_read.equal(bench.small.kv_tokens_read)


@pytest.mark.parametrize("name", method_names())
def test_three_rows_are_refilled_in_float32(name: str, few_layers: None) -> None:
    bench = make_bench(name, "cpu", {}, dtype=torch.float32, seed=SEED)
    with pytest.raises(UnsupportedCellError, match="drafts are due") if bench.method.draft else nullcontext():
        compare_refilled(bench, sampling=Sampling())


def test_a_refilled_row_depends_on_its_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench("full", "cpu", {}, dtype=torch.float32, seed=SEED)
    for sizes in ((2, 1), (9, 4)):
        compare_refilled(bench, *sizes)
    prefill, groups, caches = Generator.prefill_for, [], WeakSet()

    def watched(self: Generator, requests: list[Request], *rest) -> Prompt:
        assert len(caches) <= 1, "a group is freed before the next is prefilled"
        groups.append([request.seed for request in requests])
        caches.add((prompt := prefill(self, requests, *rest)).cache)
        return prompt

    monkeypatch.setattr(Generator, "prefill_for", watched)
    generator, requests = Generator(bench.decoder, SAMPLING), requests_of(bench)
    asked = (requests, None), (requests, [4, 1]), (requests[5:] * 5, None)
    every, some, over = (dict(refill.stream(generator, of, bench.method, 3, wanted, 2)) for of, wanted in asked)
    assert results([*some.values()]) == results([every[index] for index in some]) and sorted(some) == [1, 4]
    assert groups[1:4] + groups[5:7] == [[0, 1], [2, 3], [4, 5], [0, 1], [4, 5]]
    assert [one.output_ids for one in over.values()] == [every[5].output_ids] * 5
    with pytest.raises(ConfigError, match="2 rows and groups of 2"):
        next(refill.stream(generator, requests, bench.method, 2, group=2))
    monkeypatch.setattr(bench.method, "after_step", lambda state: state.method_state["clock"].add_(1))
    kinds = {"a Random is": Random, "shared by": lambda n: torch.zeros(1), "no row": lambda n: torch.zeros(2 * n)}
    for words, make in kinds.items():
        monkeypatch.setattr(bench.method, "make_method_state", lambda cache, make=make: {"clock": make(cache.batch)})
        with pytest.raises(UnsupportedCellError, match=rf"state.method_state.clock.*{words}"):
            compare_refilled(bench)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: graphs are captured and replayed there")
@pytest.mark.parametrize("name", method_names())
def test_on_cuda(name: str) -> None:
    check_method(name, "cuda", seed=SEED)
    for params in [{}, {"kv_cache_dtype": "fp8"}][: 1 + ("kv_cache_dtype=fp8" in load_card(name).variants)]:
        with suppress(UnsupportedCellError):
            compare_refilled(make_bench(name, "cuda", params, dtype=torch.float64, seed=SEED), replayed=True)


@pytest.mark.gpu
@pytest.mark.parametrize("check", FAST_PATH_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", method_names())
def test_on_cuda_through_triton(name: str, check, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of the test above that runs through Triton, check by check and on fresh inputs."""
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    for overrides in ({}, *map(load_card(name).variant_params, load_card(name).variants)):
        check(make_bench(name, "cuda", overrides, dtype=torch.float32, seed=SEED))


@pytest.fixture
def triton_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run float32 through the Triton kernels in the interpreter: one step of a shallow model over short prompts."""

    def path(device: torch.device, dtype: torch.dtype = torch.float32) -> str:
        return "naive" if os.environ.get(dispatch.VARIABLE) == "naive" or dtype == torch.float64 else "triton"

    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    monkeypatch.setattr(dispatch, "kernel_path", path)
    monkeypatch.setattr(conformance_bench, "STEPS", 1)
    monkeypatch.setattr(conformance_bench, "prompt_lengths", lambda budget: (budget + 6, 9))
    monkeypatch.setattr(conformance_bench, "CONFIG", replace(conformance_bench.CONFIG, num_layers=3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, so CPU tensors cannot run them")
@pytest.mark.parametrize("name", ["retro", "streaming", "lychee"])
def test_the_gate_compares_the_kernels_in_force_with_their_definitions(name: str, triton_in_force: None) -> None:
    fast_path_equals_naive(make_bench(name, "cpu", {}, dtype=torch.float32, seed=SEED))


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, so CPU tensors cannot run them")
def test_the_gate_catches_a_kernel_a_little_wrong(triton_in_force: None, monkeypatch: pytest.MonkeyPatch) -> None:
    right = silu_mul_gpu.silu_mul_gpu
    monkeypatch.setattr(silu_mul_gpu, "silu_mul_gpu", lambda x: right(x) * 1.01)
    with pytest.raises(GateError, match="kernels in force"):
        fast_path_equals_naive(make_bench("full", "cpu", {}, dtype=torch.float32, seed=SEED))


CHECKS = (
    conformance.reads_follow_the_rule, conformance.traffic_follows_the_rule, conformance.reads_stay_within_budget,
    conformance.ragged_batch_equals_single_rows, conformance.a_step_never_waits_for_the_host,
)  # fmt: skip
METHODS = ["retro", "selection_reuse", "h2o", "tova", "streaming", "snapkv"]


@pytest.mark.parametrize("name", ["h2o", "tova", "snapkv"])
def test_a_prompt_shorter_than_its_cache_is_cut_too(name: str) -> None:
    """The longest budget of a growing one may be over what the shortest prompt has."""
    check_launches(name, CONFIG, {"share": 0.2}, 125, LaunchSize(1000, 2), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("name", METHODS)
def test_reads_follow_the_grown_budget(name: str) -> None:
    """At 253 to 261 tokens 0.4 of them is over the floor of 64 and grows; the shorter rows stay at the floor."""
    bench = make_bench(name, "cpu", {"share": 0.4}, dtype=torch.float64, seed=1)
    for check in CHECKS:
        check(bench)
    assert float(bench.small.reads[-1, bench.governed_layers()[-1], 0]) > bench.budget


def test_layers_of_streaming_that_keep_everything() -> None:
    """They need a cache of slots instead of a ring, where position tells sinks from the latest tokens."""
    conformance.reads_follow_the_rule(make_bench("streaming", "cpu", {"dense_layers": 2}, dtype=torch.float64, seed=1))


@pytest.mark.parametrize("share", [0.15, 0.1, 1.0, 1 / 3, 0.12345678901234568])
def test_the_device_and_the_host_agree_to_the_token(share: float) -> None:
    method = get_method("quest").from_budget(256, CONFIG, share=share)
    lengths = torch.tensor([*range(1, 9000), 131_072, 1 << 28])
    assert method.growth.of(lengths).tolist() == [method.budget_at(n) for n in lengths.tolist()]
    # Decimal shares are exact: 0.15 of 2,000 tokens is 300, also where the binary product is a little less.
    assert method.budget_at(20_000) == pytest.approx(share * 20_000, abs=1)
    assert get_method("quest").from_budget(256, CONFIG, share=0.15).budget_at(2_000) == 300
    # A share of next to nothing leaves the floor.
    assert get_method("quest").from_budget(256, CONFIG, share=1e-300).growth.of(lengths[-1:]).tolist() == [256]
