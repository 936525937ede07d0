"""Decode steps as blocks: what they read, that they come back to their start, and the methods that bound others."""

from __future__ import annotations

import pytest
import torch

from longdecode.engine.attention import AttentionMethod, DecodeState, Selection
from longdecode.engine.correction import Correction
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import random_decoder
from longdecode.evals.throughput.ceilings import (
    FreeSelection,
    NoAttention,
    chooses,
    launched_lists,
    sharing_cache,
    with_selection_given,
)
from longdecode.evals.throughput.step_block import (
    correction_block,
    fill_cache,
    projections_block,
    step_block,
    tensors_of,
)
from longdecode.evals.throughput.timing import Block
from longdecode.kernels.sparse_decode_attention import EVERYTHING, sparse_decode_attention
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
    method = FreeSelection.from_budget(64, CONFIG)
    block = step_block(decoder, cache, method, "free_selection", CONTEXT, STEPS)
    run = block.keep[0]
    chosen = run.state.method_state
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
    assert not chooses(FreeSelection.from_budget(64, CONFIG))


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


class ScoresWhileReading(AttentionMethod):
    """The last KV head reads everything and scores its tokens in the same launch; the others read its best of them."""

    name = "scores_while_reading"

    @classmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: object) -> ScoresWhileReading:
        return cls(None, config)

    def make_method_state(self, cache: KVCache) -> dict[str, torch.Tensor]:
        heads, lists = self.config.num_kv_heads, cache.batch * self.config.num_kv_heads
        counts = torch.full((cache.batch, heads), 5)
        counts[:, -1] = EVERYTHING
        indices = torch.arange(5).repeat(lists).view(cache.batch, heads, 5)
        scores = torch.zeros(cache.batch, 1, cache.capacity)
        return {"counts": counts, "indices": indices, "scores": scores, "calls": torch.zeros(self.config.num_layers)}

    def select(self, layer: int, q: torch.Tensor, state: DecodeState) -> Selection | None:
        counts = state.method_state["counts"]
        counts = torch.full_like(counts, EVERYTHING) if layer == 2 else counts
        return None if layer == 1 else Selection(state.method_state["indices"], counts, 1)

    def attend(self, layer: int, q: torch.Tensor, state: DecodeState) -> torch.Tensor:
        extra = state.method_state
        extra["calls"][layer] += 1
        selection = self.select(layer, q, state)
        if selection is None:
            return self.attend_all(layer, q, state)
        out = sparse_decode_attention(
            q, state.cache.keys(layer), state.cache.values(layer), extra["indices"], selection.counts, block_size=1,
            kv_lengths=state.kv_lengths, kv_tokens_read=state.kv_tokens_read[layer], uneven=True,
            scores=extra["scores"], score_rows=torch.tensor([-1] * (self.config.num_kv_heads - 1) + [0]),
        )[0]  # fmt: skip
        scores = extra["scores"].masked_fill(
            torch.arange(state.cache.capacity) >= state.kv_lengths[:, None, None], -1e9
        )
        extra["indices"].copy_(scores.topk(5).indices.expand_as(extra["indices"]))
        return out


def test_a_method_that_selects_while_it_reads_gets_its_lists_in_one_launch(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    method = ScoresWhileReading(None, CONFIG)
    assert chooses(method)
    block = step_block(decoder, cache, with_selection_given(method), "given", CONTEXT, STEPS)
    state, launches = block.keep[0].state, []
    for turn in range(2):
        block.reset()
        before = state.reads.clone()
        with launched_lists() as seen:
            block.run()
        launches.append(seen)
        read = state.reads - before
        rows = sum(range(CONTEXT - STEPS + 1, CONTEXT + 1))
        assert read[1].tolist() == read[2].tolist() == [float(rows)] * BATCH
        assert read[0].tolist() == [(rows + 5 * STEPS) / 2] * BATCH, turn
        assert state.method_state["calls"].tolist() == [1.0] * CONFIG.num_layers  # the first step's alone
        assert all(given.block_size == 1 for given in seen)
    first, later = launches
    layers = CONFIG.num_layers - 2  # the first step alone launches over lists of everything in layer 2
    chosen, again = [first[0], *first[2 : layers + 1]], first[layers + 1 :]
    assert len(again) == layers * (STEPS - 1) and len(later) == layers * STEPS
    for number, given in enumerate((*again, *later)):
        assert torch.equal(given.indices, chosen[number % layers].indices)
        assert torch.equal(given.counts, chosen[number % layers].counts)


@pytest.mark.parametrize("mode", ["block", "token"])
def test_retrieval_heads_read_as_much_without_choosing(mode: str, seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    params = {"mode": mode, "block_size": 16, "roles": "spread", "retrieval_heads": 4}
    method = get_method("lychee").from_budget(64, CONFIG, **params)
    reads = []
    for given in (False, True):
        block = step_block(decoder, cache, with_selection_given(method) if given else method, "lychee", CONTEXT, STEPS)
        block.run()  # lists are frozen in the first step
        state, before = block.keep[0].state, block.keep[0].state.reads.clone()
        scores = state.method_state.scores.fill_(float("nan"))
        block.reset()
        block.run()
        assert bool(scores.isnan().all()) == given
        reads.append((state.reads - before).tolist())
    assert reads[0] == reads[1]
    assert sum(len(heads) for heads in method.dense_heads()) == 4


def test_several_launches_of_a_layer_cannot_be_given(seed: int) -> None:
    class Twice(ScoresWhileReading):
        def attend(self, layer: int, q: torch.Tensor, state: DecodeState) -> torch.Tensor:
            super().attend(layer, q, state)
            return super().attend(layer, q, state)

    decoder, cache, _ = made(seed, "full", None)
    block = step_block(decoder, cache, with_selection_given(Twice(None, CONFIG)), "given", CONTEXT, STEPS)
    with pytest.raises(UnsupportedCellError, match="2 launches over lists in layer 0"):
        block.run()


class RewritingFull(get_method("full")):  # type: ignore[misc]
    """Full attention that asks for its last tokens to be run again."""

    correction = Correction("rewrite", 8)


class DenseNowAndThen(get_method("quest")):  # type: ignore[misc]
    """Quest with a dense step now and then."""

    correction = Correction("dense_step", 8)


def test_a_rewrite_runs_the_last_tokens_again_and_goes_back_to_its_start(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    before = cache.k.clone()
    method = RewritingFull.from_budget(None, CONFIG)
    block = correction_block(decoder, cache, method, "full_cc", CONTEXT)
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
    block = correction_block(decoder, cache, DenseNowAndThen.from_budget(64, CONFIG), "quest_cc", CONTEXT)
    state = block.keep[0].state
    before = state.reads.clone()
    block.reset()
    block.run()
    assert (state.reads - before).tolist() == [[float(CONTEXT)] * BATCH] * CONFIG.num_layers
    assert cache.lengths.tolist() == [CONTEXT] * BATCH


def test_a_correction_that_cannot_be_is_unsupported(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    with pytest.raises(UnsupportedCellError, match="corrects nothing"):
        correction_block(decoder, cache, get_method("full").from_budget(None, CONFIG), "full", CONTEXT)
    with pytest.raises(UnsupportedCellError, match="8 tokens"):
        correction_block(decoder, cache, RewritingFull.from_budget(None, CONFIG), "full_cc", 7)


def test_a_cache_of_two_stores_goes_back_to_its_start(seed: int) -> None:
    class TwoStores(KVCache):
        def __init__(self, prompt: KVCache):
            super().__init__(prompt.config, prompt.batch, prompt.capacity, device=prompt.device, dtype=prompt.k.dtype)
            self.k, self.v, self.lengths, self.positions = prompt.k, prompt.v, prompt.lengths, prompt.positions
            self.window = KVCache(prompt.config, prompt.batch, 4, device=prompt.device, dtype=prompt.k.dtype)
            self.written = [torch.zeros(prompt.batch, dtype=torch.int64)]

        def advance(self, active: torch.Tensor) -> None:
            super().advance(active)
            self.window.advance(active)
            self.written[0] += 1

    class InTwoStores(get_method("full")):  # type: ignore[misc]
        def after_prefill(self, prompt: KVCache) -> KVCache:
            return TwoStores(prompt)

    decoder, cache, _ = made(seed, "full", None)
    block = step_block(decoder, cache, InTwoStores.from_budget(None, CONFIG), "two", CONTEXT, STEPS)
    stores = block.keep[0].state.cache
    assert len(list(tensors_of(stores))) == 9
    for _ in range(2):
        block.reset()
        assert stores.window.lengths.tolist() == stores.written[0].tolist() == [0] * BATCH
        block.run()
        assert stores.window.lengths.tolist() == stores.written[0].tolist() == [STEPS] * BATCH
