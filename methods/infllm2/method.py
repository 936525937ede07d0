"""InfLLM-V2: first, latest and best blocks by pooled keys, in prefill and decode."""

from __future__ import annotations

from typing import ClassVar

from longdecode.methods.block_selection import BlockParams, BlockSelection


class InfLLM2(BlockSelection):
    """One first block, a window, and the blocks whose pooled keys the query group gives the most attention to.

    Source: InfLLM-V2 (MiniCPM4, arXiv 2506.07900), as the baseline of NOSA runs it; deviations in card.yaml.
    """

    name: ClassVar[str] = "infllm2"
    Params: ClassVar[type] = BlockParams


METHOD = InfLLM2
