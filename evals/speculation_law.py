"""Measure how far a rule of acceptance is from the target's law, on logits of real positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.acceptance import accept
from longdecode.engine.request import Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import AcceptRule, DraftTree, PlacedTree
from longdecode.evals.stats import Interval, Spread, bootstrap_interval, generator

MAX_LOGITS = 1 << 26
"""Logits of a block that exist at once."""
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Variation:
    """Total variation between the law of the next token and the target's, over positions.

    ``expected`` follows from the target's probability of the draft; ``measured`` comes of draws through the engine's
    own rule. Both are means over positions with an interval. A measured one may fall below 0 by chance.
    """

    paths: int
    rule: AcceptRule
    expected: Interval
    measured: Interval


def total_variation(
    logits: Tensor,
    paths: int,
    rule: AcceptRule,
    *,
    sampling: Sampling,
    draws: int,
    drafts: Tensor | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> Variation:
    """Measure the law of a step's first token where ``paths`` paths share their first draft.

    A draft of probability ``q`` is accepted with ``1 - (1 - q) ** paths`` under the faithful rule, and with ``q`` under
    the exact one. All other tokens keep their proportions, so that the total variation is the gap between the share of
    draws that yield the draft and ``q``. TokenSwift's tree has 27 paths, with 20 n-grams 47.

    Args:
        logits: ``[N, V]``, the target's, one row a position.
        paths: paths through the first draft.
        rule: of acceptance. The released penalty looks at a text, which there is none of here: take ``faithful``.
        sampling: without a penalty.
        draws: a position.
        drafts: ``[N]`` int64; the most probable tokens where left out, as TokenSwift drafts.
        seed: of the draws.
        confidence: of the intervals, which resample positions.

    Returns:
        Expected and measured variation.

    Source: TokenSwift (arXiv 2502.18890), algorithm 1, line 12.
    """
    law = sampling.processed(logits.float()).softmax(dim=1).double()
    drafts = law.argmax(dim=1) if drafts is None else drafts
    chance = law.gather(1, drafts[:, None])[:, 0]
    expected = (1 - (1 - chance) ** paths - chance) if rule != "exact" else torch.zeros_like(chance)
    shares = [_share(row, int(draft), paths, rule, sampling, draws, seed + place * draws)
              for place, (row, draft) in enumerate(zip(logits, drafts, strict=True))]  # fmt: skip
    measured = torch.tensor(shares, dtype=torch.float64) - chance.cpu()
    return Variation(
        paths,
        rule,
        *(_estimate(values.cpu().numpy(), confidence, rule, paths, seed) for values in (expected, measured)),
    )


def _share(
    logits: Tensor, draft: int, paths: int, rule: AcceptRule, sampling: Sampling, draws: int, seed: int
) -> float:
    """Return the share of draws whose first token is the draft."""
    tree = DraftTree.chain(1).with_chains(1, paths, 1) if paths > 1 else DraftTree.chain(1)
    placed = PlacedTree(tree, logits.device)
    at_once = max(1, min(draws, MAX_LOGITS // (tree.rows * len(logits))))
    hits = 0
    for first in range(0, draws, at_once):
        rows = min(at_once, draws - first)
        requests = [Request((0,), tree.depth + 1, seed=seed + first + row) for row in range(rows)]
        active = torch.ones(rows, dtype=torch.bool, device=logits.device)
        nodes = torch.full((rows, tree.rows - 1), -1, dtype=torch.int64, device=logits.device)
        nodes[:, 0] = draft
        block = logits.expand(rows, tree.rows, -1)
        taken = accept(placed, nodes, block, Sequences(requests, sampling, active), rule)
        hits += int((taken.chosen[:, 0] == draft).sum())
    return hits / draws


def _estimate(values: np.ndarray, confidence: float, *identity: object) -> Interval:
    return bootstrap_interval([values], Spread(confidence, RESAMPLES, 0), generator("total variation", *identity))
