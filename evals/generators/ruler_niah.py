"""RULER's needles in a haystack: keys with values hidden in noise, in essays, or among needles of other keys.

Source: github NVIDIA/RULER, scripts/data/synthetic/niah.py and scripts/synthetic.yaml. Deviations: keys come from this
project's word lists, not from wonderwords'; sentences of essays end at ``.``, ``!`` or ``?``, not where NLTK says.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from longdecode.evals.generators.ruler_question import NIAH, NIAH_ONE, NOISE, RulerQuestion, fill
from longdecode.evals.generators.ruler_vocabulary import adjective_noun

Kind = Literal["words", "numbers", "uuids"]
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_DEPTHS = tuple(round(100 * i / 39) for i in range(40))  # percent of the essay's sentences


@dataclass(frozen=True, slots=True)
class NiahSpec:
    """Set what is hidden and asked: haystack, kinds of key and value, keys, values a key, keys asked for."""

    haystack: Literal["noise", "essay", "needle"]
    key_kind: Kind = "words"
    value_kind: Kind = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1

    @property
    def needles(self) -> int:
        """Needles hidden, other than those a haystack of needles is made of."""
        return max(self.keys, self.queries) * self.values


def niah(rng: random.Random, spec: NiahSpec, size: int, essay: Sequence[str] = ()) -> RulerQuestion:
    """Hide the needles and ask for some.

    Args:
        size: lines of haystack (noise, needles), or words (essay).
        essay: words of the essays, in order; repeated where ``size`` asks for more.
    """
    keys = [_random(rng, spec.key_kind) for _ in range(max(spec.keys, spec.queries))]
    values = [[_random(rng, spec.value_kind) for _ in range(spec.values)] for _ in keys]
    needles = [needle(spec.value_kind, key, value) for key, own in zip(keys, values, strict=True) for value in own]
    rng.shuffle(needles)
    in_essay = spec.haystack == "essay"
    context = _in_essay(rng, needles, essay, size) if in_essay else _in_lines(rng, needles, spec, size)
    asked = rng.sample(range(len(keys)), spec.queries)
    answers = tuple(value for i in asked for value in values[i])
    return ask(spec, context, [keys[i] for i in asked], answers)


def needle(value_kind: Kind, key: str, value: str) -> str:
    """The sentence that is hidden."""
    return f"One of the special magic {value_kind} for {key} is: {value}."


def ask(spec: NiahSpec, context: str, queries: Sequence[str], answers: tuple[str, ...]) -> RulerQuestion:
    """The question about a context; one value is asked for in the singular."""
    query = queries[0] if len(queries) == 1 else f"{', '.join(queries[:-1])}, and {queries[-1]}"
    one = spec.queries * spec.values == 1
    kind = spec.value_kind[:-1] if one else spec.value_kind
    return fill(NIAH_ONE if one else NIAH, answers, kind=kind, context=context, query=query)


def _in_lines(rng: random.Random, needles: Sequence[str], spec: NiahSpec, size: int) -> str:
    if spec.haystack == "noise":
        lines = [NOISE] * size
    else:
        kinds = (spec.key_kind, spec.value_kind)
        lines = [needle(spec.value_kind, *(_random(rng, kind) for kind in kinds)) for _ in range(size)]
    # From the back, so that a place drawn means a place in the haystack alone.
    for place, text in zip(sorted(rng.sample(range(size), len(needles)), reverse=True), needles, strict=True):
        lines.insert(place, text)
    return "\n".join(lines)


def _in_essay(rng: random.Random, needles: Sequence[str], essay: Sequence[str], size: int) -> str:
    repeats = -(-size // len(essay))
    sentences = _SENTENCE_END.split(" ".join((list(essay) * repeats)[:size]).strip())
    places = sorted(len(sentences) * depth // 100 for depth in rng.sample(_DEPTHS, len(needles)))
    parts: list[str] = []
    for start, end, text in zip([0, *places], places, needles, strict=False):
        parts += [" ".join(sentences[start:end]), text]
    return " ".join([*parts, " ".join(sentences[places[-1] :])])


def _random(rng: random.Random, kind: Kind) -> str:
    if kind == "words":
        return adjective_noun(rng)
    if kind == "numbers":
        return str(rng.randint(1_000_000, 9_999_999))
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
