"""A block of several rows equals its tokens one by one; a tree's paths equal their chains; rows compact as told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.speculation import DraftTree, PlacedTree
from longdecode.engine.token_block import TokenBlock
from longdecode.engine.weights import random_decoder

CONFIG = ModelConfig("qwen3", 40, 16, 24, 3, 4, 2, 8, 96, qk_norm=True)
LENGTHS = (21, 1, 9)
TREE = DraftTree((0, 0, 1, 1, 2))


@pytest.fixture
def decoder(seed: int) -> Decoder:
    """In float64, where a block and its tokens one by one agree to rounding."""
    return random_decoder(CONFIG, seed, "cpu", torch.float64)


@pytest.fixture
def start(decoder: Decoder, dense: Callable, random_ids: Callable) -> Callable[[], DecodeState]:
    """Maker of equal states over ragged prompts, with room for a tree."""
    prompts = [torch.tensor(random_ids(length, CONFIG.vocab_size)) for length in LENGTHS]
    cache = decoder.new_cache(len(prompts), max(LENGTHS) + 8)
    cache.k.fill_(float("nan"))
    cache.v.fill_(float("nan"))
    decoder.prefill(prompts, cache, 16)
    return lambda: dense(CONFIG).decode_in(cache.clone())


def block_of(state: DecodeState, tokens: torch.Tensor) -> TokenBlock:
    return TokenBlock(tokens, state.cache.positions[:, None] + torch.arange(tokens.shape[1]))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_block_equals_its_tokens_one_by_one(
    decoder: Decoder, dense: Callable, start: Callable, random_ids: Callable, width: int
) -> None:
    method, tokens = dense(CONFIG), torch.tensor(random_ids(3 * width, CONFIG.vocab_size)).view(3, width)
    one, many = start(), start()
    want = torch.stack([decoder.step(tokens[:, at], one, method) for at in range(width)], dim=1)
    got = decoder.logits(decoder.forward(block_of(many, tokens), many, method))
    many.accept()
    torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)
    assert many.cache.positions.equal(one.cache.positions) and many.dense.lengths.equal(one.dense.lengths)
    for row, length in enumerate(many.dense.lengths.tolist()):
        torch.testing.assert_close(many.dense.k[:, row, :, :length], one.dense.k[:, row, :, :length])
    assert many.counted.tolist() == [[(length + width) * CONFIG.num_kv_heads for length in LENGTHS]] * 3


def test_each_path_scores_as_a_chain(decoder: Decoder, dense: Callable, start: Callable, random_ids: Callable) -> None:
    """And the accepted path of a tree is kept."""
    method, nodes = dense(CONFIG), TREE.rows
    tokens = torch.tensor(random_ids(3 * nodes, CONFIG.vocab_size)).view(3, nodes)
    placed, paths = PlacedTree(TREE, torch.device("cpu")), [list(TREE.path(node)) for node in range(nodes)]
    state = start()
    before = state.dense.lengths.clone()
    block = TokenBlock(tokens, state.cache.positions[:, None] + placed.depths, placed.mask)
    got = decoder.logits(decoder.forward(block, state, method))
    for node, path in enumerate(paths):
        chain = start()
        want = decoder.logits(decoder.forward(block_of(chain, tokens[:, path]), chain, method))
        torch.testing.assert_close(got[:, node], want[:, -1], atol=1e-9, rtol=1e-9)
    longest = paths[-1]
    state.dense.compact(before, torch.tensor([longest] * 3))
    state.accept(torch.full((3,), len(longest)))
    chain = start()
    decoder.forward(block_of(chain, tokens[:, longest]), chain, method)
    chain.accept()
    assert state.dense.lengths.equal(chain.dense.lengths)
    after = torch.tensor(random_ids(3, CONFIG.vocab_size))
    torch.testing.assert_close(decoder.step(after, state, method), decoder.step(after, chain, method))


def test_a_block_writes_over_slots(decoder: Decoder, dense: Callable, start: Callable, random_ids: Callable) -> None:
    """A block from an earlier slot writes over what stood there, in active rows."""
    method, state = dense(CONFIG), start()
    state.active.copy_(torch.tensor([True, False, True]))
    starts, stored = (state.dense.lengths - 4).clamp(min=0), state.dense.k.clone()
    tokens = torch.tensor(random_ids(12, CONFIG.vocab_size)).view(3, 4)
    block = TokenBlock(tokens, starts[:, None] + torch.arange(4), starts=starts, reads="dense")
    decoder.forward(block, state, method)
    state.accept(torch.zeros_like(starts))
    assert state.dense.lengths.tolist() == list(LENGTHS)
    for row, (length, first) in enumerate(zip(LENGTHS, starts.tolist(), strict=True)):
        now, was = (k[:, row, :, :length] for k in (state.dense.k, stored))
        assert now[:, :, :first].equal(was[:, :, :first]) and now.equal(was) == (row == 1)
