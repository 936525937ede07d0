"""The miniature's own counterparts of the two training sets: many look-ups, and one answer behind a pointer."""

from __future__ import annotations

import random

from longdecode.evals.generators import lookup
from longdecode.evals.generators.prose import Episode
from longdecode.training.roles.data.batch import SampleSource, TargetSample


class MiniPasskey(SampleSource):
    """Look-ups hidden in prose, answered in one generation: multi-passkey's kind. All questions and answers count.

    Args:
        questions: look-ups a sample asks for.
    """

    def __init__(self, questions: int):
        self.questions = questions

    def sample(self, rng: random.Random, context_tokens: int) -> TargetSample:
        """One episode of exactly ``context_tokens`` bytes."""
        episode = lookup.longgen(rng, self.questions, context_tokens)
        return _cut(episode, episode.text.rindex("\n? "))


class MiniTwoHop(SampleSource):
    """One value behind a pointer among many: HotpotQA's kind. The answer's tokens count.

    Args:
        first_answer: also count the last token of the question, whose output predicts the answer's first.
    """

    def __init__(self, first_answer: bool):
        self.first_answer = first_answer

    def sample(self, rng: random.Random, context_tokens: int) -> TargetSample:
        """One episode of exactly ``context_tokens`` bytes."""
        episode = lookup.recall(rng, "two_hop", context_tokens)
        return _cut(episode, len(episode.prompt) + len(episode.question) - int(self.first_answer))


def _cut(episode: Episode, start: int) -> TargetSample:
    ids = tuple(episode.text.encode("ascii"))
    return TargetSample(ids[:start], ids[start:])
