"""A generated story that keeps coming back to the same facts about the same people.

Twenty-four invented people each have a home, a trade, a keepsake and a confidant: 96 facts. Every telling sentence
states one of them, drawn at random, so the share of facts already told grows with the position, and a reader that uses
its context predicts ever more of the text. The facts are invented, so nothing but the context can give them.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from longdecode.evals.generators import prose
from longdecode.evals.generators.episode import Episode

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
    """One fact as a text states it: where its value starts, and where its sentence ends."""

    person: str
    attribute: str
    value: str
    start: int
    end: int


def narrative(rng: random.Random, total_bytes: int, continuation_bytes: int, cast: int = PEOPLE) -> Episode:
    """A story of ``cast`` people and exactly ``total_bytes`` bytes; its last ``continuation_bytes`` are the answer."""
    facts = _cast(rng, cast)
    people = sorted({person for person, _ in facts})
    parts: list[str] = []
    size = 0
    while size < total_bytes:
        parts.append(_telling(rng, facts, people) if rng.random() >= _FILLER_SHARE else prose.sentence(rng))
        size += len(parts[-1])
    text = "".join(parts)[:total_bytes]
    cut = total_bytes - continuation_bytes
    return Episode(text[:cut], "", text[cut:])


def statements(text: str) -> list[Statement]:
    """Every fact that a text states in a whole sentence, in order."""
    found = [
        Statement(match[1], attribute, match[2], match.start(2), match.end())
        for attribute, pattern in _STATEMENTS
        for match in pattern.finditer(text)
    ]
    return sorted(found, key=lambda statement: statement.end)


def retold(text: str) -> list[Statement]:
    """The statements of a text whose fact it has told before."""
    told: set[tuple[str, str]] = set()
    again: list[Statement] = []
    for statement in statements(text):
        fact = (statement.person, statement.attribute)
        if fact in told:
            again.append(statement)
        told.add(fact)
    return again


def check_statements(known_text: str, completion: str) -> tuple[bool, ...]:
    """For each fact a completion states about which the text so far has spoken: does it agree with the first telling?

    A fact told for the first time is free invention and is not marked; it binds what follows.
    """
    told: dict[tuple[str, str], str] = {}
    results: list[bool] = []
    for statement in statements(known_text + completion):
        fact = (statement.person, statement.attribute)
        if fact in told and statement.end > len(known_text):
            results.append(told[fact] == statement.value)
        told.setdefault(fact, statement.value)
    return tuple(results)


def _cast(rng: random.Random, size: int) -> dict[tuple[str, str], str]:
    people = prose.distinct(prose.proper_name, rng, size)
    facts: dict[tuple[str, str], str] = {}
    for person in people:
        facts[person, "home"] = prose.place_name(rng)
        facts[person, "trade"] = rng.choice(prose.TRADES)
        facts[person, "keepsake"] = f"{rng.choice(prose.ADJECTIVES)} {rng.choice(prose.NOUNS)}"
        facts[person, "confidant"] = rng.choice([other for other in people if other != person])
    return facts


def _telling(rng: random.Random, facts: dict[tuple[str, str], str], people: list[str]) -> str:
    person = rng.choice(people)
    attribute = rng.choice(tuple(_TELLINGS))
    return rng.choice(_TELLINGS[attribute]).format(n=person, v=facts[person, attribute])
