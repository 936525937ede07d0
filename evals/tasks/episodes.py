"""The miniature's look-ups and chains: suites that differ in generator and number alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.generators import chain, lookup
from longdecode.evals.generators.prose import Episode
from longdecode.evals.tasks.base import Data, Question, Sample, Score, Suite, Task
from longdecode.evals.tasks.fitting import fill_context

SLACK_TOKENS = 8
"""Room after the expected answer, so that a completion that runs on is seen to run on."""


class EpisodeTask(Task):
    """Questions over a generated episode, answered on one line and marked item by item.

    Args:
        generator: ``lookup.recall``, ``lookup.longgen`` or ``chain.chain``.
        argument: the generator's own: kind of needle, number of questions or of steps.

    Source: Hsieh et al. 2024 (RULER, arXiv 2404.06654) for the kinds of needle; Liu et al. 2024 (LongGenBench, arXiv
    2410.04199) for many look-ups in one generation; the text format is this project's.
    """

    def __init__(self, generator: Callable[..., Episode], argument: str | int, data: Data):
        super().__init__(data)
        self.generator, self.argument, self.marks = generator, argument, lookup.marks
        if generator is chain.chain:
            self.metric, self.marks = "steps_right", chain.marks

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Make ``count`` samples, in words where tokens are no bytes; the answer's slack is part of the context.

        Raises:
            UnsupportedCellError: the episode does not fit this context.
        """
        room = context_tokens - SLACK_TOKENS
        # A token has at least one character; what the tokenizer adds is far less than half.
        wording, smallest = (lookup.BYTES, room) if tokenizer.counts_bytes else (lookup.WORDS, room // 2)

        def make(index: int, size: int) -> Sample:
            try:
                episode = self.generator(self.rng(context_tokens, seed, index), self.argument, size, wording=wording)
            except ValueError:
                if index >= 0:
                    raise
                episode = Episode("", "", "")  # too few characters for the records are few tokens too
            tokens = len(tokenizer.encode(episode.answer)) + SLACK_TOKENS
            return Sample(
                index, episode.prompt, episode.question, tokens, "\n", episode.items, question_chars=episode.asked_chars
            )

        return fill_context(self, make, smallest, count, context_tokens, tokenizer)

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return the share of expected items given, and one mark an item."""
        parts = tuple(float(mark) for mark in self.marks(sample.meta, completion))
        return Score(sum(parts) / len(parts), parts)


def _suite(name: str, generator: Callable[..., Episode], arguments: tuple[Any, ...], question: Question) -> Suite:
    stem = name.removesuffix("_long")
    return Suite({f"{stem}_{own}": partial(EpisodeTask, generator, own) for own in arguments}, question=question)


SUITES: Mapping[str, Suite] = {
    "mini_recall": _suite("mini_recall", lookup.recall, ("single", "multikey", "two_hop"), "decoded"),
    "mini_longgen": _suite("mini_longgen", lookup.longgen, (15, 30, 45), "prompt"),
    "mini_longgen_long": _suite("mini_longgen_long", lookup.longgen, (90,), "prompt"),
    "mini_reason": _suite("mini_reason", chain.chain, (8, 16), "decoded"),
}
