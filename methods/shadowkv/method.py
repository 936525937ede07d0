"""ShadowKV: chunks by landmarks, keys rebuilt from low-rank factors, values that may lie in host memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.kv_cache import CacheShape, KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.kernels.layout import group_reduce
from longdecode.kernels.token_score import token_probabilities
from longdecode.kernels.topk_select import topk_select
from longdecode.methods.budgeted import BudgetedMethod
from longdecode.methods.shadowkv.cache import LongShadowCache, ShadowCache, ShadowPlan

_PARTS = 16
"""A budget of 4,096 tokens is 3,072 by score, 768 outliers and 256 local ones in NOSA's comparison."""


@dataclass(frozen=True, slots=True)
class ShadowParams:
    """Knobs of ShadowKV."""

    chunk: Annotated[int, Field(ge=2)] = 8
    rank_share: Annotated[float, Field(gt=0, le=1)] = 0.15625
    group_score: Literal["max", "sum", "mean"] = "max"
    offload: bool = False
    long_generation: bool = False


class ShadowKV(BudgetedMethod):
    """Chunks of the prompt with the best landmarks; outliers, the end of the prompt and generated tokens are exact.

    With ``long_generation`` chunks of generated tokens are scored too, once they have left the exact end of the text.

    Source: Sun et al. 2024, ShadowKV (arXiv 2410.21465), and its released code; shares of the budget as NOSA runs it
    (thunlp/NOSA 94d5f75). Deviations in card.yaml.
    """

    name: ClassVar[str] = "shadowkv"
    Params: ClassVar[type] = ShadowParams
    params: ShadowParams

    def __init__(self, params: ShadowParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        # What the prompt's length leaves over a chunk is read with the local chunks.
        chunks = (budget_tokens - params.chunk + 1) // params.chunk
        local, outliers = max(1, round(chunks / _PARTS)), max(1, round(3 * chunks / _PARTS))
        rank = max(1, round(params.rank_share * config.num_kv_heads * config.head_dim))
        self.plan = ShadowPlan(params.chunk, chunks - local - outliers, outliers, local, rank)

    @classmethod
    def minimum_budget(cls, params: ShadowParams) -> tuple[int, str]:
        """A chunk of each kind, and what a prompt leaves over a chunk."""
        return 4 * params.chunk - 1, f"three chunks of {params.chunk} and up to {params.chunk - 1} tokens more"

    def make_cache(self, shape: CacheShape) -> KVCache:
        """Return ShadowKV's own cache."""
        kind = LongShadowCache if self.params.long_generation else ShadowCache
        return kind(shape, self.plan, self.params.offload)

    def scored_chunks(self, prompt_tokens: int) -> int:
        """Chunks of a prompt that a query may choose among: those before the local ones, less the outliers."""
        before = max(0, prompt_tokens // self.plan.chunk - self.plan.local)
        return before - min(before, self.plan.outliers)

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Chosen, outlying and recent tokens; landmarks, and the factors and basis of rebuilt keys.

        All of the context counts as prompt. Rebuilt keys are counted as keys, and their factors as metadata. Factors
        and ``host_bytes`` are the most that a step takes: chunks that the step before chose too are at hand.
        """
        plan, heads, dim = self.plan, self.config.num_kv_heads, self.config.head_dim
        before = max(0, context_tokens // plan.chunk - plan.local)
        outliers = min(before, plan.outliers)
        scored = self.scored_chunks(context_tokens)
        chosen = min(scored, plan.sparse)
        # A prompt that ends inside a chunk leaves up to one token less than a chunk beside the local ones.
        recent = (plan.local + 1) * plan.chunk - 1 if before else context_tokens
        read = min(context_tokens, recent + (outliers + chosen) * plan.chunk)
        numbers = scored * heads * dim + heads * plan.rank * (chosen * plan.chunk + dim)
        metadata = self.config.num_layers * numbers * bytes_per_element
        traffic = self.layered_traffic(context_tokens, read, metadata, bytes_per_element)
        values = self.config.num_layers * heads * chosen * plan.chunk * dim * bytes_per_element
        return replace(traffic, at_most=True, host_bytes=values if self.params.offload else 0)

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection:
        """Choose chunks by the probability that the query heads of the group give their landmark."""
        cache = state.cache
        assert isinstance(cache, ShadowCache)
        own = cache.layers[layer]
        probabilities = token_probabilities(q, own.landmarks, cache.scored.clamp(min=1))
        scores = group_reduce(probabilities, self.config.num_kv_heads, self.params.group_score)
        places, counts = topk_select(scores, self.plan.sparse, cache.scored)
        return Selection(own.chunks.gather(2, places), counts, self.plan.chunk)

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Read the chosen chunks, outliers and recent tokens at once."""
        cache, selection = state.cache, self.select(layer, q, state)
        assert isinstance(cache, ShadowCache)
        return cache.attend_chosen(layer, q, selection.indices, selection.counts, state.kv_tokens_read[layer])


METHOD = ShadowKV
