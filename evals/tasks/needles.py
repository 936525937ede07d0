"""One value in a haystack that fills the context: passkeys at fixed depths, and HELMET's pairs of a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial

from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.generators.ruler import NOISE, random_uuid
from longdecode.evals.scoring.answer_text import substring_exact_match
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.fitting import fill_context

DEPTHS = (0, 25, 50, 75, 100)
"""Percent of the filler that comes before the key, one task each."""
DIGITS = 5
HEADER = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. I will quiz you about "
    "the important information there."
)
QUESTION = "What is the pass key? The pass key is "
PLACES = 6
"""Places of the asked pair, evenly spaced from the first pair to the last; samples take them in turn."""
EXAMPLES = 2
JSON_TOKENS = 100
INSTRUCTION = "Each key of the JSON object above has one value. Give the value of the key that is asked for."


class Passkey(Task):
    """Five digits hidden at one depth; the question is decoded through the method, which has to find them.

    A completion is right where its first number is the key. The original generates as many tokens as the key has
    digits: enough, whatever the tokenizer joins.

    Args:
        depth: percent of the filler before the key, 0 to 100.

    Source: Mohtashami and Jaggi 2023 (Landmark Attention, arXiv 2305.16300) for the task; github datamllab/LongLM,
    passkey_examples.jsonl and example.py, for the wording and the layout of lines.
    """

    stop_at_eos = True

    def __init__(self, depth: int, data: Data):
        super().__init__(data)
        self.depth = depth

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Hide one key each in as much filler as fits.

        Raises:
            UnsupportedCellError: not even one line of filler fits.
        """

        def make(index: int, lines: int) -> Sample:
            drawn = self.rng(context_tokens, seed, index).randrange(10 ** (DIGITS - 1), 10**DIGITS)
            key = str(drawn) if index >= 0 else "1" * DIGITS
            before = round(lines * self.depth / 100)
            return Sample(index, passkey_text(key, before, lines - before), QUESTION, DIGITS, None, key)

        return fill_context(self, make, 1, count, context_tokens, tokenizer)

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return 1 where the completion's first number is the key, else 0."""
        found = re.search(r"\d+", completion)
        return Score(float(found is not None and found.group() == sample.meta))


def passkey_text(key: str, before: int, after: int) -> str:
    """Return header, ``before`` lines of filler, the key and ``after`` lines; the question comes behind it."""
    hidden = f"The pass key is {key}. Remember it. {key} is the pass key."
    return "\n".join([HEADER, *[NOISE] * before, hidden, *[NOISE] * after])


class JsonKv(Task):
    """One value looked up among as many pairs as fit; the asked key is decoded through the method.

    Source: Yen et al. 2024 (HELMET, arXiv 2410.02694); github princeton-nlp/HELMET, data.py (load_json_kv) and
    configs/recall.yaml: object, instruction, two answered keys and the asked one, 100 tokens to generate, greedy, no
    chat template; Liu et al. 2023 (Lost in the Middle, arXiv 2307.03172) for the task. Deviations: the wording is this
    project's; the object is made for the model's tokenizer and this context, where the original has files of a fixed
    number of pairs; the answered keys are of the same object; the asked key is not prefilled.
    """

    metric = "substring_exact_match"
    stop_at_eos = True

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Ask for one key each of an object that fills the context.

        Raises:
            UnsupportedCellError: not even the answered keys and the asked one fit.
        """

        def make(index: int, pairs: int) -> Sample:
            rng = self.rng(context_tokens, seed, index)
            table = {random_uuid(rng): random_uuid(rng) for _ in range(pairs)}
            keys = list(table)
            asked = keys.pop(round(index % PLACES / (PLACES - 1) * (pairs - 1)))
            prompt, question, value = ask(table, asked, rng.sample(keys, EXAMPLES))
            return Sample(index, prompt, question, JSON_TOKENS, None, value)

        return fill_context(self, make, EXAMPLES + 1, count, context_tokens, tokenizer)

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return 1 where the value stands in the completion, else 0."""
        return Score(substring_exact_match(completion, sample.meta))


def ask(table: Mapping[str, str], asked: str, answered: Sequence[str]) -> tuple[str, str, str]:
    """Ask for one key of an object, some others being answered first: prompt, question, and the value."""
    question = "Key: {}\nIts value:".format
    shown = "\n\n".join(f"{question(key)} {table[key]}" for key in answered)
    return f"{json.dumps(table, indent=0)}\n\n{INSTRUCTION}\n\n{shown}\n\n", question(asked), table[asked]


SUITES: Mapping[str, Suite] = {
    "passkey": Suite({f"passkey_depth_{depth}": partial(Passkey, depth) for depth in DEPTHS}, question="decoded"),
    "json_kv": Suite({"json_kv": JsonKv}, question="decoded"),
}
