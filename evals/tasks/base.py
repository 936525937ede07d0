"""What is asked: a task makes samples for a context length and marks a completion."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Sample:
    """One problem, as text. ``forced`` is decoded token by token through the method before it may write freely.

    ``meta`` is the task's own (expected values, segment marks); it must be enough to score a completion.
    """

    index: int
    prompt: str
    forced: str
    max_new_tokens: int
    stop: str | None
    meta: Any


@dataclass(frozen=True, slots=True)
class Score:
    """The mark of one sample: ``value`` for the table, ``parts`` along the generation (question, step or position)."""

    value: float
    parts: tuple[float, ...] = ()


class Task(ABC):
    """One task of a suite.

    ``kind`` is ``generate`` (the completion's text is scored) or ``loss`` (the forced tokens' negative log-likelihood
    in nats is). ``options`` such as the number of questions are fixed by the task's name, so that a name means one
    thing. ``byte_level`` marks tasks whose lengths are bytes: they fit only models whose tokens are bytes.
    ``temperature`` 0 is greedy decoding.
    """

    name: str
    suite: str
    version: int
    kind: Literal["generate", "loss"]
    metric: str
    unit: str
    higher_is_better: bool
    data_source: Literal["generated", "real"]
    byte_level: bool = False
    temperature: float = 0.0

    @abstractmethod
    def samples(self, context_tokens: int, count: int, seed: int) -> list[Sample]:
        """Make ``count`` samples whose prompt, forced text and generation together fill ``context_tokens``.

        Raises:
            UnsupportedCellError: the task does not fit this context.
            DataUnavailableError: the data is not here; the message says how to fetch it.
        """

    @abstractmethod
    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Mark one completion; ``forced_nll`` holds nats per forced token."""
