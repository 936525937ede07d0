"""Record look-ups hidden in prose: needles, several keys, two hops, and many questions in one generation.

A record reads ``[kxqz=4821]``, a pointer ``[kxqz>mbra]``. A question block lists keys after ``?``; the answer repeats
each key with its value: ``? kxqz mbra`` gives ``kxqz=4821 mbra=0077``. A key with ``>`` asks for the value behind its
pointer: ``? kxqz>`` gives ``kxqz>mbra=0077``. ``evals.generators.wording`` has the same in words.
"""

from __future__ import annotations

import random
from typing import Literal

from longdecode.evals.generators.prose import Episode, distinct, hide
from longdecode.evals.generators.wording import BYTES, Wording, wording_of

Variant = Literal["single", "multikey", "two_hop"]

MAX_RECORDS = 96


def value(rng: random.Random) -> str:
    """Return four random digits."""
    return f"{rng.randrange(10_000):04d}"


def record_count(total_chars: int, wording: Wording = BYTES) -> int:
    """Return how many records an episode hides: 96 from 2,048 bytes on (in words from 7,300), fewer below."""
    return max(2, min(MAX_RECORDS, total_chars * 9 // 16 // wording.record_chars))


def recall(rng: random.Random, variant: Variant, total_chars: int, wording: Wording = BYTES) -> Episode:
    """Make one short question over one episode of exactly ``total_chars`` characters.

    Args:
        rng: random numbers of the episode.
        variant: ``single`` hides four records and asks for one; ``multikey`` hides ``record_count`` and asks for four;
            ``two_hop`` hides pointers and records in equal number and asks for the value behind one pointer.
        total_chars: length of prompt, question and answer.
        wording: how records are written.

    Raises:
        ValueError: the records do not fit.
    """
    count = 4 if variant == "single" else record_count(total_chars, wording) // (2 if variant == "two_hop" else 1)
    table = _table(rng, count, wording)
    pointers: dict[str, str] = {}
    if variant == "two_hop":
        sources = [name for name in distinct(wording.make_key, rng, 2 * count) if name not in table][:count]
        pointers = dict(zip(sources, rng.sample(list(table), count), strict=False))
        asked = [rng.choice(list(pointers)) + ">"]
    else:
        asked = [rng.choice(list(table))] if variant == "single" else rng.sample(list(table), min(4, len(table)))
    return _ask(rng, table, pointers, asked, total_chars, wording)


def longgen(rng: random.Random, questions: int, total_chars: int, wording: Wording = BYTES) -> Episode:
    """Make ``questions`` look-ups answered in one generation, LongGenBench's shape; they are part of the prompt."""
    table = _table(rng, max(record_count(total_chars, wording), questions), wording)
    episode = _ask(rng, table, {}, rng.sample(list(table), questions), total_chars, wording)
    block = episode.question[:-1]
    return Episode(episode.prompt + block, "\n", episode.answer, episode.items, len(block))


def marks(items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
    """Mark which of the expected items the first line of a completion gives; a key's first mention counts."""
    wording = wording_of(items)
    given: dict[str, str] = {}
    for entry in wording.given(completion):
        name, _, rest = entry.partition(wording.assign)
        given.setdefault(name, rest)
    expected = (item.partition(wording.assign) for item in items)
    return tuple(given.get(name) == rest for name, _, rest in expected)


def records_of(table: dict[str, str], pointers: dict[str, str], wording: Wording = BYTES) -> list[str]:
    """Return the records and pointers as they are written, without brackets."""
    return [wording.record.format(key=k, value=v) for k, v in table.items()] + [
        wording.pointer.format(key=k, target=v) for k, v in pointers.items()
    ]


def _table(rng: random.Random, count: int, wording: Wording) -> dict[str, str]:
    return {name: value(rng) for name in distinct(wording.make_key, rng, count)}


def _ask(
    rng: random.Random,
    table: dict[str, str],
    pointers: dict[str, str],
    asked: list[str],
    total_chars: int,
    wording: Wording,
) -> Episode:
    question = wording.question("?", asked)
    items = tuple(wording.item(name, table, pointers) for name in asked)
    answer = wording.answer(items)
    prompt = hide(rng, records_of(table, pointers, wording), total_chars - len(question) - len(answer))
    return Episode(prompt, question, answer, items)
