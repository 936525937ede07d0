"""Dense attention over keys and values in eight bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from longdecode.engine.attention import Traffic
from longdecode.methods.quantised_cache import QuantisedMethod


@dataclass(frozen=True, slots=True)
class FullFp8Params:
    """Parameters of eight-bit storage.

    Attributes:
        key_scale: one scale a ``channel`` of a KV head's keys, or one a KV ``head``, as serving engines have it.
    """

    key_scale: Literal["channel", "head"] = "channel"


class FullFp8(QuantisedMethod):
    """Every token is read; its key and value are stored as e4m3.

    Values have one scale a sequence and KV head, the prompt's largest number over 448; keys likewise, or one a channel
    that leaves room for twice the largest: a channel with a large bias then does not coarsen the others. A decoded
    number beyond the range becomes the largest code.

    Source: Micikevicius et al. 2022 (arXiv 2209.05433), section 3; one scale a head as serving engines store it (vLLM,
    ``fp8_e4m3``), one a channel for keys as in KIVI (arXiv 2402.02750), section 3.1.
    """

    name: ClassVar[str] = "full_fp8"
    Params: ClassVar[type] = FullFp8Params
    bits = 8

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return one byte a number, and the scales, one a channel of the keys in memory however they are set."""
        heads, dim = self.config.num_layers * self.config.num_kv_heads, self.config.head_dim
        return Traffic(2 * heads * dim * context_tokens, 4 * heads * (dim + 1))


METHOD = FullFp8
