"""Blocks that InfLLM-V2 reads."""

from __future__ import annotations

from longdecode.methods.block_rule import BlockRule


class InfLLM2Rule(BlockRule):
    """Read the first block, the latest ones, and the best by pooled keys; all but the forced ones go by the query."""


RULE = InfLLM2Rule
