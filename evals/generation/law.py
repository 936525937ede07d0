"""The bias of the printed rule of acceptance on real logits: target and draft of the steps of one text."""

from __future__ import annotations

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator
from longdecode.engine.request import Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.steppers import SpeculativeStepper, make_stepper
from longdecode.evals.speculation_law import total_variation

PATHS = (27, 47)
"""Paths of the tree 1, 3, 3, 3 without and with 20 n-grams."""
DRAWS = 32
"""Draws a position through the engine's own rule, beside the value that follows from the probabilities."""


@torch.no_grad()
def steps_of(generator: Generator, method: AttentionMethod, request: Request, positions: int) -> tuple[Tensor, Tensor]:
    """Write ``positions`` steps by the exact rule and note what each chose from.

    Returns:
        ``[N, V]`` float32, logits whose softmax is the law of the step's first token (penalty and filters applied), and
        ``[N]`` int64, the draft of that token.

    Raises:
        ConfigError: the method does not verify by the exact rule, or the text ends before so many steps.
    """
    prompt = generator.prefill_for([request], method)
    stepper = make_stepper(generator.decoder, generator.sampling, prompt, method, keep_prompt=False)
    if not isinstance(stepper, SpeculativeStepper) or stepper.rule != "exact":
        raise ConfigError(f"{method.name}: the law is measured along a text of mode exact")
    laws, drafts, proposer = list[Tensor](), list[Tensor](), stepper.proposer
    for done in range(positions):
        if not bool(stepper.sequences.active.all()):
            raise ConfigError(f"the text ended after {done} steps; the law is asked for at {positions}")
        proposer.refreshing = proposer.refreshes and proposer.refresh_due()
        starts = stepper.state.dense.lengths.clone()
        nodes = proposer.propose()
        hidden, logits = stepper.verify(starts, nodes)
        laws.append(stepper.sequences.sampling.processed(logits[:, 0].float(), stepper.sequences.history()))
        drafts.append(nodes[:, 0])
        stepper.accept(starts, nodes, hidden, logits)
        proposer.refreshing = False
    return torch.cat(laws), torch.cat(drafts)


def law_measures(laws: Tensor, drafts: Tensor, seed: int, confidence: float) -> dict[str, float]:
    """Return the total variation of the printed rule by paths, as measures: ``tv_27``, ``tv_27_low``, ``tv_27_drawn``.

    Without suffix the mean of what follows from the probabilities, ``_low`` and ``_high`` its interval over positions,
    ``_drawn`` the mean that the engine's own draws gave. ``tv_exact_drawn`` is the exact rule's.
    """
    found: dict[str, float] = {"law_positions": len(drafts)}
    drawn = Sampling(1.0)
    for paths in PATHS:
        seen = total_variation(
            laws, paths, "faithful", sampling=drawn, draws=DRAWS, drafts=drafts, seed=seed, confidence=confidence
        )
        found |= {f"tv_{paths}": seen.expected.value, f"tv_{paths}_drawn": seen.measured.value}
        found |= {f"tv_{paths}_low": seen.expected.low, f"tv_{paths}_high": seen.expected.high}
    exact = total_variation(
        laws, PATHS[-1], "exact", sampling=drawn, draws=DRAWS, drafts=drafts, seed=seed, confidence=confidence
    )
    chance = laws.double().softmax(dim=1).gather(1, drafts[:, None])
    return found | {"tv_exact_drawn": exact.measured.value, "q_first": float(chance.mean())}
