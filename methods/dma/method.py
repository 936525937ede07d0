"""DMA: the tokens of the largest learned importance, whatever the query, which also biases the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import DenseCache, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.token_block import BlockHeads
from longdecode.kernels.block_score import newest_first
from longdecode.kernels.importance import Importance, append_importance, ranked, token_importance
from longdecode.kernels.layout import accumulator
from longdecode.kernels.pooled_keys import Pooling
from longdecode.kernels.topk_select import topk_select
from longdecode.methods.importance_heads import find_heads
from longdecode.methods.prompt_selection import PromptIndex, SelectivePrefill, listed_blocks
from longdecode.methods.rewritten_index import renew_importance

_TOKENS = Pooling(1, 1)
"""Windows of one token: the blocks of the importance table are the tokens themselves."""


@dataclass(frozen=True, slots=True)
class DmaParams:
    """Knobs of DMA."""

    heads: str = "model"
    forced: bool = True


@dataclass(slots=True)
class TokenImportance:
    """Importances of every layer, ``[B, Hkv, S]`` each, and the tokens of the coming step, ``[B]``."""

    layers: list[Importance]
    lengths: Tensor


class Dma(SelectivePrefill):
    """Top tokens by ``e_j = A softplus(Delta v_j)``, with the first and latest ones forced or not.

    Once out, a token never returns: what is read shrinks to a set that only new tokens enter. Source: dynamic mask
    attention (arXiv 2508.02124) and its released code (flash-dmattn), as a baseline of NOSA (arXiv 2510.13602);
    deviations in card.yaml.
    """

    name: ClassVar[str] = "dma"
    Params: ClassVar[type] = DmaParams
    params: DmaParams

    def __init__(self, params: DmaParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        self.heads = find_heads(params.heads, config, self.name)
        self.sink = max(1, budget_tokens // 64) if params.forced else 0
        # The current token is always read: without it a first step might read nothing.
        self.recent = max(1, budget_tokens // 4) if params.forced else 1

    @classmethod
    def minimum_budget(cls, params: DmaParams) -> tuple[int, str]:
        """One token of each kind."""
        return 4, "a first one, a latest one and two by importance"

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Chosen tokens; every importance to choose, and those of the tokens read once more."""
        read = min(context_tokens, self.budget_tokens)
        metadata = 4 * self.config.num_layers * self.config.num_kv_heads * (context_tokens + read)
        return self.layered_traffic(context_tokens, read, metadata, bytes_per_element)

    def choose(self, importance: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions ``[B, H, K]``, the newest first, and counts ``[B, H]``, of importances ``[B, H, S]``."""
        ranking = newest_first(ranked(importance), lengths, float("-inf"))
        places, counts = topk_select(ranking, self.budget_tokens, lengths, keep_first=self.recent, keep_last=self.sink)
        return (lengths[:, None, None] - 1 - places).clamp(min=0), counts

    @property
    def list_block(self) -> int:
        """One token."""
        return 1

    @property
    def forced(self) -> tuple[int, int]:
        """See ``SelectivePrefill.forced``."""
        return self.sink, self.recent

    def index_prompt(self, layer: int, keys: Tensor, values: Tensor) -> PromptIndex:
        """See ``SelectivePrefill.index_prompt``."""
        return PromptIndex(bias=token_importance(values, self.heads.layer(layer, values.device)))

    def select_prompt(self, q: Tensor, index: PromptIndex, start: int, stop: int) -> Tensor:
        """See ``SelectivePrefill.select_prompt``; each query ranks the tokens up to itself."""
        assert index.bias is not None
        rows, queries, heads = q.shape[0], q.shape[2], index.bias.shape[1]
        seen = torch.arange(start + 1, start + queries + 1, device=q.device).repeat(rows)
        known = index.bias[:, None, :, :stop].expand(rows, queries, heads, stop).flatten(0, 1)
        return listed_blocks(*self.choose(known, seen), stop, rows)

    def prompt_cost(self, stop: int) -> int:
        """See ``SelectivePrefill.prompt_cost``."""
        return 8 * self.config.num_kv_heads * stop

    def make_method_state(self, cache: KVCache) -> TokenImportance:
        """Work out the importance of every token of the prompt."""
        if not isinstance(cache, DenseCache):
            raise UnsupportedCellError(f"{self.name} finds no values to weigh in a {type(cache).__name__}")
        layers = []
        for layer in range(self.config.num_layers):
            values = cache.values(layer)
            tokens = token_importance(values, self.heads.layer(layer, values.device)).contiguous()
            layers.append(Importance(tokens, torch.zeros_like(tokens)))
        return TokenImportance(layers, torch.zeros_like(cache.positions))

    def before_step(self, state: DecodeState) -> None:
        """Count the tokens, the coming one among them."""
        if state.block.width > 1 or state.block.starts is not None:
            raise UnsupportedCellError(f"{self.name} selects for one new row a step, the block has {state.block.width}")
        state.method_state.lengths = state.cache.positions + 1

    def append(self, layer: int, heads: BlockHeads, state: DecodeState) -> Tensor:
        """Store the token and its importance."""
        own: TokenImportance = state.method_state
        q, weights = state.cache.append(layer, heads), self.heads.layer(layer, heads.v.device)
        append_importance(own.layers[layer], heads.v, weights, own.lengths, _TOKENS, 1)
        return q

    def after_rewrite(self, state: DecodeState, starts: Tensor, width: int) -> None:
        """Weigh anew the tokens that were written over."""
        own: TokenImportance = state.method_state
        for layer, importance in enumerate(own.layers):
            values = state.dense.values(layer)
            weights = self.heads.layer(layer, values.device)
            renew_importance(importance, values, weights, starts, width, state.dense.lengths, None, 1)

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection:
        """Choose the tokens of a step, the newest first."""
        own: TokenImportance = state.method_state
        return Selection(*self.choose(own.layers[layer].tokens, own.lengths), block_size=1)

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Select and read, with the importances in the logits."""
        own: TokenImportance = state.method_state
        return self.attend_selected(
            layer, q, self.select(layer, q, state), state, bias=own.layers[layer].tokens.to(accumulator(q.dtype))
        )


METHOD = Dma
