"""Chains whose every step needs the result of the one before."""

from __future__ import annotations

import random

from longdecode.evals.generators import chain
from longdecode.evals.generators.episode import Episode
from longdecode.evals.generators.wording import BYTES, Wording
from longdecode.evals.tasks.base import Suite
from longdecode.evals.tasks.generated import EpisodeTask


class MiniReason(EpisodeTask):
    """A walk of ``steps`` links with a running sum; the last step carries the final answer, so it is the last part."""

    suite = "mini_reason"
    metric = "steps_right"

    def __init__(self, steps: int):
        self.name = f"mini_reason_{steps}"
        self.steps = steps

    def episode(self, rng: random.Random, total_chars: int, wording: Wording = BYTES) -> Episode:
        """Weave the chains and ask for one."""
        return chain.chain(rng, self.steps, total_chars, wording=wording)

    def marks(self, items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
        """Mark which steps stand in their place with pointer, amount and sum right."""
        return chain.marks(items, completion)


SUITE = Suite(
    {"mini_reason_8": lambda data: MiniReason(8), "mini_reason_16": lambda data: MiniReason(16)}, question="decoded"
)
