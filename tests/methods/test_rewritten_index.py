"""Block selection keeps of tokens written over what a build from scratch has."""

from __future__ import annotations

import pytest
import torch

from longdecode.kernels.importance import Importance, ImportanceWeights, block_importance, token_importance
from longdecode.kernels.pooled_keys import Pooling, build_pooled_keys
from longdecode.methods.rewritten_index import renew_importance, renew_pooled_keys

CAPACITY, HEADS, DIM, BLOCK = 96, 2, 8, 16
NAN = float("nan")


@pytest.mark.parametrize("pooling", [Pooling(8, 4), Pooling(4, 4), Pooling(16, 4)], ids=str)
@pytest.mark.parametrize("width", [1, 5, 9])
def test_it_is_what_a_build_from_scratch_has(rng: torch.Generator, pooling: Pooling, width: int) -> None:
    """Rows near their beginning, in the middle and near the end; a part of what was written is kept, or all of it."""
    before = torch.tensor([3, 40, 61, CAPACITY - width])
    kept = torch.tensor([min(2, width), width, 0, width])
    k, v = (torch.full((4, HEADS, CAPACITY, DIM), NAN, dtype=torch.float64) for _ in range(2))
    for row, tokens in enumerate((before + width).tolist()):
        for x in (k, v):
            x[row, :, :tokens] = torch.randn(HEADS, tokens, DIM, generator=rng, dtype=torch.float64)
    weights = ImportanceWeights(torch.randn(HEADS, HEADS * DIM, generator=rng), torch.ones(HEADS))
    pooled = build_pooled_keys(k, before + width, pooling, CAPACITY)
    tokens = token_importance(v, weights)
    own = Importance(tokens, block_importance(tokens, before + width, pooling, BLOCK))
    for row, first in enumerate(before.tolist()):
        for x in (k, v):
            x[row, :, first : first + width] = torch.randn(HEADS, width, DIM, generator=rng, dtype=torch.float64)
    lengths = before + kept

    renew_pooled_keys(pooled, k, before, width, lengths, pooling)
    renew_importance(own, v, weights, before, width, lengths, pooling, BLOCK)

    fresh, weighed = build_pooled_keys(k, lengths, pooling, CAPACITY), token_importance(v, weights)
    for row, length in enumerate(lengths.tolist()):
        complete = int(pooling.complete(lengths)[row])
        torch.testing.assert_close(pooled.means[row, :, :complete], fresh.means[row, :, :complete])
        held = [place % pooling.window for place in range(max(0, length - pooling.window), length)]
        torch.testing.assert_close(pooled.ring[row][:, held], fresh.ring[row][:, held])
        torch.testing.assert_close(own.tokens[row, :, :length], weighed[row, :, :length])
        blocks = block_importance(weighed, lengths, pooling, BLOCK)
        torch.testing.assert_close(own.blocks[row], blocks[row])
