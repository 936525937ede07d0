"""The bias of the printed rule of acceptance: how far a step's law is from the target's, on real logits.

A draft of probability ``q`` that 27 paths share is accepted by the printed rule with ``1 - (1 - q) ** 27``, one draw a
path, where the target's law gives it ``q``. All other tokens keep their proportions, so that the difference of the two
is the total variation between the step's law and the target's.

Source: TokenSwift (arXiv 2502.18890), algorithm 1, line 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator
from longdecode.engine.request import Request
from longdecode.engine.steppers import SpeculativeStepper, make_stepper
from longdecode.evals.stats import Spread, bootstrap_interval

PATHS = (27, 47)
"""Paths of the tree 1, 3, 3, 3 without and with 20 n-grams."""
STEPS = 1000
"""Steps of a text that are looked at, fewer where it ends."""
RESAMPLES = 2000


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
        mean = bootstrap_interval([bias], Spread(confidence, RESAMPLES, seed), np.random.default_rng(seed))
        found |= {f"tv_{paths}": mean.value, f"tv_{paths}_low": mean.low, f"tv_{paths}_high": mean.high}
    return found
