"""Share what methods with a token budget need: checked parameters, refusals, growing budgets, bytes of a selection."""

from __future__ import annotations

import difflib
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, Traffic
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.kv_cache import CacheShape, KVCache
from longdecode.engine.model_config import ModelConfig

Share = Annotated[float, Field(gt=0, le=1)] | None
"""Type of a knob ``share``: the budget grows with the context, ``None`` for a fixed one."""
KvCacheDtype = Literal["auto", "fp8"]
"""Type of a knob ``kv_cache_dtype``: keys and values as the model has them, or as ``full_fp8`` stores them."""
EXACT_LAYERS = 2
"""First layers that eight-bit storage leaves as they are, where some models' keys have biases in the hundreds."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A budget that follows the context: ``max(floor, floor(share * L))`` tokens where ``L`` are cached.

    In whole numbers, so that the device and the host agree to the token.
    """

    floor: int
    share: Fraction

    def at(self, tokens: int) -> int:
        """Return the budget at a length."""
        return max(self.floor, tokens * self.share.numerator // self.share.denominator)

    def of(self, lengths: Tensor) -> Tensor:
        """Return the budgets at integer lengths of any shape, on their device."""
        return (lengths * self.share.numerator // self.share.denominator).clamp(min=self.floor)


def exact_share(share: float) -> Fraction:
    """Return a share as a ratio of whole numbers up to 10 ** 9, the nearest to its decimals: 0.15 is 3/20.

    A length times such a number stays within 64 bits.
    """
    return Fraction(str(share)).limit_denominator(10**9)


class BudgetedMethod(AttentionMethod):
    """An attention method that reads at most ``budget_tokens`` per KV head in the layers it governs.

    A method whose ``Params`` have a ``share`` may grow: at ``L`` cached tokens, prompt and decoded ones, its budget is
    that of ``Growth``, the declared one its floor.
    """

    def __init__(self, params: Any, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config)
        self.budget_tokens = budget_tokens
        share = getattr(params, "share", None)
        self.growth = None if share is None else Growth(budget_tokens, exact_share(share))

    @property
    def settings(self) -> tuple[Any, ...]:
        """See ``AttentionMethod.settings``."""
        return *super().settings, self.budget_tokens

    @property
    def described(self) -> str:
        """See ``AttentionMethod.described``."""
        return f"{super().described} and a budget of {self.budget_tokens} tokens"

    def dense_layers(self) -> frozenset[int]:
        """See ``AttentionMethod.dense_layers``; the first ones, as many as the parameters say."""
        return frozenset(range(min(getattr(self.params, "dense_layers", 0), self.config.num_layers)))

    def budget_at(self, context_tokens: int) -> int:
        """Return the budget in tokens where so many are cached, the current one included."""
        return self.budget_tokens if self.growth is None else self.growth.at(context_tokens)

    def budget_of(self, layer: int, context_tokens: int) -> int:
        """See ``AttentionMethod.budget_of``; by default all layers have ``budget_at``."""
        return self.budget_at(context_tokens)

    def refuse_context(self, context_tokens: int) -> None:
        """Refuse a growing budget whose floor is over the context: the share would decide nothing.

        Raises:
            UnsupportedCellError: as said.
        """
        if self.growth is not None and self.budget_tokens > context_tokens:
            raise UnsupportedCellError(
                f"{self.name}: the budget's floor is {self.budget_tokens} tokens, the context {context_tokens}; a "
                f"share of {float(self.growth.share)} needs a floor under the context"
            )

    @classmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: Any) -> Self:
        """See ``AttentionMethod.from_budget``; constraints in the ``Annotated`` types of ``Params`` are checked."""
        params = build_params(cls.name, cls.Params, overrides)
        if budget_tokens is None:
            raise ConfigError(f"{cls.name} needs a budget in tokens")
        if budget_tokens < 1:
            raise ConfigError(f"{cls.name}: the budget is {budget_tokens} tokens, at least 1 is needed")
        minimum, unit = cls.minimum_budget(params)
        if budget_tokens < minimum:
            raise UnsupportedCellError(
                f"{cls.name} needs a budget of at least {minimum} tokens ({unit}), got {budget_tokens}"
            )
        method = cls(params, config, budget_tokens)
        if len(method.dense_layers()) >= config.num_layers:
            raise UnsupportedCellError(
                f"{cls.name} keeps {len(method.dense_layers())} layers dense; this model has {config.num_layers} in all"
            )
        return method

    @classmethod
    def minimum_budget(cls, params: Any) -> tuple[int, str]:
        """The smallest budget in tokens that these parameters allow, and what it is made of."""
        return 1, "one token"

    def layered_traffic(
        self, context_tokens: int, sparse_tokens: int, metadata_bytes: int, bytes_per_element: int
    ) -> Traffic:
        """Bytes of a step: dense layers read the context, the others ``sparse_tokens`` per KV head."""
        dense = len(self.dense_layers())
        return self.summed_traffic(context_tokens, [sparse_tokens] * (self.config.num_layers - dense), metadata_bytes,
                                   bytes_per_element)  # fmt: skip

    def summed_traffic(
        self, context_tokens: int, sparse_tokens: Sequence[int], metadata_bytes: int, bytes_per_element: int
    ) -> Traffic:
        """Bytes of a step whose governed layers read ``sparse_tokens`` per KV head, one number a layer."""
        dense, sparse, layers = self.dense_layers(), iter(sparse_tokens), range(self.config.num_layers)
        tokens = [context_tokens if layer in dense else next(sparse) for layer in layers]
        sizes = [read * self.element_bytes(layer, bytes_per_element) for layer, read in enumerate(tokens)]
        return Traffic(self.token_bytes(sum(sizes)), metadata_bytes)

    def element_bytes(self, layer: int, bytes_per_element: int) -> int:
        """Bytes of a stored number of a layer; by default as the model has them."""
        return bytes_per_element

    def token_bytes(self, bytes_per_element: int) -> int:
        """Bytes of one token's keys and values in one layer, over all KV heads."""
        return 2 * self.config.num_kv_heads * self.config.head_dim * bytes_per_element


class StoringMethod(BudgetedMethod):
    """Chooses tokens of a whole cache, which ``Params`` with ``kv_cache_dtype`` may have in eight bits a number."""

    @property
    def _fp8(self) -> bool:
        return getattr(self.params, "kv_cache_dtype", "auto") == "fp8"

    @property
    @abstractmethod
    def block_tokens(self) -> int:
        """Return the tokens of a block of a list."""

    def make_cache(self, shape: CacheShape) -> KVCache | None:
        """Return a cache of codes where they are asked for; blocks of values divide blocks of lists."""
        if not self._fp8:
            return None
        # Few runs store codes: the others import none of this.
        from longdecode.kernels.quantised_kv.naive import LISTED_V_BLOCK
        from longdecode.methods.quantised_cache import QuantisedCache

        block = math.gcd(self.block_tokens, LISTED_V_BLOCK)
        return QuantisedCache(shape, 8, exact_layers=EXACT_LAYERS, keys_by_channel=True, v_block=block)

    def element_bytes(self, layer: int, bytes_per_element: int) -> int:
        """See ``BudgetedMethod.element_bytes``."""
        return 1 if self._fp8 and layer >= EXACT_LAYERS else bytes_per_element

    @property
    def scale_bytes(self) -> int:
        """Return the bytes of all scales that a step reads: one a channel of keys and one of values by KV head."""
        lists = self._fp8 * max(0, self.config.num_layers - EXACT_LAYERS) * self.config.num_kv_heads
        return 4 * lists * (self.config.head_dim + 1)


MOST_WHOLE = (1 << 31) - 1
"""Largest whole number of a parameter; kernels count in 32 bits."""


def build_params(method: str, params_type: type, overrides: Mapping[str, Any]) -> Any:
    """Make a method's ``Params`` from overrides, each checked against its field's type and constraints.

    Raises:
        ConfigError: an override names no field (with the nearest one), or its value does not fit.
    """
    names = [item.name for item in fields(params_type)]
    hints = get_type_hints(params_type, include_extras=True)
    for name, value in overrides.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
            nearest = f"; nearest valid name: {near[0]!r}" if near else ""
            raise ConfigError(f"{method} has no parameter {name!r}{nearest} (valid: {', '.join(names) or 'none'})")
        if isinstance(value, int) and abs(value) > MOST_WHOLE:
            raise ConfigError(f"{method}: {name} = {value!r}: at most {MOST_WHOLE:,} is possible")
        try:
            TypeAdapter(hints[name]).validate_python(value, strict=True)
        except ValidationError as error:
            raise ConfigError(f"{method}: {name} = {value!r}: {error.errors()[0]['msg']}") from error
    try:
        return params_type(**overrides)
    except ConfigError as error:
        raise ConfigError(f"{method}: {error}") from None
