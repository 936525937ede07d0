"""Measures of a long text: distinct n-grams, repetition, its loss by full attention, the bias of the printed rule.

The bias of the printed rule of acceptance is how far a step's law is from the target's, on real logits. A draft of
probability ``q`` that 27 paths share is accepted by the printed rule with ``1 - (1 - q) ** 27``, one draw a path, where
the target's law gives it ``q``. All other tokens keep their proportions, so that the difference of the two is the total
variation between the step's law and the target's.

Source: TokenSwift (arXiv 2502.18890), algorithm 1, line 12.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, DenseAttention
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator
from longdecode.engine.prefill import WholePrompt
from longdecode.engine.request import Request
from longdecode.engine.steppers import SpeculativeStepper, make_stepper
from longdecode.engine.token_block import TokenBlock
from longdecode.evals.stats import Spread, bootstrap_interval

ORDERS = (1, 2, 3, 4)
GRAM = 8
PATHS = (27, 47)
"""Paths of the tree 1, 3, 3, 3 without and with 20 n-grams."""
LAW_STEPS, LAW_RESAMPLES = 1000, 2000
"""Steps of a text that the law is measured at, fewer where it ends; bootstrap draws of its mean."""
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


def printed_bias(chance: Tensor, paths: int) -> Tensor:
    """Return the total variation by the target's probability of the draft that ``paths`` paths begin with."""
    return 1 - (1 - chance) ** paths - chance


@torch.no_grad()
def steps_of(generator: Generator, method: AttentionMethod, request: Request) -> Iterator[tuple[Tensor, Tensor]]:
    """Write a text by the exact rule and yield, step by step, what its first token was chosen from.

    Yields:
        ``[1, V]`` float32, logits whose softmax is the law of that token (penalty and filters applied), and ``[1]``
        int64, the draft of it.

    Raises:
        ConfigError: the method does not verify by the exact rule.
    """
    prompt = generator.prefill_for([request], method)
    stepper = make_stepper(generator.decoder, generator.sampling, prompt, method, keep_prompt=False)
    if not isinstance(stepper, SpeculativeStepper) or stepper.rule != "exact":
        raise ConfigError(f"{method.name}: the law is measured along a text of mode exact")
    proposer, sequences = stepper.proposer, stepper.sequences
    while bool(sequences.active.all()):
        proposer.refreshing = proposer.refreshes and proposer.refresh_due()
        starts = stepper.state.dense.lengths.clone()
        nodes = proposer.propose()
        hidden, logits = stepper.verify(starts, nodes)
        law = sequences.sampling.processed(logits[:, 0].float(), sequences.history())
        stepper.accept(starts, nodes, hidden, logits)
        proposer.refreshing = False
        yield law, nodes[:, 0]


def law_measures(steps: Iterable[tuple[Tensor, Tensor]], seed: int, confidence: float) -> dict[str, float]:
    """Return the mean total variation of the printed rule by paths, ``tv_27``, and its interval over steps.

    ``q_first`` is the mean probability of the draft, ``law_positions`` the number of steps.
    """
    chances = torch.cat([law.double().softmax(1).gather(1, draft[:, None])[:, 0] for law, draft in steps]).cpu()
    found = {"law_positions": float(len(chances)), "q_first": float(chances.mean())}
    for paths in PATHS:
        bias = printed_bias(chances, paths).numpy()
        mean = bootstrap_interval([bias], Spread(confidence, LAW_RESAMPLES, seed), np.random.default_rng(seed))
        found |= {f"tv_{paths}": mean.value, f"tv_{paths}_low": mean.low, f"tv_{paths}_high": mean.high}
    return found
