"""Prompts that knobs are tuned on: settings that no test suite has, so that no table's prompt chooses a knob."""

from __future__ import annotations

import random

from longdecode.evals.generators import chain, lookup
from longdecode.evals.generators.episode import Episode
from longdecode.evals.generators.wording import BYTES, Wording
from longdecode.evals.tasks.base import Suite
from longdecode.evals.tasks.generated import EpisodeTask
from longdecode.evals.tasks.tuning.fidelity import TuningProse, TuningStory

QUESTIONS, STEPS = 20, 12


class TuningLookup(EpisodeTask):
    """Ask for 20 look-ups in one generation."""

    suite = "tuning"
    name = f"tuning_lookup_{QUESTIONS}"

    def episode(self, rng: random.Random, total_chars: int, wording: Wording = BYTES) -> Episode:
        """Hide the records and list the questions."""
        return lookup.longgen(rng, QUESTIONS, total_chars, wording=wording)

    def marks(self, items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
        """Mark which keys come with their value, in the order asked."""
        return lookup.marks(items, completion)


class TuningChain(EpisodeTask):
    """Walk a chain of 12 links with a running sum."""

    suite = "tuning"
    name = f"tuning_chain_{STEPS}"
    metric = "steps_right"

    def episode(self, rng: random.Random, total_chars: int, wording: Wording = BYTES) -> Episode:
        """Weave the chains and ask for one."""
        return chain.chain(rng, STEPS, total_chars, wording=wording)

    def marks(self, items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
        """Mark which steps stand in their place with pointer, amount and sum right."""
        return chain.marks(items, completion)


SUITE = Suite(
    {
        TuningLookup.name: lambda data: TuningLookup(),
        TuningChain.name: lambda data: TuningChain(),
        TuningStory.name: lambda data: TuningStory(None, None),
        TuningProse.name: lambda data: TuningProse(data.get("pg19"), None),
    },
    data=("pg19",),
)
