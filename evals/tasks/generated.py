"""Share the code of the miniature's generated tasks: a sample depends on (task, context, seed, index) alone."""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals.generators.episode import Episode
from longdecode.evals.tasks.base import Sample, Score, Task

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

SLACK_BYTES = 8
"""Room after the expected answer, so that a completion that runs on is seen to run on."""


def sample_rng(task: str, context_tokens: int, seed: int, index: int) -> random.Random:
    """The random numbers of one sample; a string seed is hashed by SHA-512, the same on every machine."""
    return random.Random(f"{task}/{context_tokens}/{seed}/{index}")


class EpisodeTask(Task):
    """Questions over a generated episode, answered on one line and marked item by item."""

    version = 1
    kind: Literal["generate", "loss"] = "generate"
    metric = "accuracy"
    unit = "fraction"
    higher_is_better = True
    data_source: Literal["generated", "real"] = "generated"
    byte_level = True

    @abstractmethod
    def episode(self, rng: random.Random, total_bytes: int) -> Episode:
        """Make one episode of at most ``total_bytes`` bytes; ``ValueError`` where it does not fit."""

    @abstractmethod
    def marks(self, items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
        """Mark which of the expected items a completion gives."""

    def samples(
        self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer | None = None
    ) -> list[Sample]:
        """Make ``count`` samples; the answer's slack is part of the context.

        Raises:
            UnsupportedCellError: the episode does not fit this context.
        """
        return [self._sample(context_tokens, seed, index) for index in range(count)]

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """The share of expected items given, and one mark an item."""
        parts = tuple(float(mark) for mark in self.marks(sample.meta, completion))
        return Score(sum(parts) / len(parts), parts)

    def _sample(self, context_tokens: int, seed: int, index: int) -> Sample:
        rng = sample_rng(self.name, context_tokens, seed, index)
        try:
            episode = self.episode(rng, context_tokens - SLACK_BYTES)
        except ValueError as error:
            raise UnsupportedCellError(f"{self.name} does not fit {context_tokens} tokens: {error}") from error
        return Sample(
            index=index,
            prompt=episode.prompt,
            forced=episode.question,
            max_new_tokens=len(episode.answer) + SLACK_BYTES,
            stop="\n",
            meta=episode.items,
        )
