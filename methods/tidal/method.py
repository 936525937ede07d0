"""TidalDecode: choose tokens in two layers and reuse the choice in the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.correction import DEFAULT_PERIOD, Correction, CorrectionSetting
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.kernels.token_score import token_logits
from longdecode.kernels.topk_select import topk_select
from longdecode.methods.budgeted import BudgetedMethod
from longdecode.methods.windows import window

SELECT_LAYER = 2
"""The first selection layer; it and all before it are dense."""
MINIMUM_LAYERS = 6
"""Fewer layers leave no sparse layer behind each of the two selections."""


@dataclass(frozen=True, slots=True)
class TidalParams:
    """Knobs of TidalDecode; ``reselect_layer`` left out scales with the model's depth."""

    selection: Literal["kv_head", "query_head"] = "kv_head"
    reselect_layer: Annotated[int, Field(gt=SELECT_LAYER)] | None = None
    sink_tokens: Annotated[int, Field(ge=0)] = 0
    recent_tokens: Annotated[int, Field(ge=0)] = 0
    correction: CorrectionSetting = "none"
    correction_period: Annotated[int, Field(ge=1)] = DEFAULT_PERIOD


@dataclass(slots=True)
class LastSelection:
    """The tokens that the layers between two selections reuse; made anew in every step."""

    value: Selection | None = None


class Tidal(BudgetedMethod):
    """Top tokens by attention logit, chosen in layer 2 and once more in the re-selection layer, reused in between.

    The lists are made anew in every step and nothing of theirs outlives it, so that a corrected step needs no more.

    Source: Yang et al. 2024, TidalDecode (arXiv 2410.05076), section 3, and its released code; deviations in card.yaml.
    """

    name: ClassVar[str] = "tidal"
    Params: ClassVar[type] = TidalParams
    params: TidalParams
    between_steps = ("correction", "correction_period")

    def __init__(self, params: TidalParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        if config.num_layers < MINIMUM_LAYERS:
            raise UnsupportedCellError(
                f"tidal needs {MINIMUM_LAYERS} layers or more; this model has {config.num_layers}"
            )
        self.reselect_layer = params.reselect_layer or scaled_reselect_layer(config.num_layers)
        if self.reselect_layer >= config.num_layers:
            raise ConfigError(
                f"tidal: reselect_layer = {self.reselect_layer}; this model has {config.num_layers} layers"
            )
        self.correction = Correction.of(params.correction, params.correction_period)

    def dense_layers(self) -> frozenset[int]:
        """Layers 0 to 2 and the re-selection layer."""
        return frozenset((*range(SELECT_LAYER + 1), self.reselect_layer))

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """The two selection layers read every key once more to score it; a step in which no correction is due."""
        read = min(context_tokens, self.budget_tokens)
        if self.params.selection == "query_head":
            read *= self.config.group_size
        keys = 2 * context_tokens * self.token_bytes(bytes_per_element) // 2
        return self.layered_traffic(context_tokens, read, keys, bytes_per_element)

    def make_method_state(self, cache: KVCache) -> LastSelection:
        """Room for the last selection."""
        return LastSelection()

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Dense layers read everything, the selection layers among them choose for those that follow."""
        if layer in (SELECT_LAYER, self.reselect_layer):
            state.method_state.value = self._choose(layer, q, state)
        return None if layer in self.dense_layers() else state.method_state.value

    def _choose(self, layer: int, q: Tensor, state: DecodeState) -> Selection:
        shared = self.params.selection == "kv_head"
        scores = token_logits(q, state.dense.keys(layer), state.kv_lengths, group="mean" if shared else None)
        first, last = window(self.budget_tokens, self.params.sink_tokens, self.params.recent_tokens, shared)
        indices, counts = topk_select(scores, self.budget_tokens, state.kv_lengths, keep_first=first, keep_last=last)
        return Selection(indices, counts, block_size=1)


def scaled_reselect_layer(num_layers: int) -> int:
    """The re-selection layer at the depth that Llama-3-8B has it (13 of 32), but not before layer 4.

    Layer 3 at the earliest reuses the first selection, so a re-selection below layer 4 would leave it without a reader.
    """
    return max(SELECT_LAYER + 2, round(13 / 32 * num_layers))


METHOD = Tidal
