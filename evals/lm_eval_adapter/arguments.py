"""Turn lm-eval's requests into the engine's terms: generation arguments, stop texts, batches of a kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lm_eval.models.utils import normalize_gen_kwargs

from longdecode.engine.errors import ConfigError
from longdecode.engine.sampling import Sampling
from longdecode.evals.names import unknown_name

T = TypeVar("T")

_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_KINDS = {"do_sample": "true or false", "until": "a text or a list of texts"} | dict.fromkeys(
    _LENGTHS, "a whole number"
)
_GENERATION = ("until", "max_gen_toks", "do_sample", "temperature", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class Generation:
    """Set how one request is continued: sampling, most tokens, texts that end it."""

    sampling: Sampling
    max_new_tokens: int
    until: tuple[str, ...]


def read_generation(values: Mapping[str, Any], default_tokens: int) -> Generation:
    """The generation arguments of a request.

    Args:
        values: as a task gives them, under any of lm-eval's names for the number of tokens.
        default_tokens: tokens to generate where none are asked for.

    Raises:
        ConfigError: an argument that the engine does not implement, or a value out of range.
    """
    for name, value in values.items():
        if name in (*_GENERATION, *_LENGTHS) and not _is_usable(name, value):
            raise ConfigError(f"generation_kwargs: {name} is {value!r}, expected {_KINDS.get(name, 'a number')}")
    given = dict(normalize_gen_kwargs({k: v for k, v in values.items() if v is not None}, default_tokens))
    for name in given:
        if name not in _GENERATION:
            raise ConfigError(f"generation_kwargs: {unknown_name('argument', name, _GENERATION)}")
    tokens = int(given["max_gen_toks"])
    if tokens < 1:
        raise ConfigError(f"generation_kwargs: max_gen_toks is {tokens}, expected 1 or more")
    greedy = not given["do_sample"]
    temperature = 0.0 if greedy else float(given.get("temperature", 1.0))
    sampling = Sampling(temperature, float(given.get("top_p", 1.0)), float(given.get("min_p", 0.0)))
    return Generation(sampling, tokens, tuple(text for text in given["until"] if text))


def _is_usable(name: str, value: Any) -> bool:
    """Tell whether a value is of the kind that its name asks for; null is absent."""
    if name == "do_sample" or value is None:
        return isinstance(value, bool | None)
    if name == "until":
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(t, str | None) for t in value))
    return isinstance(value, int if name in _LENGTHS else int | float) and not isinstance(value, bool)


def cut_before(text: str, until: Sequence[str]) -> str:
    """The text up to the first place where any of the stop texts begins."""
    places = [place for stop in until if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


def batches(lengths: Sequence[int], kinds: Sequence[T], size: int) -> Iterator[list[int]]:
    """Indices of requests, longest first, at most ``size`` at once and never two kinds in one batch."""
    for kind in dict.fromkeys(kinds):
        members = sorted((i for i, other in enumerate(kinds) if other == kind), key=lambda i: -lengths[i])
        for start in range(0, len(members), size):
            yield members[start : start + size]
