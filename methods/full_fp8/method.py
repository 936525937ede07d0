"""Dense attention over keys and values in eight bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from longdecode.engine.attention import Traffic
from longdecode.engine.kv_cache import CacheShape, KVCache
from longdecode.methods.quantised_cache import QuantisedCache, QuantisedMethod


@dataclass(frozen=True, slots=True)
class FullFp8Params:
    """Parameters of eight-bit storage.

    Attributes:
        key_scale: one scale a ``channel`` of a KV head's keys, or one a KV ``head``, as serving engines have it.
        exact_layers: the first layers, whose keys and values stay as they are: there some models' keys have biases in
            the hundreds, next to which codes are too far apart.
    """

    key_scale: Literal["channel", "head"] = "channel"
    exact_layers: Annotated[int, Field(ge=0)] = 2


class FullFp8(QuantisedMethod):
    """Every token is read; its key and value are stored as e4m3, but for those of the first layers.

    Values have one scale a sequence and KV head, the prompt's largest number over 448; keys likewise, or one a channel
    that leaves room for twice the largest: a channel with a large bias then does not coarsen the others. A decoded
    number beyond the range becomes the largest code.

    Source: Micikevicius et al. 2022 (arXiv 2209.05433), section 3; one scale a head as serving engines store it (vLLM,
    ``fp8_e4m3``), one a channel for keys as in KIVI (arXiv 2402.02750), section 3.1.
    """

    name: ClassVar[str] = "full_fp8"
    Params: ClassVar[type] = FullFp8Params
    params: FullFp8Params
    bits = 8

    def make_cache(self, shape: CacheShape) -> KVCache:
        """Return the cache; see ``QuantisedMethod.make_cache``."""
        by_channel = self.params.key_scale == "channel"
        return QuantisedCache(shape, self.bits, exact_layers=self.params.exact_layers, keys_by_channel=by_channel)

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return one byte a number behind the exact layers, and scales, one a channel of keys however they are set."""
        exact, dim = min(self.params.exact_layers, self.config.num_layers), self.config.head_dim
        bytes_of_all = exact * bytes_per_element + (self.config.num_layers - exact)
        heads = (self.config.num_layers - exact) * self.config.num_kv_heads
        return Traffic(2 * bytes_of_all * self.config.num_kv_heads * dim * context_tokens, 4 * heads * (dim + 1))


METHOD = FullFp8
