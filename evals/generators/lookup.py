"""Record look-ups hidden in prose: needles, several keys, two hops, and many questions in one generation.

A record reads ``[kxqz=4821]``, a pointer ``[kxqz>mbra]``. A question block lists keys after ``?``; the answer repeats
each key with its value: ``? kxqz mbra`` gives ``kxqz=4821 mbra=0077``. A key with ``>`` asks for the value behind its
pointer: ``? kxqz>`` gives ``kxqz>mbra=0077``.
"""

from __future__ import annotations

import random
from typing import Literal

from longdecode.evals.generators.episode import Episode
from longdecode.evals.generators.prose import Filler, distinct, filler, hide

Variant = Literal["single", "multikey", "two_hop"]

MAX_RECORDS = 96
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_RECORD_BYTES = len("[abcd=0123] ")


def key(rng: random.Random) -> str:
    """Four random letters."""
    return "".join(rng.choices(_LETTERS, k=4))


def value(rng: random.Random) -> str:
    """Four random digits."""
    return f"{rng.randrange(10_000):04d}"


def record_count(total_bytes: int) -> int:
    """Records hidden in an episode of this length: 96 from 2,048 bytes on, fewer below, so that the rest has room."""
    return max(2, min(MAX_RECORDS, total_bytes * 9 // 16 // _RECORD_BYTES))


def recall(rng: random.Random, variant: Variant, total_bytes: int, fill: Filler = filler) -> Episode:
    """One short question over one episode of exactly ``total_bytes`` bytes.

    Args:
        variant: ``single`` hides four records and asks for one; ``multikey`` hides ``record_count`` and asks for four;
            ``two_hop`` hides pointers and records in equal number and asks for the value behind one pointer.
    """
    if variant == "single":
        table = _table(rng, 4)
        return _ask(rng, table, {}, [rng.choice(list(table))], total_bytes, fill)
    if variant == "multikey":
        table = _table(rng, record_count(total_bytes))
        return _ask(rng, table, {}, rng.sample(list(table), min(4, len(table))), total_bytes, fill)
    if variant == "two_hop":
        half = record_count(total_bytes) // 2
        table = _table(rng, half)
        sources = [name for name in distinct(key, rng, 2 * half) if name not in table][:half]
        pointers = dict(zip(sources, rng.sample(list(table), half), strict=False))
        return _ask(rng, table, pointers, [rng.choice(list(pointers)) + ">"], total_bytes, fill)
    raise ValueError(f"unknown recall variant {variant!r}: single, multikey or two_hop")


def longgen(rng: random.Random, questions: int, total_bytes: int, fill: Filler = filler) -> Episode:
    """``questions`` look-ups answered in one generation, LongGenBench's shape; the questions are part of the prompt."""
    table = _table(rng, max(record_count(total_bytes), questions))
    asked = rng.sample(list(table), questions)
    episode = _ask(rng, table, {}, asked, total_bytes, fill)
    return Episode(episode.prompt + episode.question[:-1], "\n", episode.answer, episode.items)


def marks(items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
    """Which of the expected ``key=value`` items the first line of a completion gives; a key's first mention counts."""
    given: dict[str, str] = {}
    for word in completion.split("\n", 1)[0].split():
        name, _, rest = word.partition("=")
        given.setdefault(name, rest)
    expected = (item.partition("=") for item in items)
    return tuple(given.get(name) == rest for name, _, rest in expected)


def solve(name: str, table: dict[str, str], pointers: dict[str, str]) -> str:
    """The item that answers one asked key."""
    if name.endswith(">"):
        target = pointers[name[:-1]]
        return f"{name}{target}={table[target]}"
    return f"{name}={table[name]}"


def records_of(table: dict[str, str], pointers: dict[str, str]) -> list[str]:
    """The records and pointers as they are written, without brackets."""
    return [f"{k}={v}" for k, v in table.items()] + [f"{k}>{v}" for k, v in pointers.items()]


def _table(rng: random.Random, count: int) -> dict[str, str]:
    return {name: value(rng) for name in distinct(key, rng, count)}


def _ask(
    rng: random.Random,
    table: dict[str, str],
    pointers: dict[str, str],
    asked: list[str],
    total_bytes: int,
    fill: Filler,
) -> Episode:
    question = "\n? " + " ".join(asked) + "\n"
    items = tuple(solve(name, table, pointers) for name in asked)
    answer = " ".join(items) + "\n"
    prompt = hide(rng, records_of(table, pointers), total_bytes - len(question) - len(answer), fill)
    return Episode(prompt, question, answer, items)
