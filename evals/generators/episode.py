"""Hold a generator's result: one self-contained problem in plain ASCII, with its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Episode:
    """One generated problem.

    ``prompt`` is prefilled densely; ``question`` is fed one token at a time through the method under test; ``answer``
    is what a perfect model then writes, the final newline included. ``items`` are the values asked for, in order, one
    a question; empty for running text, where the loss is the score. ``asked_chars`` is the part of the question that
    ends the prompt, in characters.
    """

    prompt: str
    question: str
    answer: str
    items: tuple[str, ...] = ()
    asked_chars: int = 0

    @property
    def text(self) -> str:
        """The whole episode, as a model is trained on it."""
        return self.prompt + self.question + self.answer
