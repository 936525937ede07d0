"""Plain generated English: the filler in which records hide, the word stock of the narratives, and the episode."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from longdecode.evals.config_values import read_yaml

WORDS: dict[str, list[str]] = read_yaml(Path(__file__).with_name("words.yaml"))
"""Words by kind; those of RULER's keys are lists of their own."""

Filler = Callable[[random.Random, int], str]
"""Makes exactly the given number of bytes of text, starting anywhere and ending at a space or full stop."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One generated problem, with its answer; in plain ASCII but for RULER's essays and documents.

    ``prompt`` is prefilled densely; ``question`` is fed one token at a time through the method under test; ``answer``
    is what a perfect model then writes, the final newline included, or empty where no one text is. ``items`` are the
    values asked for, in order; empty for running text, where the loss is the score. ``asked_chars`` is the part of the
    question that ends the prompt, in characters.
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


def word(rng: random.Random, kind: str) -> str:
    """Draw a word of a kind."""
    return rng.choice(WORDS[kind])


def letters(rng: random.Random, count: int = 4, alphabet: str = string.ascii_lowercase) -> str:
    """Return random letters."""
    return "".join(rng.choices(alphabet, k=count))


def sentence(rng: random.Random) -> str:
    """Return one sentence that states nothing worth remembering, with its trailing space."""
    drawn = [word(rng, kind) for kind in ("adjectives", "nouns", "verbs", "places", "nouns")]
    core = "the {} {} {} {} the {}".format(*drawn)
    if rng.random() < 0.5:
        return f"{word(rng, 'openers')} {core}. "
    return f"{core[0].upper()}{core[1:]}. "


def at_least(length: int, make: Callable[[], str]) -> str:
    """Join texts of ``make`` until they have ``length`` bytes."""
    parts: list[str] = []
    size = 0
    while size < length:
        parts.append(make())
        size += len(parts[-1])
    return "".join(parts)


def filler(rng: random.Random, length: int) -> str:
    """Return exactly ``length`` bytes of filler; the first sentence is cut at its front so that the end is whole."""
    text = at_least(length, lambda: sentence(rng))
    return text[len(text) - length :]


def proper_name(rng: random.Random) -> str:
    """Return an invented name of two or three syllables, capitalised."""
    syllables = (word(rng, "onsets") + word(rng, "vowels") for _ in range(rng.choice((2, 2, 3))))
    return "".join(syllables).capitalize() + rng.choice("nrlsm")


def place_name(rng: random.Random) -> str:
    """Return an invented town, capitalised."""
    return (word(rng, "onsets") + word(rng, "vowels")).capitalize() + rng.choice("nrlsm") + word(rng, "endings")


def distinct(make: Callable[[random.Random], str], rng: random.Random, count: int) -> list[str]:
    """Return ``count`` different draws of ``make``, in the order drawn."""
    seen: dict[str, None] = {}
    while len(seen) < count:
        seen.setdefault(make(rng))
    return list(seen)


def hide(rng: random.Random, records: list[str], room: int, fill: Filler = filler) -> str:
    """Scatter ``records`` over filler, in random order, to ``room`` bytes in all.

    Every record stands in brackets between two pieces of filler of random length.

    Raises:
        ValueError: the records alone do not fit ``room``.
    """
    marked = [f"[{record}] " for record in records]
    rng.shuffle(marked)
    spare = room - sum(map(len, marked))
    if spare < 0:
        raise ValueError(f"{len(records)} records need {room - spare} bytes; {room} are available")
    cuts = sorted(rng.randint(0, spare) for _ in marked)
    text = fill(rng, spare)
    pieces: list[str] = []
    last = 0
    for cut, record in zip(cuts, marked, strict=True):
        edge = max(text.find(" ", cut) + 1 or spare, last)
        pieces += (text[last:edge], record)
        last = edge
    return "".join([*pieces, text[last:]])
