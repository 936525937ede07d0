"""Random identifiers in a JSON object, one of which is asked for.

Source: Yen et al. 2024 (HELMET, arXiv 2410.02694) and github princeton-nlp/HELMET, data.py (load_json_kv), for the
order of object, instruction, two answered keys and the asked one; Liu et al. 2023 (Lost in the Middle, arXiv
2307.03172) for the task. Deviations: the wording is this project's.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EXAMPLES = 2
_INSTRUCTION = "Each key of the JSON object above has one value. Give the value of the key that is asked for."


@dataclass(frozen=True, slots=True)
class KeyValueQuestion:
    """A prompt with the object and the answered keys, the question behind it, and the value that answers it."""

    prompt: str
    question: str
    value: str


def json_kv(rng: random.Random, pairs: int, depth: float) -> KeyValueQuestion:
    """Make an object and ask for one of its keys.

    Args:
        rng: random numbers of the object.
        pairs: pairs of the object; at least ``EXAMPLES`` and the asked one.
        depth: share of the other pairs that stand before the asked one, 0 to 1.
    """
    table = {_identifier(rng): _identifier(rng) for _ in range(pairs)}
    keys = list(table)
    asked = keys.pop(round(depth * (pairs - 1)))
    return ask(table, asked, rng.sample(keys, EXAMPLES))


def ask(table: Mapping[str, str], asked: str, answered: Sequence[str]) -> KeyValueQuestion:
    """Ask for one key of an object, some others being answered first."""
    shown = "\n\n".join(f"{_question(key)} {table[key]}" for key in answered)
    return KeyValueQuestion(
        f"{json.dumps(table, indent=0)}\n\n{_INSTRUCTION}\n\n{shown}\n\n", _question(asked), table[asked]
    )


def _question(key: str) -> str:
    return f"Key: {key}\nIts value:"


def _identifier(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
