"""Define tasks and suites: a task makes samples for a context length and scores a completion."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from longdecode.engine.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from longdecode.engine.request import Completion

Data = Mapping[str, Path | None]
"""Places of data sets: a local folder or a hub id."""
Question = Literal["decoded", "prompt"]
"""Protocol: the question is decoded through the method, or ends the prompt, which is prefilled whole."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One problem, as text. ``forced`` is decoded token by token through the method before it may write freely.

    ``meta`` is the task's own (expected values, segment marks); it must be enough to score a completion.
    ``question_chars`` marks the question of a suite that leaves it in the prompt: so many characters at the prompt's
    end. ``templated`` tells that the prompt is written in the model's chat template already.
    """

    index: int
    prompt: str
    forced: str
    max_new_tokens: int
    stop: str | None
    meta: Any
    question_chars: int = 0
    templated: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """The mark of one sample: ``value`` for the table, ``parts`` along the generation, further ``measures`` by name."""

    value: float
    parts: tuple[float, ...] = ()
    measures: Mapping[str, float] = field(default_factory=dict)


class Task(ABC):
    """One task of a suite; the defaults are those of most tasks.

    ``kind`` is ``generate`` (the completion's text is scored) or ``loss`` (the forced tokens' negative log-likelihood
    in nats is). ``options`` such as the number of questions are fixed by the task's name, so that a name means one
    thing. Prompts begin with the special tokens that the model's tokenizer puts first or, with ``chat``, go through its
    chat template as the user's one turn. ``stop_at_eos`` ends a generation at the checkpoint's end-of-sequence tokens,
    beside the sample's own stop text. ``temperature`` 0 is greedy decoding; ``top_p`` keeps the most probable tokens
    that hold this share of the probability.

    ``against_full`` marks tasks whose samples are compared with Full's run over the same prompt, by ``compare`` in
    place of ``score``; ``full_top_tokens`` is how many of Full's likeliest tokens a comparison needs at each forced
    place.

    ``question`` is the protocol, ``None`` where nothing is asked of a text; ``get_task`` sets it from the suite.

    ``samples_per_problem`` is how often each problem is drawn (avg@k): sample ``i`` is a draw of problem
    ``i // samples_per_problem``, and each draw has noise of its own.
    """

    name: str
    suite: str
    version: int = 1
    kind: Literal["generate", "loss"] = "generate"
    metric: str = "accuracy"
    unit: str = "fraction"
    higher_is_better: bool = True
    data_source: Literal["generated", "real"] = "generated"
    temperature: float = 0.0
    top_p: float = 1.0
    chat: bool = False
    stop_at_eos: bool = False
    samples_per_problem: int = 1
    against_full: bool = False
    full_top_tokens: int = 0
    question: Question | None = None

    def __init__(self, data: Data | None = None):
        """Keep the places of real data."""
        self.data = data or {}

    @property
    def code_module(self) -> str:
        """Dotted name of the module that defines the task."""
        return type(self).__module__

    @abstractmethod
    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Make the samples of ``count`` problems; prompt, forced text and generation together fit ``context_tokens``.

        Args:
            context_tokens: the cell's context.
            count: problems wanted; a data set that has fewer gives all it has.
            seed: seed of generated samples.
            tokenizer: the model's, whose tokens are counted.

        Returns:
            ``samples_per_problem`` samples a problem, numbered from 0 without a gap.

        Raises:
            UnsupportedCellError: the task does not fit this context.
            DataUnavailableError: the data is not here; the message says how to fetch it.
        """

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Mark one completion; ``forced_nll`` holds nats per forced token.

        Raises:
            ScoreTimeoutError: marking did not end in time, so that nothing is known about the completion.
        """
        raise NotImplementedError(f"{self.name} is scored against Full")

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Mark a completion against Full's; only tasks that are ``against_full`` have it."""
        raise NotImplementedError(f"{self.name} is not compared with Full")

    def rng(self, context_tokens: int, seed: int, index: int) -> random.Random:
        """Return the random numbers of one sample; a string seed is hashed by SHA-512, the same on every machine."""
        return random.Random(f"{self.name}/{context_tokens}/{seed}/{index}")


@dataclass(frozen=True, slots=True)
class Suite:
    """The tasks of a suite.

    ``tasks`` makes each task from the places of real data; ``default`` names those that run where a configuration names
    none, all when left out; ``data`` lists the data sets that the tasks read. ``question`` is the protocol that samples
    are made in, and gives the suite the other one too: ``decoded`` where the forced text is the question, ``prompt``
    where each sample marks it at the prompt's end (``question_chars``). ``None``: no switch.
    """

    tasks: Mapping[str, Callable[[Data], Task]]
    default: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    question: Question | None = None
