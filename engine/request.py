"""Define what goes into a generation and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from longdecode.engine.errors import ConfigError
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.prefill import Observed

if TYPE_CHECKING:
    from longdecode.engine.attention import AttentionMethod


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to continue: ``forced_ids`` are fed and scored, then up to ``max_new_tokens`` are generated.

    ``top_tokens`` asks for that many likeliest tokens at each forced place; ``compared_ids`` ``[N, K]`` for the
    log-probabilities of the ``K`` tokens named there.
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    forced_ids: tuple[int, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    seed: int = 0
    top_tokens: int = 0
    compared_ids: Tensor | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ConfigError("a request's prompt is empty; at least one token is needed")
        if self.max_new_tokens < 0:
            raise ConfigError(f"max_new_tokens is {self.max_new_tokens}, expected 0 or more")
        if self.compared_ids is not None and len(self.compared_ids) != len(self.forced_ids):
            raise ConfigError(
                f"compared_ids names tokens for {len(self.compared_ids)} places, {len(self.forced_ids)} are forced"
            )

    @property
    def continuation_tokens(self) -> int:
        """Tokens that may follow the prompt, forced and generated."""
        return len(self.forced_ids) + self.max_new_tokens

    @property
    def total_tokens(self) -> int:
        """Tokens that the whole sequence may have."""
        return len(self.prompt_ids) + self.continuation_tokens


@dataclass(frozen=True, slots=True)
class Completion:
    """Hold the result of one request.

    ``output_ids`` are the generated tokens, a stop token included. ``forced_logprobs[i]`` is the log-probability of
    ``forced_ids[i]`` given all before it, ``forced_greedy[i]`` whether no token was more probable.
    ``read_tokens_mean`` is the tokens read per KV head, layer and decode step; ``read_tokens_sparse`` the same over the
    KV heads that do not read everything by rule. The times are those of the whole batch, of a refilled one
    (``engine.refill``) those of the group's prefill and of the row; ``decode_steps`` counts the steps that this row
    took part in (the last token of a row is never fed), ``tokens_per_step`` the tokens that each of them added. Reads
    are per token.
    ``draft_counts`` holds counts of the proposer, such as drafts kept from n-grams.
    ``top_ids`` and ``top_logprobs`` ``[N, K]`` are the likeliest tokens at the forced places, ``compared_logprobs``
    ``[N, K]`` belong to the request's ``compared_ids``; on the CPU, ``None`` where not asked for.
    """

    output_ids: tuple[int, ...]
    forced_logprobs: tuple[float, ...]
    forced_greedy: tuple[bool, ...]
    finish_reason: Literal["stop", "length"]
    read_tokens_mean: float
    read_tokens_sparse: float
    prefill_ms: float
    decode_ms: float
    decode_steps: int
    tokens_per_step: float
    draft_counts: Mapping[str, int] = field(default_factory=dict)
    top_ids: Tensor | None = field(default=None, compare=False, repr=False)
    top_logprobs: Tensor | None = field(default=None, compare=False, repr=False)
    compared_logprobs: Tensor | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prefilled batch.

    One that was read densely (``maker`` is ``None``) serves many methods and budgets, each of which decodes in a copy.
    Otherwise ``maker`` is the method whose prefill rule or cache it has, and which alone can decode it. ``logits`` is
    ``[B, V]`` float32, after each row's last prompt token; ``observed`` is what prefill observers kept, by key and
    layer.
    """

    requests: tuple[Request, ...]
    cache: KVCache
    logits: Tensor
    prefill_ms: float
    observed: Observed = field(default_factory=dict)
    maker: AttentionMethod | None = None

    @property
    def steps(self) -> int:
        """Decode steps that its longest continuation takes."""
        return max(0, *(request.continuation_tokens - 1 for request in self.requests))

    def require_for(self, method: AttentionMethod) -> None:
        """Refuse a method that would decode something else than its own prompt.

        Raises:
            ConfigError: another method, or the method with other settings, made the prompt; the method prefills by a
                rule of its own and did not make it; what the method observes was not observed; the prompt is another
                model's, or was decoded in its own cache before.
        """
        again = f"read the requests with run() or prefill_for() and {method.name}"
        if self.maker is not None and self.maker.settings != method.settings:
            mine, other = method.name, self.maker.name
            if mine == other:
                mine, other = method.described, self.maker.described
            raise ConfigError(f"{mine} cannot decode a prompt that {other} made for itself; {again}")
        if self.maker is None and not method.prefills_densely:
            raise ConfigError(f"{method.name} prefills by a rule of its own, this prompt was read densely; {again}")
        if self.maker is None and {observer.key for observer in method.observers()} - set(self.observed):
            raise ConfigError(
                f"{method.name} must see the prefill, this prompt was read without it; name the method in "
                "prefill(requests, [method]), with the parameters that it decodes with"
            )
        if self.cache.config != method.config:
            raise ConfigError(f"{method.name} is made for another model than the one that read this prompt")
        lengths = [len(request.prompt_ids) for request in self.requests]
        if self.cache.positions.tolist() != lengths:
            raise ConfigError(f"this prompt was decoded in its own cache (keep_prompt=False) and is gone; {again}")
