"""Share the code of the miniature's generated tasks: a sample depends on (task, context, seed, index) alone."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals.generators.episode import Episode
from longdecode.evals.generators.ruler_question import largest_fitting, shrunk_to_fit
from longdecode.evals.generators.wording import BYTES, WORDS, Wording
from longdecode.evals.tasks.base import Sample, Score, Task

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

SLACK_TOKENS = 8
"""Room after the expected answer, so that a completion that runs on is seen to run on."""
_Made = TypeVar("_Made")


def sample_rng(task: str, context_tokens: int, seed: int, index: int) -> random.Random:
    """Return the random numbers of one sample; a string seed is hashed by SHA-512, the same on every machine."""
    return random.Random(f"{task}/{context_tokens}/{seed}/{index}")


def counts_bytes(tokenizer: TextTokenizer | None) -> bool:
    """Tell whether a text has as many tokens as bytes; so it is where a task is asked without a tokenizer."""
    return tokenizer is None or (tokenizer.byte_level and not tokenizer.first_ids)


def filling(
    task: Task,
    make: Callable[[int, int], _Made],
    tokens: Callable[[_Made], int],
    smallest: int,
    count: int,
    context_tokens: int,
    max_new_tokens: int,
) -> list[_Made]:
    """Make ``count`` questions over a haystack that is as large as fits; one size serves all.

    A question that chance made longer is made again a little smaller.

    Args:
        task: the task, for the error.
        make: makes a question by its index and size; index -1 is the one on which the size is found.
        tokens: tokens of a question, generation aside.
        smallest: the size below which a question makes no sense.

    Raises:
        UnsupportedCellError: the smallest does not fit.
    """
    room = context_tokens - max_new_tokens

    def fits(made: _Made) -> bool:
        return tokens(made) <= room

    try:
        size = largest_fitting(lambda size: tokens(make(-1, size)), room, smallest)
        return [shrunk_to_fit(partial(make, index), size, smallest, fits) for index in range(count)]
    except ValueError as error:
        raise UnsupportedCellError(f"{task.name} does not fit {context_tokens} tokens: {error}") from error


def fitted(
    make: Callable[[random.Random, int], _Made],
    tokens: Callable[[_Made], int],
    limit: int,
    rngs: Callable[[int], random.Random],
    count: int,
) -> list[_Made]:
    """Make ``count`` texts of as many characters as fit ``limit`` tokens.

    One size serves all; a text that chance made longer is made again a little smaller.

    Args:
        make: makes a text of a number of characters; ``ValueError`` where it needs more of them.
        tokens: tokens of what was made.
        limit: most tokens.
        rngs: random numbers of a text by its index; -1 for the text on which the size is found.
        count: texts wanted.

    Raises:
        ValueError: what has to be in a text does not fit.
    """

    def probe(size: int) -> int:
        try:
            return tokens(make(rngs(-1), size))
        except ValueError:  # too few characters, which are few tokens too
            return 0

    smallest = limit // 2  # a token has at least one character; what the tokenizer adds is far less than half
    size = largest_fitting(probe, limit, smallest)

    def fits(made: _Made) -> bool:
        return tokens(made) <= limit

    return [shrunk_to_fit(partial(_seeded, make, rngs, index), size, smallest, fits) for index in range(count)]


def _seeded(
    make: Callable[[random.Random, int], _Made], rngs: Callable[[int], random.Random], index: int, size: int
) -> _Made:
    return make(rngs(index), size)


class EpisodeTask(Task):
    """Questions over a generated episode, answered on one line and marked item by item."""

    version = 1
    kind: Literal["generate", "loss"] = "generate"
    metric = "accuracy"
    unit = "fraction"
    higher_is_better = True
    data_source: Literal["generated", "real"] = "generated"

    @abstractmethod
    def episode(self, rng: random.Random, total_chars: int, wording: Wording = BYTES) -> Episode:
        """Make one episode of at most ``total_chars`` characters; ``ValueError`` where it does not fit."""

    @abstractmethod
    def marks(self, items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
        """Mark which of the expected items a completion gives."""

    def samples(
        self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer | None = None
    ) -> list[Sample]:
        """Make ``count`` samples, in words where tokens are no bytes; the answer's slack is part of the context.

        Raises:
            UnsupportedCellError: the episode does not fit this context.
        """

        def rng(index: int) -> random.Random:
            return sample_rng(self.name, context_tokens, seed, index)

        def encoded(text: str) -> int:
            return len(text) if tokenizer is None or counts_bytes(tokenizer) else len(tokenizer.encode(text))

        def tokens(episode: Episode) -> int:
            assert tokenizer is not None
            parts = (episode.question, episode.answer)
            return len(tokenizer.prompt_ids(episode.prompt)) + sum(map(encoded, parts))

        room = context_tokens - SLACK_TOKENS
        try:
            if counts_bytes(tokenizer):
                episodes = [self.episode(rng(index), room) for index in range(count)]
            else:
                episodes = fitted(lambda r, size: self.episode(r, size, WORDS), tokens, room, rng, count)
        except ValueError as error:
            raise UnsupportedCellError(f"{self.name} does not fit {context_tokens} tokens: {error}") from error
        return [
            Sample(
                index, episode.prompt, episode.question, encoded(episode.answer) + SLACK_TOKENS, "\n", episode.items,
                question_chars=episode.asked_chars,
            )
            for index, episode in enumerate(episodes)
        ]  # fmt: skip

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return the share of expected items given, and one mark an item."""
        parts = tuple(float(mark) for mark in self.marks(sample.meta, completion))
        return Score(sum(parts) / len(parts), parts)
