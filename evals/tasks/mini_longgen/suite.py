"""Many look-ups answered in one generation, so that errors show where along the generation they set in."""

from __future__ import annotations

import random

from longdecode.evals.generators import lookup
from longdecode.evals.generators.episode import Episode
from longdecode.evals.generators.wording import BYTES, Wording
from longdecode.evals.tasks.base import Suite
from longdecode.evals.tasks.generated import EpisodeTask


class MiniLonggen(EpisodeTask):
    """``questions`` look-ups in one generation, in the manner of LongGenBench.

    Source: Liu et al. 2024 (LongGenBench, arXiv 2410.04199) for the shape; the text format is this project's.
    """

    suite = "mini_longgen"

    def __init__(self, questions: int):
        self.name = f"mini_longgen_{questions}"
        self.questions = questions

    def episode(self, rng: random.Random, total_chars: int, wording: Wording = BYTES) -> Episode:
        """Hide the records and list the questions."""
        return lookup.longgen(rng, self.questions, total_chars, wording=wording)

    def marks(self, items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
        """Mark which keys come with their value, in the order asked."""
        return lookup.marks(items, completion)


SUITE = Suite(
    {
        "mini_longgen_15": lambda data: MiniLonggen(15),
        "mini_longgen_30": lambda data: MiniLonggen(30),
        "mini_longgen_45": lambda data: MiniLonggen(45),
    },
    question="prompt",
)
