"""The miniature's look-ups and chains: suites that differ in generator and number alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.generators.lookup import BYTES, WORDS
from longdecode.evals.generators.prose import Episode
from longdecode.evals.tasks.base import Data, Question, Sample, Score, Suite, Task
from longdecode.evals.tasks.fitting import fill_context

LOOKUP, CHAIN = "longdecode.evals.generators.lookup", "longdecode.evals.generators.chain"
"""Modules of generators, each with its ``marks``; a job imports the one whose tasks it scores."""
SLACK_TOKENS = 8
"""Room after the expected answer, so that a completion that runs on is seen to run on."""


class EpisodeTask(Task):
    """Questions over a generated episode, answered on one line and marked item by item.

    Args:
        module: ``LOOKUP`` or ``CHAIN``.
        generator: its function: ``recall`` or ``longgen``, or ``chain``.
        argument: the generator's own: kind of needle, number of questions or of steps.

    Source: Hsieh et al. 2024 (RULER, arXiv 2404.06654) for the kinds of needle; Liu et al. 2024 (LongGenBench, arXiv
    2410.04199) for many look-ups in one generation; the text format is this project's.
    """

    def __init__(self, module: str, generator: str, argument: str | int, data: Data):
        super().__init__(data)
        self.metric = "steps_right" if module == CHAIN else "accuracy"
        made = import_module(module)
        self.generator, self.marks = getattr(made, generator), made.marks
        self.argument = argument

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Make ``count`` samples, in words where tokens are no bytes; the answer's slack is part of the context.

        Raises:
            UnsupportedCellError: the episode does not fit this context.
        """
        room = context_tokens - SLACK_TOKENS
        # A token has at least one character; what the tokenizer adds is far less than half.
        wording, smallest = (BYTES, room) if tokenizer.counts_bytes else (WORDS, room // 2)

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


def _suite(name: str, module: str, generator: str, arguments: tuple[Any, ...], question: Question) -> Suite:
    stem = name.removesuffix("_long")
    tasks = {f"{stem}_{own}": partial(EpisodeTask, module, generator, own) for own in arguments}
    return Suite(tasks, question=question)


SUITES: Mapping[str, Suite] = {
    "mini_recall": _suite("mini_recall", LOOKUP, "recall", ("single", "multikey", "two_hop"), "decoded"),
    "mini_longgen": _suite("mini_longgen", LOOKUP, "longgen", (15, 30, 45), "prompt"),
    "mini_longgen_long": _suite("mini_longgen_long", LOOKUP, "longgen", (90,), "prompt"),
    "mini_reason": _suite("mini_reason", CHAIN, "chain", (8, 16), "decoded"),
}
