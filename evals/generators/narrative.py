"""A generated story that keeps coming back to the same facts about the same people.

Twenty-four invented people each have a home, a trade, a keepsake and a confidant: 96 facts. Every telling sentence
states one of them, drawn at random, so the share of facts already told grows with the position, and a reader that uses
its context predicts ever more of the text. The facts are invented, so nothing but the context can give them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from longdecode.evals.generators import prose
from longdecode.evals.generators.prose import word

PEOPLE = 24
_TELLINGS = {
    "home": ("{n} lives in {v}. ", "{n} walked home to {v}. ", "{n} had a letter from {v}. "),
    "trade": ("{n} works as a {v}. ", "{n} earns bread as a {v}. ", "{n} was a {v} all along. "),
    "keepsake": ("{n} keeps a {v}. ", "{n} would not sell the {v}. ", "{n} sat down by the {v}. "),
    "confidant": ("{n} trusts {v}. ", "{n} went to see {v}. ", "{n} asked the way of {v}. "),
}
_FILLER_SHARE = 0.2
_STATEMENTS = [
    (attribute, re.compile(re.escape(telling.strip()).replace(r"\{n\}", "([A-Z][a-z]+)").replace(r"\{v\}", "([^.]+)")))
    for attribute, tellings in _TELLINGS.items()
    for telling in tellings
]


@dataclass(frozen=True, slots=True)
class Statement:
    """One fact, a person and an attribute, as a text states it: where its value starts, and its sentence ends."""

    fact: tuple[str, str]
    value: str
    start: int
    end: int


def narrative(rng: random.Random, total_bytes: int, cast: int = PEOPLE) -> str:
    """Tell of ``cast`` people in exactly ``total_bytes`` bytes."""
    facts = _cast(rng, cast)
    people = sorted({person for person, _ in facts})

    def tell() -> str:
        return _telling(rng, facts, people) if rng.random() >= _FILLER_SHARE else prose.sentence(rng)

    return prose.at_least(total_bytes, tell)[:total_bytes]


def statements(text: str) -> list[Statement]:
    """Return every fact that a text states in a whole sentence, in order."""
    found = [
        Statement((match[1], attribute), match[2], match.start(2), match.end())
        for attribute, pattern in _STATEMENTS
        for match in pattern.finditer(text)
    ]
    return sorted(found, key=lambda statement: statement.end)


def retold(text: str) -> list[Statement]:
    """Return the statements of a text whose fact it has told before."""
    return [statement for statement, _ in _again(text)]


def check_statements(known_text: str, completion: str) -> tuple[bool, ...]:
    """Mark each fact of a completion of which the text so far has spoken: does it agree with the first telling?

    A fact told for the first time is free invention and is not marked; it binds what follows.
    """
    again = _again(known_text + completion)
    return tuple(statement.value == first for statement, first in again if statement.end > len(known_text))


def _again(text: str) -> Iterator[tuple[Statement, str]]:
    """Yield each statement of a fact told before, with the value of the first telling."""
    told: dict[tuple[str, str], str] = {}
    for statement in statements(text):
        if statement.fact in told:
            yield statement, told[statement.fact]
        told.setdefault(statement.fact, statement.value)


def _cast(rng: random.Random, size: int) -> dict[tuple[str, str], str]:
    people = prose.distinct(prose.proper_name, rng, size)
    facts: dict[tuple[str, str], str] = {}
    for person in people:
        facts[person, "home"] = prose.place_name(rng)
        facts[person, "trade"] = word(rng, "trades")
        facts[person, "keepsake"] = f"{word(rng, 'adjectives')} {word(rng, 'nouns')}"
        facts[person, "confidant"] = rng.choice([other for other in people if other != person])
    return facts


def _telling(rng: random.Random, facts: dict[tuple[str, str], str], people: list[str]) -> str:
    person = rng.choice(people)
    attribute = rng.choice(tuple(_TELLINGS))
    return rng.choice(_TELLINGS[attribute]).format(n=person, v=facts[person, attribute])
