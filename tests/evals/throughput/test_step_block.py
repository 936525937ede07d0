"""Decode steps as blocks: what they read, that they come back to their start, and the methods that bound others."""

from __future__ import annotations

import torch

from longdecode.engine.decoder import Decoder
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import random_decoder
from longdecode.evals.throughput.ceilings import (
    NoAttention,
    OracleBudget,
    chooses,
    sharing_cache,
    with_selection_given,
)
from longdecode.evals.throughput.step_block import fill_cache, projections_block, step_block
from longdecode.evals.throughput.timing import Block
from longdecode.methods.registry import get_method

CONFIG = ModelConfig(
    family="llama", vocab_size=67, hidden_size=32, intermediate_size=48, num_layers=6, num_heads=4, num_kv_heads=2,
    head_dim=8, max_positions=256,
)  # fmt: skip
CONTEXT, STEPS, BATCH = 200, 3, 2


def made(seed: int, name: str, budget: int | None) -> tuple[Decoder, KVCache, Block]:
    decoder = random_decoder(CONFIG, seed % 1000, "cpu", torch.float32)
    cache = decoder.new_cache(BATCH, CONTEXT)
    fill_cache(cache, CONTEXT, seed % 1000)
    method = get_method(name).from_budget(budget, CONFIG)
    return decoder, cache, step_block(decoder, cache, method, name, CONTEXT, STEPS)


def test_a_block_ends_with_a_query_over_the_whole_context(seed: int) -> None:
    _, cache, block = made(seed, "full", None)
    run = block.keep[0]
    for _ in range(2):  # the second time starts where the first did
        before = run.state.reads.clone()
        block.reset()
        assert cache.lengths.tolist() == [CONTEXT - STEPS] * BATCH
        block.run()
        read = run.state.reads - before
        assert cache.lengths.tolist() == cache.positions.tolist() == [CONTEXT] * BATCH
        assert read.tolist() == [[float(sum(range(CONTEXT - STEPS + 1, CONTEXT + 1)))] * BATCH] * CONFIG.num_layers


def test_a_block_repeats_itself_token_by_token(seed: int) -> None:
    _, _, block = made(seed, "quest", 64)
    run, seen = block.keep[0], []
    for _ in range(2):
        block.reset()
        block.run()
        seen.append(run.chosen[:, : STEPS + 1].clone())
    assert torch.equal(*seen)


def test_methods_share_a_cache_and_leave_each_other_alone(seed: int) -> None:
    decoder, cache, full = made(seed, "full", None)
    quest = step_block(decoder, cache, get_method("quest").from_budget(64, CONFIG), "quest", CONTEXT, STEPS)
    streaming = step_block(decoder, cache, get_method("streaming").from_budget(64, CONFIG), "s", CONTEXT, STEPS)
    assert full.keep[0].state.cache is quest.keep[0].state.cache is cache
    assert streaming.keep[0].state.cache.capacity == 64

    def tokens() -> torch.Tensor:
        full.reset()
        full.run()
        return full.keep[0].chosen[:, : STEPS + 1].clone()

    alone = tokens()
    for other in (quest, streaming):
        other.reset()
        other.run()
    assert torch.equal(tokens(), alone)


def test_oracle_reads_its_budget_in_distinct_pages_with_the_last_one(seed: int) -> None:
    decoder = random_decoder(CONFIG, 0, "cpu", torch.float32)
    cache = decoder.new_cache(BATCH, CONTEXT)
    fill_cache(cache, CONTEXT, 0)
    method = OracleBudget.from_budget(64, CONFIG)
    block = step_block(decoder, cache, method, "oracle_budget", CONTEXT, STEPS)
    run = block.keep[0]
    chosen = run.state.extra
    assert chosen.indices.shape == (BATCH, 2, 4) and chosen.counts.unique().tolist() == [4]
    assert bool((chosen.indices.diff() > 0).all())
    assert chosen.indices[..., -1].unique().tolist() == [(CONTEXT - 1) // 16]
    block.reset()
    block.run()
    # Three whole pages and what the last one holds by then, in every layer and step.
    last = [CONTEXT - STEPS + step - 192 for step in range(1, STEPS + 1)]
    assert run.state.reads.tolist() == [[float(sum(48 + tokens for tokens in last))] * BATCH] * CONFIG.num_layers
    assert method.traffic(CONTEXT, 4).total_bytes == 6 * 64 * 2 * 2 * 8 * 4


def test_no_attention_reads_nothing() -> None:
    decoder = random_decoder(CONFIG, 0, "cpu", torch.float32)
    cache = decoder.new_cache(1, CONTEXT)
    fill_cache(cache, CONTEXT, 0)
    block = step_block(decoder, cache, NoAttention.from_budget(None, CONFIG), "no_attention", CONTEXT, STEPS)
    block.reset()
    block.run()
    assert float(block.keep[0].state.reads.sum()) == 0


def test_given_selections_are_the_methods_own_and_stay(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    method = get_method("quest").from_budget(64, CONFIG)
    calls = []
    choose = method.select
    vars(method)["select"] = lambda layer, q, state: calls.append(layer) or choose(layer, q, state)
    block = step_block(decoder, cache, with_selection_given(method), "quest", CONTEXT, STEPS)
    for _ in range(2):
        block.reset()
        block.run()
    assert calls == list(range(CONFIG.num_layers))  # once a layer, in the first step
    assert chooses(get_method("quest").from_budget(64, CONFIG))
    assert not chooses(get_method("full").from_budget(None, CONFIG))
    assert not chooses(get_method("streaming").from_budget(64, CONFIG))
    assert not chooses(OracleBudget.from_budget(64, CONFIG))


def test_sharing_leaves_the_method_itself_as_it_was(seed: int) -> None:
    _, cache, _ = made(seed, "full", None)
    method = get_method("full").from_budget(None, CONFIG)
    assert sharing_cache(method).start(cache).cache is cache
    assert method.start(cache).cache is not cache


def test_projections_multiply_every_matrix_once(monkeypatch: object, seed: int) -> None:
    from longdecode.evals.throughput import step_block as module

    decoder = random_decoder(CONFIG, 0, "cpu", torch.float32)
    read: list[int] = []
    linear, gated = module.linear, module.gated_linear
    module.linear = lambda x, weight, bias=None: read.append(weight.nbytes) or linear(x, weight, bias)
    module.gated_linear = lambda x, weight: read.append(weight.nbytes) or gated(x, weight)
    try:
        projections_block(decoder, 2).run()
    finally:
        module.linear, module.gated_linear = linear, gated
    norms = sum(layer.input_norm.nbytes + layer.mlp_norm.nbytes for layer in decoder.weights.layers)
    assert sum(read) == decoder.weights.nbytes() - norms - decoder.weights.final_norm.nbytes
