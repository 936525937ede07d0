"""Measures of a long text: distinct n-grams, repetition, and its loss by full attention."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from longdecode.engine.attention import DenseAttention
from longdecode.engine.decoder import Decoder
from longdecode.engine.prefill import WholePrompt
from longdecode.engine.token_block import TokenBlock

ORDERS = (1, 2, 3, 4)
GRAM = 8
_PIECE_TOKENS, _LOGIT_ROWS = 4096, 512


def distinct(units: Sequence[Hashable], order: int) -> float:
    """Return distinct n-grams over n-grams; 0 where there is none."""
    total = len(units) - order + 1
    return len(set(zip(*(units[start:] for start in range(order)), strict=False))) / total if total > 0 else 0.0


def diversity(ids: Sequence[int]) -> dict[str, float]:
    """Return Distinct-1 to -4 over the tokens of a text, and the share of 8-grams that stood before.

    Source: Li et al. 2016 (arXiv 1510.03055), section 5, for the ratio. TokenSwift (arXiv 2502.18890) does not say over
    what it takes it.
    """
    repeated = 1 - distinct(ids, GRAM) if len(ids) >= GRAM else 0.0
    return {f"distinct_{order}": distinct(ids, order) for order in ORDERS} | {f"repeated_{GRAM}": repeated}


def first_difference(ids: Sequence[int], others: Sequence[int]) -> int | None:
    """Return the first place where two texts of one length differ, ``None`` where they are the same."""
    return next((place for place, (one, other) in enumerate(zip(ids, others, strict=True)) if one != other), None)


@torch.no_grad()
def loss_by_full(decoder: Decoder, prompt: Sequence[int], text: Sequence[int]) -> float:
    """Return the mean loss of a text, in nats a token, under full attention and without any sampling rule."""
    ids = torch.tensor([[*prompt, *text]], device=decoder.device)
    length = ids.shape[1] - 1
    state = WholePrompt(decoder.new_cache(1, length), [length], _PIECE_TOKENS)
    block = TokenBlock(ids[:, :-1], torch.arange(length, device=decoder.device)[None])
    hidden = decoder.forward(block, state, DenseAttention((), decoder.config))[0, len(prompt) - 1 :]
    total = torch.zeros((), dtype=torch.float64, device=decoder.device)
    for rows, wanted in zip(hidden.split(_LOGIT_ROWS), ids[0, len(prompt) :].split(_LOGIT_ROWS), strict=True):
        total += torch.nn.functional.cross_entropy(decoder.logits(rows), wanted, reduction="sum")
    return float(total) / len(text)
