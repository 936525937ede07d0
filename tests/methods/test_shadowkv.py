"""ShadowKV's cache: rebuilt keys, outliers, slots that keep what stays chosen, values in host memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding import random_prompt, results, run_step, sharp_decoder
from longdecode.engine.attention import Selection
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import GateError
from longdecode.engine.generation import Generator
from longdecode.engine.kv_cache import CacheShape
from longdecode.engine.request import Prompt, Request
from longdecode.engine.rope import RopeTable
from longdecode.engine.weights import random_decoder
from longdecode.kernels.block_residency import BlockQueue
from longdecode.kernels.low_rank_fetch import fetch_chunks
from longdecode.kernels.rope import rotate
from longdecode.methods import conformance
from longdecode.methods.conformance_bench import Inputs, make_bench
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.conformance_rules import reads_follow_the_rule
from longdecode.methods.shadowkv.cache import LongShadowCache, ShadowCache, ShadowPlan
from longdecode.methods.shadowkv.method import ShadowKV

CPU = torch.device("cpu")
HEADS, DIM = CONFIG.num_kv_heads, CONFIG.head_dim
SMALL = replace(CONFIG, num_layers=2)
LENGTHS = (203, 90, 21, 5)
"""Prompts of many chunks, of a few more than a list has, of one that is scored, and of less than a chunk."""
BUDGET = 64


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
    plan = ShadowPlan(8, 9, 1, 1, rank)
    cache = ShadowCache(CacheShape(CONFIG, 2, 100, CPU, torch.float32, 10), plan, offload)
    cache.fill_layer(4, keys, values, lengths)
    cache.stand_at(lengths)
    assert cache.scored.tolist() == [11 - 1 - 1, 5 - 1 - 1] and cache.recent_start.tolist() == [80, 32]
    own = cache.layers[4]
    for row in range(2):
        for head in range(HEADS):
            count = int(cache.scored[row])
            chunks = own.chunks[row, head, :count].tolist()
            sources = torch.tensor([*chunks, 0]) + (row * HEADS + head) * cache.most_chunks
            targets = torch.arange(count + 1) + (row * HEADS + head) * plan.sparse
            k, v = (part[:, :, : plan.exact_at] for part in (own.k, own.v))
            fetch_chunks(cache.low_rank(4), k, v, BlockQueue(sources, targets, torch.tensor([count])))
            spans = torch.tensor([8 * chunk + i for chunk in chunks for i in range(8)])
            error = (k[row, head, : 8 * count] - keys[row, head, spans]).abs().max()
            assert error < 2e-4 if rank == 6 else error > 0.1
            assert v[row, head, : 8 * count].equal(values[row, head, spans])
    assert (cache.host_nbytes() > 0) == offload


def test_a_copy_keeps_its_values_in_a_host_buffer_of_its_own() -> None:
    """A GPU reads them by their address, which must be pinned memory in a copy too."""
    cache = ShadowCache(CacheShape(CONFIG, 1, 24, CPU, torch.float32, 4), ShadowPlan(8, 1, 1, 1, 3), offload=True)
    cache.values.fill_(1.5)
    copy = cache.clone()
    assert isinstance(copy, ShadowCache) and copy.host is not None
    assert copy.values.data_ptr() == copy.host.bytes.data_ptr() != cache.values.data_ptr()
    assert copy.values.equal(cache.values)
    copy.held.fill_(7)
    assert int(cache.held.max()) == -1


class Counting(ShadowKV):
    """Counts the chunks that are chosen now and were not in the step before."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.chosen: dict[int, list[set[int]]] = {}
        self.new = 0

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection:
        """Choose, and count."""
        selection = super().select(layer, q, state)
        lists = zip(selection.indices.flatten(0, 1).tolist(), selection.counts.flatten().tolist(), strict=True)
        now = [set(chunks[:count]) for chunks, count in lists]
        before = self.chosen.get(layer, [set()] * len(now))
        self.new += sum(len(mine - old) for mine, old in zip(now, before, strict=True))
        self.chosen[layer] = now
        return selection


def started(rng: torch.Generator, capacity: int, dtype: torch.dtype = torch.float32) -> Prompt:
    return random_prompt(rng, SMALL, LENGTHS, capacity, dtype, new_tokens=capacity - min(LENGTHS))


def drifting_heads(rng: torch.Generator, before: list[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Heads of a step whose queries are like those of the step before."""
    heads = []
    for layer in range(SMALL.num_layers):
        q = 0.9 * before[layer] + 0.5 * torch.randn(before[layer].shape, generator=rng)
        before[layer] = q
        heads.append((q, *(torch.randn(len(LENGTHS), HEADS, 1, DIM, generator=rng) for _ in range(2))))
    return heads


def build(offload: bool, budget: int = BUDGET, **params: Any) -> Counting:
    return Counting.from_budget(budget, SMALL, offload=offload, **params)  # type: ignore[return-value]


@pytest.mark.parametrize(("chunk", "budget", "steps"), [(8, BUDGET, 300), (4, 40, 60)])
def test_equals_the_device_and_fetches_what_is_new(rng: torch.Generator, chunk: int, budget: int, steps: int) -> None:
    """Over a ragged batch; slots hold what was chosen last and nothing twice; what stays is not fetched again."""
    prompt = started(rng, max(LENGTHS) + steps)
    near, far = build(False, budget, chunk=chunk), build(True, budget, chunk=chunk)
    near_state, far_state = near.start(prompt), far.start(prompt)
    cache = far_state.cache
    assert isinstance(cache, ShadowCache) and isinstance(near_state.cache, ShadowCache)
    before = [torch.randn(len(LENGTHS), SMALL.num_heads, 1, DIM, generator=rng) for _ in range(SMALL.num_layers)]
    listed = 0
    for _ in range(steps):
        heads = drifting_heads(rng, before)
        for mine, theirs in zip(run_step(far, far_state, heads), run_step(near, near_state, heads), strict=True):
            assert mine.equal(theirs) and bool(mine.isfinite().all())
        for layer, chosen in far.chosen.items():
            slots = cache.held[layer, ..., : cache.plan.sparse].flatten(0, 1).tolist()
            held = [[at for at in places if at >= 0] for places in slots]
            assert [set(places) for places in held] == chosen and all(len(set(p)) == len(p) for p in held)
            listed += sum(map(len, chosen))
    assert int(cache.fetched.sum()) == far.new == int(near_state.cache.fetched.sum()) and steps < far.new < 0.6 * listed
    assert cache.fetched_bytes == far.new * chunk * DIM * 4 and near_state.cache.fetched_bytes == 0
    assert cache.fetched[:, 2:].sum() == HEADS * SMALL.num_layers * cache.scored[2:].sum()


@pytest.mark.parametrize(("dtype", "long_generation"), [(torch.float32, True), (torch.bfloat16, False)], ids=str)
def test_kernels_compute_what_their_definitions_do(
    rng: torch.Generator, dtype: torch.dtype, long_generation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same chunks through the kernels, which give the same bits wherever the values lie."""
    prompt = started(rng, max(LENGTHS) + 8, dtype)
    truth, *methods = (build(offload, long_generation=long_generation) for offload in (False, True, False))
    states = [method.start(prompt) for method in (truth, *methods)]
    before = [torch.randn(len(LENGTHS), SMALL.num_heads, 1, DIM, generator=rng) for _ in range(SMALL.num_layers)]
    for _ in range(4):
        heads = [tuple(x.to(dtype) for x in layer) for layer in drifting_heads(rng, before)]
        want = run_step(truth, states[0], heads)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr("longdecode.kernels.dispatch.kernel_path", lambda *given: "triton")
            pairs = zip(methods, states[1:], strict=True)
            far, near = (run_step(method, state, heads) for method, state in pairs)  # type: ignore[arg-type]
        for mine, theirs, right in zip(far, near, want, strict=True):
            assert mine.equal(theirs)
            tolerance = 1e-4 if dtype == torch.float32 else 4e-2
            torch.testing.assert_close(mine, right, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("long_generation", [False, True])
def test_what_is_in_slots_changes_no_result(rng: torch.Generator, long_generation: bool) -> None:
    """A run that forgets, one that takes steps back and a copy all give the bits of a run that does none of it."""
    prompt = started(rng, max(LENGTHS) + 40)
    method = build(True, long_generation=long_generation)
    plain, forgetful, undone = (method.start(prompt) for _ in range(3))
    before = [torch.randn(len(LENGTHS), SMALL.num_heads, 1, DIM, generator=rng) for _ in range(SMALL.num_layers)]
    for number in range(12):
        heads = drifting_heads(rng, before)
        want = run_step(method, plain, heads)
        assert isinstance(forgetful.cache, ShadowCache)
        if number % 3 == 0:
            forgetful.cache.forget()
        saved = []
        for _ in range(1 + number % 2 * 20):  # up to two chunks that are taken back while slots hold them
            saved.append(undone.cache.before_step())
            run_step(method, undone, drifting_heads(rng, [torch.randn_like(q) for q in before]))
        for step in reversed(saved):
            undone.cache.undo(step, torch.ones(len(LENGTHS), dtype=torch.bool))
        copy = DecodeState(undone.cache.clone())
        for state in (forgetful, undone, copy):
            assert all(mine.equal(theirs) for mine, theirs in zip(run_step(method, state, heads), want, strict=True))


def long_bench(**params: Any) -> conformance.MethodBench:
    """A bench of 60 decoded tokens, of whom the card's slack allows none, after prompts of many chunks to none.

    At 64 tokens five chunks of eight are read by score; rows complete chunks in different steps.
    """
    ids = torch.randint(CONFIG.vocab_size, (3, 83 + 60), generator=torch.Generator().manual_seed(1))
    bench = make_bench("shadowkv", "cpu", params, dtype=torch.float64, seed=0)
    slack = bench.card.slack.model_copy(update={"per_generated_token": False})
    return replace(
        bench, card=bench.card.model_copy(update={"slack": slack}),
        build=lambda budget: ShadowKV.from_budget(budget, SMALL, rank_share=1.0, **params),
        inputs=Inputs(sharp_decoder(SMALL, torch.float64), [ids[0, :83], ids[1, :30], ids[2, :5]], ids[:, 83:]),
    )  # fmt: skip


def test_a_long_generation_stays_within_its_budget(monkeypatch: pytest.MonkeyPatch, chunk: int = 4) -> None:
    """Generated chunks are read by the rule, from host memory too; faults in what a step keeps are found."""
    bench = long_bench(long_generation=True, chunk=chunk)
    for check in conformance.CHECKS:
        check(bench)
    assert long_bench(long_generation=True, chunk=chunk, offload=True).small.equals(bench.small)
    with pytest.raises(GateError, match="tokens were read in a step, 64 are declared"):
        conformance.reads_stay_within_budget(long_bench(chunk=chunk))
    for name in ("append", "fill_layer"):
        with monkeypatch.context() as patch, pytest.raises(GateError, match="differs by"):
            patch.setattr(LongShadowCache, name, getattr(ShadowCache, name))
            reads_follow_the_rule(long_bench(long_generation=True, chunk=chunk))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("long", [False, True])
def test_equals_the_device_from_graphs(random_ids: Callable, dtype: torch.dtype, long: bool) -> None:
    """By the kernels (bfloat16) and by torch through unified addresses (float64), prompts of many chunks and of few."""
    config = replace(CONFIG, hidden_size=128, head_dim=32)
    decoder = random_decoder(config, 1, torch.device("cuda"), dtype)
    requests = [Request(random_ids(length, 40), 60, random_ids(9, 40)) for length in (301, 170, 30)]
    want = Generator(decoder, cuda_graph=True).run(requests, ShadowKV.from_budget(128, config, long_generation=long))
    for graph in (False, True):
        method = ShadowKV.from_budget(128, config, offload=True, long_generation=long)
        assert results(Generator(decoder, cuda_graph=graph).run(requests, method)) == results(want)
