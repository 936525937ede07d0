"""OmniKV: filter layers read everything and rank the tokens, the layers after them read the best of these."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import ConfigError
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.kernels.layout import group_reduce
from longdecode.kernels.token_score import token_logits, token_probabilities
from longdecode.kernels.topk_select import topk_select
from longdecode.methods.budgeted import BudgetedMethod
from longdecode.methods.windows import window

DEPTHS = (2 / 32, 8 / 32, 18 / 32)
"""Filter layers 2, 8 and 18 of Llama-3-8B's 32, as the released configuration has them."""
_SHARE = re.compile(r"(\d+)/([1-9]\d*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class OmniKVParams:
    """Knobs of OmniKV; ``filter_layers`` left out scales with the model's depth."""

    filter_layers: str | None = None
    wait_layers: Annotated[int, Field(ge=0)] = 1
    selection: Literal["shared", "kv_head"] = "shared"
    score: Literal["logit", "probability"] = "logit"
    sink_tokens: Annotated[int, Field(ge=0)] = 0
    recent_tokens: Annotated[int, Field(ge=0)] = 0


class OmniKV(BudgetedMethod):
    """Top tokens of each filter layer, chosen anew in every step and read by the layers up to the next filter layer.

    A token's score is its largest attention logit over the query heads, ``max_h q_h . k_i``. Layers before the first
    filter layer, and ``wait_layers`` after each one, read everything.

    Source: Hao et al. 2025, OmniKV (ICLR), abstract, and the released code at 5c33cb5; deviations in card.yaml.
    """

    name: ClassVar[str] = "omnikv"
    Params: ClassVar[type] = OmniKVParams
    params: OmniKVParams

    def __init__(self, params: OmniKVParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        filters = filter_layers(params.filter_layers, config.num_layers)
        nearest = {n: max((at for at in filters if at <= n), default=n) for n in range(config.num_layers)}
        self.sources = {n: at for n, at in nearest.items() if n - at > params.wait_layers}
        """For each sparse layer the filter layer whose choice it reads; the other layers are dense."""
        self.choosing = frozenset(self.sources.values())

    def dense_layers(self) -> frozenset[int]:
        """All layers up to the first filter layer, the other filter layers, and those that wait behind each."""
        return frozenset(range(self.config.num_layers)) - self.sources.keys()

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Filter layers that another layer follows read every key once more to score it."""
        keys = len(self.choosing) * context_tokens * self.token_bytes(bytes_per_element) // 2
        return self.layered_traffic(context_tokens, min(context_tokens, self.budget_tokens), keys, bytes_per_element)

    def make_method_state(self, cache: KVCache) -> dict[int, Selection]:
        """Room for the choice of each filter layer; nothing of it outlives a step."""
        return {}

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Dense layers read everything, the filter layers among them choose for those that follow."""
        choices: dict[int, Selection] = state.method_state
        if layer in self.choosing:
            choices[layer] = self._choose(layer, q, state)
        return choices[self.sources[layer]] if layer in self.sources else None

    def _choose(self, layer: int, q: Tensor, state: DecodeState) -> Selection:
        params, keys, heads = self.params, state.dense.keys(layer), self.config.num_kv_heads
        if params.score == "logit":
            scores = token_logits(q, keys, state.kv_lengths, group="max")
        else:
            scores = group_reduce(token_probabilities(q, keys, state.kv_lengths), heads, "max")
        if params.selection == "shared":
            scores = scores.amax(dim=1, keepdim=True)
        first, last = window(self.budget_tokens, params.sink_tokens, params.recent_tokens, current=True)
        indices, counts = topk_select(scores, self.budget_tokens, state.kv_lengths, keep_first=first, keep_last=last)
        return Selection(indices.expand(-1, heads, -1), counts.expand(-1, heads), block_size=1)


def filter_layers(layers: str | None, num_layers: int) -> tuple[int, ...]:
    """Return the layers that a parameter such as ``2,8,18`` or ``1/4,9/16`` names, or those of ``DEPTHS``.

    Shares of the depth are rounded; those that meet on a shallow model are one layer.

    Raises:
        ConfigError: it is no list of layers of this model, each above the one before.
    """
    if layers is None:
        return tuple(sorted({round(depth * num_layers) for depth in DEPTHS}))
    parts = [part.strip() for part in layers.split(",")]
    shares = [share for part in parts if (share := _SHARE.fullmatch(part))]
    if len(shares) == len(parts):
        parts = list(dict.fromkeys(str(round(int(share[1]) / int(share[2]) * num_layers)) for share in shares))
    named = tuple(int(part) for part in parts if part.isdecimal())
    if len(named) < len(parts) or list(named) != sorted(set(named)) or named[-1] >= num_layers:
        raise ConfigError(
            f"omnikv: filter_layers = {layers!r}; ascending layers from 0 are needed, such as '2,8,18', or shares of "
            f"the depth, such as '1/4,9/16'; this model has {num_layers} layers"
        )
    return named


METHOD = OmniKV
