"""Dense attention over keys and values in eight bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longdecode.engine.attention import Traffic
from longdecode.methods.quantised_cache import QuantisedMethod


@dataclass(frozen=True, slots=True)
class FullFp8Params:
    """Eight-bit storage has no knobs."""


class FullFp8(QuantisedMethod):
    """Every token is read; its key and value are stored as e4m3 with one scale a sequence and KV head.

    The scale is the largest number of the prompt over 448; a decoded number beyond it becomes the largest code.

    Source: Micikevicius et al. 2022 (arXiv 2209.05433), section 3; as serving engines store it (vLLM, ``fp8_e4m3``).
    """

    name: ClassVar[str] = "full_fp8"
    Params: ClassVar[type] = FullFp8Params
    bits = 8

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return one byte a number, and two scales a KV head."""
        heads = self.config.num_layers * self.config.num_kv_heads
        return Traffic(2 * heads * self.config.head_dim * context_tokens, 8 * heads)


METHOD = FullFp8
