"""NOSA: blocks by the query, then by a learned importance that no query changes, which also biases the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from longdecode.engine.model_config import ModelConfig
from longdecode.methods.block_selection import BlockParams, BlockSelection
from longdecode.methods.importance_heads import find_heads
from longdecode.methods.prompt_selection import PromptIndex


@dataclass(frozen=True, slots=True)
class NosaParams(BlockParams):
    """Knobs of NOSA beside those of block selection."""

    heads: str = "model"
    bias_scale: Literal["training", "released"] = "training"
    prefill: Literal["selected", "dense"] = "selected"


class Nosa(BlockSelection):
    """A quarter of the blocks by the query, the rest by position or by an importance computed once from the values.

    What importance chooses changes by what the query takes out of its ranking alone, so that consecutive steps share at
    least the share of blocks that the query does not choose.

    Source: NOSA (arXiv 2510.13602) and its released code (thunlp/NOSA 94d5f75); deviations in card.yaml.
    """

    name: ClassVar[str] = "nosa"
    Params: ClassVar[type] = NosaParams
    params: NosaParams
    between_steps = ("prefill",)

    def __init__(self, params: NosaParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens, by_importance=True)
        self.heads = find_heads(params.heads, config, self.name)

    def bias(self, tokens: Tensor) -> Tensor:
        """See ``BlockSelection.bias``; the released engine adds it before the scaling of the logits."""
        bias = super().bias(tokens)
        return bias if self.params.bias_scale == "training" else bias * self.config.head_dim**-0.5

    def select_prompt(self, q: Tensor, index: PromptIndex, start: int, stop: int) -> Tensor:
        """See ``SelectivePrefill.select_prompt``; with a dense prefill every prompt token reads all before it."""
        if self.params.prefill == "selected":
            return super().select_prompt(q, index, start, stop)
        (rows, _, queries, _), blocks = q.shape, -(-stop // self.list_block)
        return torch.ones(rows, self.config.num_kv_heads, queries, blocks, dtype=torch.bool, device=q.device)


METHOD = Nosa
