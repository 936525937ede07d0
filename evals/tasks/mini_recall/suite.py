"""Needles in filler: one among four, four among many, and two hops; the question is decoded through the method."""

from __future__ import annotations

import random

from longdecode.evals.generators import lookup
from longdecode.evals.generators.episode import Episode
from longdecode.evals.generators.wording import BYTES, Wording
from longdecode.evals.tasks.base import Suite
from longdecode.evals.tasks.generated import EpisodeTask


class MiniRecall(EpisodeTask):
    """One question over records hidden in filler, in the manner of RULER's needle tasks.

    Source: Hsieh et al. 2024 (RULER, arXiv 2404.06654) for the kinds of needle; the text format is this project's.
    """

    suite = "mini_recall"

    def __init__(self, variant: lookup.Variant):
        self.name = f"mini_recall_{variant}"
        self.variant = variant

    def episode(self, rng: random.Random, total_chars: int, wording: Wording = BYTES) -> Episode:
        """Hide the records and ask."""
        return lookup.recall(rng, self.variant, total_chars, wording=wording)

    def marks(self, items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
        """Mark which keys come with their value."""
        return lookup.marks(items, completion)


SUITE = Suite(
    {
        "mini_recall_single": lambda data: MiniRecall("single"),
        "mini_recall_multikey": lambda data: MiniRecall("multikey"),
        "mini_recall_two_hop": lambda data: MiniRecall("two_hop"),
    },
    question="decoded",
)
