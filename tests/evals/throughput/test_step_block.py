"""Decode steps as blocks: what they read, that they come back to their start, and the methods that bound others."""

from __future__ import annotations

import pytest
import torch

from longdecode.engine.attention import AttentionMethod, Selection
from longdecode.engine.correction import Correction
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import DenseCache, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import random_decoder
from longdecode.evals.throughput.ceilings import FreeSelection, NoAttention, chooses, selection_given
from longdecode.evals.throughput.step_block import (
    correction_block,
    fill_cache,
    projections_block,
    rows_block,
    setup_block,
    speculation_block,
    states_of,
    step_block,
)
from longdecode.evals.throughput.timing import Block
from longdecode.kernels.sparse_decode_attention import EVERYTHING
from longdecode.methods.registry import get_method

CONFIG = ModelConfig(
    family="llama", vocab_size=67, hidden_size=32, intermediate_size=48, num_layers=6, num_heads=4, num_kv_heads=2,
    head_dim=8, max_positions=256,
)  # fmt: skip
CONTEXT, STEPS, BATCH = 200, 3, 2


def filled(decoder: Decoder, method: AttentionMethod, seed: int, batch: int = BATCH) -> KVCache:
    """The cache that a method decodes in, filled."""
    shape = decoder.cache_shape(batch, CONTEXT, STEPS)
    cache = method.make_cache(shape) or DenseCache(shape)
    fill_cache(cache, CONTEXT, seed % 1000)
    return cache


def made(seed: int, name: str, budget: int | None) -> tuple[Decoder, KVCache, Block]:
    decoder = random_decoder(CONFIG, seed % 1000, "cpu", torch.float32)
    method = get_method(name).from_budget(budget, CONFIG)
    cache = filled(decoder, method, seed)
    return decoder, cache, step_block(decoder, cache, method, name, CONTEXT, STEPS)


def tokens_of(block: Block) -> torch.Tensor:
    block.reset()
    block.run()
    return block.keep[0].sequences.chosen[:, : STEPS + 1].clone()


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
    quest = step_block(decoder, cache, get_method("quest").from_budget(64, CONFIG), "quest", CONTEXT, STEPS)
    assert states_of(full)[0].cache is states_of(quest)[0].cache is cache
    alone = tokens_of(full)
    tokens_of(quest)
    assert torch.equal(tokens_of(full), alone)


def test_an_evicting_method_needs_no_cache_of_the_whole_context(seed: int) -> None:
    _, cache, block = made(seed, "streaming", 64)
    assert cache.nbytes() == 2 * CONFIG.num_layers * BATCH * CONFIG.num_kv_heads * 64 * CONFIG.head_dim * 4
    tokens_of(block)
    assert states_of(block)[0].kv_tokens_per_head.tolist() == [[64.0 * STEPS] * BATCH] * CONFIG.num_layers


def test_free_selection_reads_its_budget_in_distinct_pages_with_the_last_one(seed: int) -> None:
    decoder = random_decoder(CONFIG, 0, "cpu", torch.float32)
    method = FreeSelection.from_budget(64, CONFIG)
    block = step_block(decoder, filled(decoder, method, 0), method, "free_selection", CONTEXT, STEPS)
    (state,) = states_of(block)
    chosen = state.method_state
    assert chosen.indices.shape == (BATCH, 2, 4) and chosen.counts.unique().tolist() == [4]
    assert bool((chosen.indices.diff() > 0).all())
    assert chosen.indices[..., -1].unique().tolist() == [(CONTEXT - 1) // 16]
    block.reset()
    block.run()
    # Three whole pages and what the last one holds by then, in every layer and step.
    last = [CONTEXT - STEPS + step - 192 for step in range(1, STEPS + 1)]
    expected = [[float(sum(48 + tokens for tokens in last))] * BATCH] * CONFIG.num_layers
    assert state.kv_tokens_per_head.tolist() == expected
    assert method.traffic(CONTEXT, 4).total_bytes == 6 * 64 * 2 * 2 * 8 * 4


def test_no_attention_reads_nothing() -> None:
    decoder = random_decoder(CONFIG, 0, "cpu", torch.float32)
    method = NoAttention.from_budget(None, CONFIG)
    block = step_block(decoder, filled(decoder, method, 0, 1), method, "no_attention", CONTEXT, STEPS)
    block.reset()
    block.run()
    assert float(states_of(block)[0].kv_tokens_read.sum()) == 0


def test_given_selections_are_the_methods_own_and_stay(seed: int) -> None:
    calls = []

    class Watched(get_method("quest")):  # type: ignore[misc]
        def select(self, layer: int, q: torch.Tensor, state: DecodeState) -> Selection | None:
            calls.append(layer)
            return super().select(layer, q, state)

    decoder, cache, quest = made(seed, "quest", 64)
    method = selection_given(Watched).from_budget(64, CONFIG)
    block = step_block(decoder, cache, method, "quest", CONTEXT, STEPS)
    for _ in range(2):
        block.reset()
        block.run()
    assert calls == list(range(CONFIG.num_layers))  # once a layer, in the first step
    reads = states_of(block)[0].kv_tokens_per_head
    tokens_of(quest)
    assert torch.equal(reads, 2 * states_of(quest)[0].kv_tokens_per_head)
    assert chooses(get_method("quest").from_budget(64, CONFIG))
    assert not chooses(get_method("full").from_budget(None, CONFIG))
    assert not chooses(get_method("streaming").from_budget(64, CONFIG))
    assert not chooses(FreeSelection.from_budget(64, CONFIG))


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
        scores = torch.zeros(cache.batch, 1, cache.shape.capacity)
        return {"counts": counts, "indices": indices, "scores": scores, "calls": torch.zeros(self.config.num_layers)}

    def select(self, layer: int, q: torch.Tensor, state: DecodeState) -> Selection | None:
        counts = state.method_state["counts"]
        counts = torch.full_like(counts, EVERYTHING) if layer == 2 else counts
        return None if layer == 1 else Selection(state.method_state["indices"], counts, 1, uneven=True)

    def attend(self, layer: int, q: torch.Tensor, state: DecodeState) -> torch.Tensor:
        extra = state.method_state
        extra["calls"][layer] += 1
        selection = self.select(layer, q, state)
        if selection is None:
            return self.attend_all(layer, q, state)
        score_rows = torch.tensor([-1] * (self.config.num_kv_heads - 1) + [0])
        out = self.attend_selected(layer, q, selection, state, scores=extra["scores"], score_rows=score_rows)
        late = torch.arange(extra["scores"].shape[-1]) >= state.kv_lengths[:, None, None]
        extra["indices"].copy_(extra["scores"].masked_fill(late, -1e9).topk(5).indices.expand_as(extra["indices"]))
        return out


def test_a_method_that_selects_while_it_reads_gets_its_lists_in_one_launch(seed: int) -> None:
    launches: list[Selection] = []

    class Noting(ScoresWhileReading):
        def attend_selected(
            self, layer: int, q: torch.Tensor, selection: Selection, state: DecodeState, **scoring: object
        ) -> torch.Tensor:
            launches.append(Selection(selection.indices.clone(), selection.counts.clone(), selection.block_size))
            return super().attend_selected(layer, q, selection, state, **scoring)

    decoder, cache, _ = made(seed, "full", None)
    method = selection_given(Noting).from_budget(None, CONFIG)
    assert chooses(method)
    block = step_block(decoder, cache, method, "given", CONTEXT, STEPS)
    (state,) = states_of(block)
    rows = sum(range(CONTEXT - STEPS + 1, CONTEXT + 1))
    for turn in range(2):
        before = state.kv_tokens_per_head
        block.reset()
        block.run()
        read = state.kv_tokens_per_head - before
        assert read[1].tolist() == read[2].tolist() == [float(rows)] * BATCH
        assert read[0].tolist() == [(rows + 5 * STEPS) / 2] * BATCH, turn
        assert state.method_state["calls"].tolist() == [1.0] * CONFIG.num_layers  # the first step's alone
    layers = CONFIG.num_layers - 2  # the first step alone launches over lists of everything in layer 2
    chosen, again = [launches[0], *launches[2 : layers + 1]], launches[layers + 1 :]
    assert len(again) == layers * (2 * STEPS - 1)
    for number, given in enumerate(again):
        assert torch.equal(given.indices, chosen[number % layers].indices)
        assert torch.equal(given.counts, chosen[number % layers].counts)


@pytest.mark.parametrize("mode", ["block", "token"])
def test_retrieval_heads_read_as_much_without_choosing(mode: str, seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    params = {"mode": mode, "block_size": 16, "roles": "spread", "retrieval_heads": 4}
    reads = []
    for given in (False, True):
        cls = selection_given(get_method("lychee")) if given else get_method("lychee")
        method = cls.from_budget(64, CONFIG, **params)
        block = step_block(decoder, cache, method, "lychee", CONTEXT, STEPS)
        block.run()  # lists are frozen in the first step
        (state,) = states_of(block)
        before = state.kv_tokens_per_head
        scores = state.method_state.scores.fill_(float("nan"))
        block.reset()
        block.run()
        assert bool(scores.isnan().all()) == given
        reads.append((state.kv_tokens_per_head - before).tolist())
    assert reads[0] == reads[1]
    assert sum(len(heads) for heads in method.dense_heads()) == 4


def test_several_launches_of_a_layer_cannot_be_given(seed: int) -> None:
    class Twice(ScoresWhileReading):
        def attend(self, layer: int, q: torch.Tensor, state: DecodeState) -> torch.Tensor:
            super().attend(layer, q, state)
            return super().attend(layer, q, state)

    decoder, cache, _ = made(seed, "full", None)
    method = selection_given(Twice).from_budget(None, CONFIG)
    block = step_block(decoder, cache, method, "given", CONTEXT, STEPS)
    with pytest.raises(UnsupportedCellError, match="several launches over lists in layer 0"):
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
    (state,) = states_of(block)
    before = state.kv_tokens_per_head
    block.reset()
    block.run()
    assert (state.kv_tokens_per_head - before).tolist() == [[float(CONTEXT)] * BATCH] * CONFIG.num_layers
    assert cache.lengths.tolist() == [CONTEXT] * BATCH


def test_a_correction_that_cannot_be_is_unsupported(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    with pytest.raises(UnsupportedCellError, match="corrects nothing"):
        correction_block(decoder, cache, get_method("full").from_budget(None, CONFIG), "full", CONTEXT)
    with pytest.raises(UnsupportedCellError, match="8 tokens"):
        correction_block(decoder, cache, RewritingFull.from_budget(None, CONFIG), "full_cc", 7)


STAGES = ("draft", "verify", "keep", "speculative_step")


@pytest.mark.parametrize("drafter", ["streaming", "snapkv", "tova", "quest"])
def test_the_stages_of_a_speculative_step_end_where_they_began(drafter: str, seed: int) -> None:
    decoder = random_decoder(CONFIG, seed % 1000, "cpu", torch.float32)
    method = get_method("speculate").from_budget(64, CONFIG, drafter=drafter, draft_tokens=4)
    cache = filled(decoder, method, seed)
    own = drafter != "quest"
    reads = {}
    for stage in STAGES:
        block = speculation_block(decoder, cache, method, "speculate", CONTEXT, stage)
        main, draft = states_of(block)
        assert (draft.cache is cache) != own
        before = main.kv_tokens_per_head, draft.kv_tokens_per_head
        for _ in range(2):
            block.reset()
            assert cache.positions.tolist() == draft.cache.positions.tolist() == [CONTEXT - 5] * BATCH
            block.run()
        reads[stage] = [
            float((state.kv_tokens_per_head - old).mean()) / 2 for state, old in zip((main, draft), before, strict=True)
        ]
    assert reads["verify"] == [CONTEXT, 0] and reads["keep"] == [0, 0] and reads["draft"][0] == 0
    assert reads["speculative_step"] == [CONTEXT, reads["draft"][1]]
    if drafter == "streaming":
        assert reads["draft"][1] == 64 * 4  # verified keys are taken over, so the last draft need not be fed


def test_a_speculative_block_advances_by_what_was_accepted(seed: int) -> None:
    decoder = random_decoder(CONFIG, seed % 1000, "cpu", torch.float32)
    # With the whole context for a budget the drafts are what the verifier would say.
    method = get_method("speculate").from_budget(CONTEXT, CONFIG, drafter="streaming", draft_tokens=4)
    cache = filled(decoder, method, seed)
    block = speculation_block(decoder, cache, method, "speculate", CONTEXT, "speculative_step")
    block.reset()
    block.run()
    assert cache.lengths.tolist() == [CONTEXT] * BATCH
    assert (block.keep[0].sequences.counts == 6).all()


def test_what_cannot_be_drafted_is_unsupported(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    with pytest.raises(UnsupportedCellError, match="drafts nothing"):
        speculation_block(decoder, cache, get_method("full").from_budget(None, CONFIG), "full", CONTEXT, "draft")
    method = get_method("speculate").from_budget(64, CONFIG, draft_tokens=4)
    with pytest.raises(UnsupportedCellError, match="5 tokens are verified"):
        speculation_block(decoder, cache, method, "speculate", 5, "draft")


def test_a_forward_pass_over_rows_reads_the_context_once_and_stays(seed: int) -> None:
    decoder, cache, _ = made(seed, "full", None)
    block = rows_block(decoder, cache, get_method("full").from_budget(None, CONFIG), "full", CONTEXT, 7)
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
    setup_block(method, cache, name, CONTEXT - STEPS).run()
    assert cache.positions.tolist() == [CONTEXT - STEPS] * BATCH
