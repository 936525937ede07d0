"""RULER's variable tracking: a chain of assignments hidden in noise, after one worked example.

Source: github NVIDIA/RULER, scripts/data/synthetic/variable_tracking.py.
"""

from __future__ import annotations

import itertools
import random
import string
from dataclasses import replace

from longdecode.evals.generators.ruler_question import NOISE, VARIABLE_TRACKING, RulerQuestion, fill

HOPS = 4
EXAMPLE_TOKENS = 500
"""The worked example is as long as fits so many tokens."""
_LETTERS, _EXAMPLE_LETTERS = 5, 3


def variable_tracking(rng: random.Random, size: int, example_size: int) -> RulerQuestion:
    """A chain of five variables among ``size`` lines of noise, after an example among ``example_size``."""
    example = _chain(rng, example_size, _EXAMPLE_LETTERS)
    question = _chain(rng, size, _LETTERS)
    shown = f"{example.text} {' '.join(example.answers)}\n\n"
    return replace(question, prompt=shown + question.prompt)


def tracking_example(rng: random.Random, size: int) -> RulerQuestion:
    """The worked example alone."""
    return _chain(rng, size, _EXAMPLE_LETTERS)


def _chain(rng: random.Random, size: int, letters: int) -> RulerQuestion:
    names: list[str] = []
    while len(names) <= HOPS:
        name = "".join(rng.choices(string.ascii_uppercase, k=letters))
        if name not in names:
            names.append(name)
    value = str(rng.randrange(10_000, 99_999))
    # The blank that ends every later assignment is in the official data.
    assigned = [f"VAR {names[0]} = {value}"]
    assigned += [f"VAR {name} = VAR {before} " for before, name in itertools.pairwise(names)]
    lines = [NOISE] * size
    for earlier, place in enumerate(sorted(rng.sample(range(size), len(assigned)))):
        lines.insert(place + earlier, assigned[earlier])
    return fill(VARIABLE_TRACKING, tuple(names), context="\n".join(lines), query=value, count=len(names))
