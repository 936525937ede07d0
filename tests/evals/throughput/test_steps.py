"""Decode steps as blocks: what they read, that they come back to their start, and the methods that bound others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from decoding import THREE_LAYERS
from longdecode.engine.attention import AttentionMethod
from longdecode.engine.correction import Correction
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import DenseCache, KVCache
from longdecode.engine.weights import random_decoder
from longdecode.evals.throughput.steps import fill_cache, rows_case, setup_case, step_case
from longdecode.evals.throughput.timing import Case
from longdecode.methods.registry import get_method

CONFIG = replace(THREE_LAYERS, vocab_size=67, num_layers=6, head_dim=8, max_positions=256)
CONTEXT, STEPS, BATCH = 200, 3, 2


def filled(decoder: Decoder, method: AttentionMethod, seed: int, batch: int = BATCH) -> KVCache:
    """The cache that a method decodes in, filled."""
    shape = decoder.cache_shape(batch, CONTEXT, STEPS)
    cache = method.make_cache(shape) or DenseCache(shape)
    fill_cache(cache, CONTEXT, seed % 1000)
    return cache


def made(seed: int, name: str, budget: int | None) -> tuple[Decoder, KVCache, Case]:
    decoder = random_decoder(CONFIG, seed % 1000, "cpu", torch.float32)
    method = get_method(name).from_budget(budget, CONFIG)
    cache = filled(decoder, method, seed)
    return decoder, cache, step_case(decoder, cache, method, name, CONTEXT, STEPS)


def states_of(case: Case) -> tuple[DecodeState, ...]:
    """The decode states that a case works in."""
    states: tuple[DecodeState, ...] = case.keep[0].states
    return states


def tokens_of(block: Case) -> torch.Tensor:
    block.reset()
    block.run()
    return block.keep[0].sequences.chosen[:, : STEPS + 1].clone()


@pytest.mark.parametrize("name", ["full_fp8", "full_int4"])
def test_a_quantised_cache_is_filled_with_codes_that_a_step_can_read(seed: int, name: str) -> None:
    _, cache, block = made(seed, name, None)
    assert all(len(part.float().unique()) > 1 for tensor in cache.tensors() for part in tensor)
    assert tokens_of(block).lt(CONFIG.vocab_size).all()


def test_a_block_ends_with_a_query_over_the_whole_context(seed: int) -> None:
    _, cache, block = made(seed, "full", None)
    (state,) = states_of(block)
    for _ in range(2):  # the second time starts where the first did
        before = state.kv_tokens_per_head
        block.reset()
        assert cache.lengths.tolist() == [CONTEXT - STEPS] * BATCH
        block.run()
        read = state.kv_tokens_per_head - before
        assert cache.lengths.tolist() == cache.positions.tolist() == [CONTEXT] * BATCH
        assert read.tolist() == [[float(sum(range(CONTEXT - STEPS + 1, CONTEXT + 1)))] * BATCH] * CONFIG.num_layers


@pytest.mark.parametrize("name", ["quest", "lychee", "tidal", "streaming", "duo", "snapkv", "h2o", "tova"])
def test_a_block_repeats_itself(name: str, seed: int) -> None:
    _, cache, block = made(seed, name, 64)
    (state,) = states_of(block)
    seen = []
    for _ in range(2):
        block.reset()
        assert cache.positions.tolist() == [CONTEXT - STEPS] * BATCH
        counters, before = [tensor.clone() for tensor, _ in cache.counters()], state.kv_tokens_read.clone()
        block.run()
        assert cache.positions.tolist() == [CONTEXT] * BATCH
        seen.append((counters, state.kv_tokens_read - before, block.keep[0].sequences.chosen[:, : STEPS + 1].clone()))
    assert all(torch.equal(*pair) for pair in zip(seen[0][0], seen[1][0], strict=True))
    assert torch.equal(seen[0][1], seen[1][1])
    # A cache that drops tokens has lost, to the first run, what the second one would need for the same tokens.
    dense = name in ("quest", "lychee", "tidal")
    assert isinstance(cache, DenseCache) == dense
    assert not dense or torch.equal(seen[0][2], seen[1][2])


def test_methods_share_a_cache_and_leave_each_other_alone(seed: int) -> None:
    decoder, cache, full = made(seed, "full", None)
    quest = step_case(decoder, cache, get_method("quest").from_budget(64, CONFIG), "quest", CONTEXT, STEPS)
    assert states_of(full)[0].cache is states_of(quest)[0].cache is cache
    alone = tokens_of(full)
    tokens_of(quest)
    assert torch.equal(tokens_of(full), alone)


def test_an_evicting_method_needs_no_cache_of_the_whole_context(seed: int) -> None:
    _, cache, block = made(seed, "streaming", 64)
    assert cache.nbytes() == 2 * CONFIG.num_layers * BATCH * CONFIG.num_kv_heads * 64 * CONFIG.head_dim * 4
    tokens_of(block)
    assert states_of(block)[0].kv_tokens_per_head.tolist() == [[64.0 * STEPS] * BATCH] * CONFIG.num_layers


class RewritingFull(get_method("full")):  # type: ignore[misc]
    """Full attention that asks for its last tokens to be run again."""

    correction = Correction("rewrite", 8)


class DenseNowAndThen(get_method("quest")):  # type: ignore[misc]
    """Quest with a dense step now and then."""

    correction = Correction("dense_step", 8)


def test_a_rewrite_runs_the_last_tokens_again_and_goes_back_to_its_start(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    before = cache.k.clone()
    block = step_case(decoder, cache, RewritingFull.from_budget(None, CONFIG), "full_cc", CONTEXT, stage="correction")
    assert block.calls == 1
    for _ in range(2):
        block.reset()
        assert cache.lengths.tolist() == [CONTEXT] * BATCH
        block.run()
        assert cache.lengths.tolist() == cache.positions.tolist() == [CONTEXT] * BATCH
    changed = (cache.k != before).flatten(4).any(dim=-1).any(dim=2)  # [L, B, S]
    assert changed[:, :, CONTEXT - 8 : CONTEXT].all() and not changed[:, :, : CONTEXT - 8].any()


def test_a_dense_step_reads_everything_up_to_the_context(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    block = step_case(decoder, cache, DenseNowAndThen.from_budget(64, CONFIG), "quest_cc", CONTEXT, stage="correction")
    (state,) = states_of(block)
    before = state.kv_tokens_per_head
    block.reset()
    block.run()
    assert (state.kv_tokens_per_head - before).tolist() == [[float(CONTEXT)] * BATCH] * CONFIG.num_layers
    assert cache.lengths.tolist() == [CONTEXT] * BATCH


def test_a_correction_that_cannot_be_is_unsupported(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    with pytest.raises(UnsupportedCellError, match="8 tokens"):
        step_case(decoder, cache, RewritingFull.from_budget(None, CONFIG), "full_cc", 7, stage="correction")


STAGES = ("draft", "verify", "keep", "speculative_step")


@pytest.mark.parametrize("drafter", ["streaming", "snapkv", "tova", "quest"])
def test_the_stages_of_a_speculative_step_end_where_they_began(drafter: str, seed: int) -> None:
    decoder = random_decoder(CONFIG, seed % 1000, "cpu", torch.float32)
    method = get_method("speculate").from_budget(64, CONFIG, drafter=drafter, draft_tokens=4)
    cache = filled(decoder, method, seed)
    own, reads = drafter != "quest", {}
    for stage in STAGES:
        block = step_case(decoder, cache, method, "speculate", CONTEXT, stage=stage)
        main, draft = states_of(block)
        assert (draft.cache is cache) != own
        before = main.kv_tokens_per_head, draft.kv_tokens_per_head
        for _ in range(2):
            block.reset()
            assert cache.positions.tolist() == draft.cache.positions.tolist() == [CONTEXT - 5] * BATCH
            block.run()
        pairs = zip((main, draft), before, strict=True)
        reads[stage] = [float((state.kv_tokens_per_head - old).mean()) / 2 for state, old in pairs]
    assert reads["verify"] == [CONTEXT, 0] and reads["keep"] == [0, 0] and reads["draft"][0] == 0
    assert reads["speculative_step"] == [CONTEXT, reads["draft"][1]]
    if drafter == "streaming":
        assert reads["draft"][1] == 64 * 4  # verified keys are taken over, so the last draft need not be fed


def test_a_speculative_block_advances_by_what_was_accepted(seed: int) -> None:
    decoder = random_decoder(CONFIG, seed % 1000, "cpu", torch.float32)
    # With the whole context for a budget the drafts are what the verifier would say.
    method = get_method("speculate").from_budget(CONTEXT, CONFIG, drafter="streaming", draft_tokens=4)
    cache = filled(decoder, method, seed)
    block = step_case(decoder, cache, method, "speculate", CONTEXT, stage="speculative_step")
    block.reset()
    block.run()
    assert cache.lengths.tolist() == [CONTEXT] * BATCH and (block.keep[0].sequences.counts == 6).all()


def test_what_cannot_be_drafted_is_unsupported(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    method = get_method("speculate").from_budget(64, CONFIG, draft_tokens=4)
    with pytest.raises(UnsupportedCellError, match="5 tokens are verified"):
        step_case(decoder, cache, method, "speculate", 5, stage="draft")


def test_a_forward_pass_over_rows_reads_the_context_once_and_stays(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    block = rows_case(decoder, cache, get_method("full").from_budget(None, CONFIG), "full", CONTEXT, 7)
    before, keys = cache.lengths.clone(), cache.k.clone()
    block.run()
    state = block.keep[0]
    assert torch.equal(cache.lengths, before)
    assert state.kv_tokens_per_head.tolist() == [[float(CONTEXT)] * BATCH] * CONFIG.num_layers
    changed = (cache.k != keys).flatten(4).any(dim=-1).any(dim=2)  # [L, B, S]
    assert changed[:, :, CONTEXT - 7 :].all() and not changed[:, :, : CONTEXT - 7].any()


@pytest.mark.parametrize("name", ["full", "quest", "streaming", "duo", "snapkv", "h2o", "tova"])
def test_setup_leaves_a_cache_at_the_context(name: str, seed: int) -> None:
    decoder = random_decoder(CONFIG, seed % 1000, "cpu", torch.float32)
    method = get_method(name).from_budget(None if name == "full" else 64, CONFIG)
    cache = filled(decoder, method, seed)
    cache.stand_at(torch.zeros_like(cache.positions))
    setup_case(method, cache, name, CONTEXT - STEPS).run()
    assert cache.positions.tolist() == [CONTEXT - STEPS] * BATCH
