"""Dense attention over keys and values in four bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from longdecode.engine.attention import Traffic
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.kernels.quantised_kv.naive import GROUP
from longdecode.methods.quantised_cache import QuantisedMethod

_PAIR_BYTES = 4
"""A scale and a least number in float16."""


@dataclass(frozen=True, slots=True)
class FullInt4Params:
    """Four-bit storage has no knobs."""


class FullInt4(QuantisedMethod):
    """Every token is read; all but the latest 64 to 127 are stored in four bits, in groups of 64.

    A group of keys has a scale and a least number by channel, a token's values one by run of 64 channels. A group is
    quantised once the next one is complete.

    Source: Liu et al. 2024, KIVI (arXiv 2402.02750), section 3.2; deviations in card.yaml.
    """

    name: ClassVar[str] = "full_int4"
    Params: ClassVar[type] = FullInt4Params
    bits = 4

    def __init__(self, params: Any, config: ModelConfig):
        super().__init__(params, config)
        if config.head_dim % 2:
            raise UnsupportedCellError(f"full_int4 packs channels in pairs; heads of {config.head_dim} are odd")

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return half a byte a packed number, whole ones of recent tokens, and the scales and least numbers."""
        config = self.config
        heads, dim = config.num_layers * config.num_kv_heads, config.head_dim
        groups = max(0, context_tokens // GROUP - 1)
        recent = context_tokens - groups * GROUP
        pairs = groups * (dim + GROUP * -(-dim // GROUP))
        return Traffic(heads * dim * (groups * GROUP + 2 * recent * bytes_per_element), heads * pairs * _PAIR_BYTES)


METHOD = FullInt4
