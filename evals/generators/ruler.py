"""RULER's questions: needles in a haystack, chains of variables, word counts, and questions on documents.

Source: Hsieh et al. 2024 (RULER, arXiv 2404.06654); github NVIDIA/RULER, scripts/data/synthetic/{niah,
variable_tracking,common_words_extraction,freq_words_extraction,qa}.py and scripts/synthetic.yaml. Deviations: keys come
from this project's word lists, not from wonderwords'; sentences of essays end at ``.``, ``!`` or ``?``, not where NLTK
says; the coded text is as long as fits, where the original stops at a multiple of a 32nd of the length.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import string
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from longdecode.evals.config_values import read_yaml
from longdecode.evals.generators.prose import Episode, distinct, letters, word

TEMPLATES: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_name("ruler.yaml"))
"""Texts of each kind of task, with ``{...}`` for what a question fills in, and the tokens that it may generate."""
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
HOPS = 4
EXAMPLE_TOKENS = 500
"""The worked example of variable tracking is as long as fits so many tokens."""
COMMON = 10
CODED_LETTERS = 6
LEAST_CODED_WORDS = 100
"""With fewer the third and the fourth word may come equally often."""
LONG_FROM_TOKENS = 4096
Kind = Literal["words", "numbers", "uuids"]
_LETTERS, EXAMPLE_LETTERS = 5, 3
_ZETA_2 = math.pi**2 / 6  # word k of a coded text comes with probability k**-2 over this
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_DEPTHS = tuple(round(100 * i / 39) for i in range(40))  # percent of the essay's sentences


def fill(template: str, answers: tuple[str, ...], **values: object) -> Episode:
    """Return a question from a template; braces inside the values are text.

    An episode's question is the beginning of the answer, which RULER writes after a model's chat template; what the
    prompt itself asks comes after the haystack's last line.
    """
    prompt = TEMPLATES[template]["prompt"]
    question = prompt.partition("{context}")[2].format(**values).lstrip("\n")
    prefix = TEMPLATES[template]["answer_prefix"].format(**values)
    return Episode(prompt.format(**values), prefix, "", answers, len(question))


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


def niah(rng: random.Random, size: int, spec: NiahSpec, essay: Sequence[str] = ()) -> Episode:
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
    """Return the sentence that is hidden."""
    return f"One of the special magic {value_kind} for {key} is: {value}."


def ask(spec: NiahSpec, context: str, queries: Sequence[str], answers: tuple[str, ...]) -> Episode:
    """Ask about a context; one value is asked for in the singular."""
    query = queries[0] if len(queries) == 1 else f"{', '.join(queries[:-1])}, and {queries[-1]}"
    one = spec.queries * spec.values == 1
    kind = spec.value_kind[:-1] if one else spec.value_kind
    return fill("niah_one" if one else "niah", answers, kind=kind, context=context, query=query)


def variable_tracking(rng: random.Random, size: int, example_size: int) -> Episode:
    """Hide a chain of five variables among ``size`` lines of noise, after an example among ``example_size``."""
    example, question = variable_chain(rng, example_size, EXAMPLE_LETTERS), variable_chain(rng, size, _LETTERS)
    return replace(question, prompt=f"{example.text} {' '.join(example.items)}\n\n{question.prompt}")


def variable_chain(rng: random.Random, size: int, length: int) -> Episode:
    """Hide a chain of five variables, whose names have ``length`` letters, among ``size`` lines of noise."""
    names = distinct(partial(letters, count=length, alphabet=string.ascii_uppercase), rng, HOPS + 1)
    value = str(rng.randrange(10_000, 99_999))
    # The blank that ends every later assignment is in the official data.
    assigned = [f"VAR {names[0]} = {value}"]
    assigned += [f"VAR {name} = VAR {before} " for before, name in itertools.pairwise(names)]
    lines = [NOISE] * size
    for earlier, place in enumerate(sorted(rng.sample(range(size), len(assigned)))):
        lines.insert(place + earlier, assigned[earlier])
    return fill("vt", tuple(names), context="\n".join(lines), query=value, count=len(names))


def common_words(rng: random.Random, size: int, words: Sequence[str], long: bool) -> Episode:
    """List ``size`` different words, ten of them repeated more, after a worked example.

    Args:
        words: vocabulary of at least ``size`` words.
        long: repeats of a long context: 30 and 3 times, where a short one has 6 and 1.
    """
    example, listed = _list(rng, 40 if long else 20, words, 10 if long else 3, 3 if long else 1)
    context, answers = _list(rng, size, words, 30 if long else 6, 3 if long else 1)
    shown = fill("cwe", (), context=example).text + " " + _numbered(listed) + "\n"
    question = fill("cwe", answers, context=context)
    return replace(question, prompt=shown + question.prompt)


def frequent_words(rng: random.Random, size: int, vocabulary: int) -> Episode:
    """Make a coded text of about ``size`` words, whose frequencies fall with the square of their rank; dots come first.

    Args:
        vocabulary: different words to draw from.
    """
    ranked = sorted(distinct(partial(letters, count=CODED_LETTERS), rng, vocabulary))
    rng.shuffle(ranked)
    ranked[0] = "..."
    coded = [word for rank, word in enumerate(ranked, start=1) for _ in range(int(size * rank**-2 / _ZETA_2))]
    rng.shuffle(coded)
    return fill("fwe", tuple(ranked[1:4]), context=" ".join(coded))


@dataclass(frozen=True, slots=True)
class DocumentQuestion:
    """A question with its answers, the documents that hold them and those to draw first (indices)."""

    query: str
    answers: tuple[str, ...]
    documents: tuple[int, ...]
    nearby: tuple[int, ...] = ()


def question_answering(rng: random.Random, size: int, question: DocumentQuestion, documents: Sequence[str]) -> Episode:
    """Ask after ``size`` documents in random order; more than there are come repeated."""
    if size >= len(documents):
        shown = (list(documents) * -(-size // len(documents)))[:size]
    else:
        wanted = size - len(question.documents)
        if wanted <= len(question.nearby):
            others = rng.sample(question.nearby, wanted)
        else:
            kept = {*question.documents, *question.nearby}
            rest = [i for i in range(len(documents)) if i not in kept]
            others = [*question.nearby, *rng.sample(rest, wanted - len(question.nearby))]
        shown = [documents[i] for i in (*question.documents, *others)]
    rng.shuffle(shown)
    context = "\n\n".join(f"Document {i}:\n{document}" for i, document in enumerate(shown, start=1))
    return fill("qa", question.answers, context=context, query=question.query)


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
        return f"{word(rng, 'ruler_adjectives')}-{word(rng, 'ruler_nouns')}"
    return str(rng.randint(1_000_000, 9_999_999)) if kind == "numbers" else random_uuid(rng)


def random_uuid(rng: random.Random) -> str:
    """Draw an identifier."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _list(rng: random.Random, size: int, words: Sequence[str], common: int, other: int) -> tuple[str, tuple[str, ...]]:
    chosen = rng.sample(words, size)
    listed = chosen[:COMMON] * common + chosen[COMMON:] * other
    rng.shuffle(listed)
    return _numbered(listed), tuple(chosen[:COMMON])


def _numbered(words: Sequence[str]) -> str:
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, start=1))
