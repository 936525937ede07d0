"""The upper bound of token selection: score everything exactly, then read only the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.kernels.layout import group_reduce
from longdecode.kernels.token_score import token_probabilities
from longdecode.kernels.topk_select import topk_select
from longdecode.methods.budgeted import BudgetedMethod
from longdecode.methods.windows import window


@dataclass(frozen=True, slots=True)
class OracleParams:
    """Knobs of the oracle."""

    dense_layers: Annotated[int, Field(ge=0)] = 2
    sink_tokens: Annotated[int, Field(ge=0)] = 0
    recent_tokens: Annotated[int, Field(ge=0)] = 0


class OracleTopk(BudgetedMethod):
    """Each KV head reads the tokens its query group gives the most attention to, by the true softmax over everything.

    The score of a token is the mean of its attention probability over the group's query heads. The current token is
    always kept. Source: no paper of its own; the idealised selector that Quest (arXiv 2406.10774) and others
    approximate.
    """

    name: ClassVar[str] = "oracle_topk"
    Params: ClassVar[type] = OracleParams
    params: OracleParams

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """The selector reads every key of every sparse layer."""
        sparse = self.config.num_layers - len(self.dense_layers())
        keys = sparse * context_tokens * self.token_bytes(bytes_per_element) // 2
        return self.layered_traffic(context_tokens, min(context_tokens, self.budget_tokens), keys, bytes_per_element)

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Top tokens by the group's mean probability; dense in the first layers."""
        if layer in self.dense_layers():
            return None
        probabilities = token_probabilities(q, state.dense.keys(layer), state.kv_lengths)
        scores = group_reduce(probabilities, self.config.num_kv_heads, "mean")
        first, last = window(self.budget_tokens, self.params.sink_tokens, self.params.recent_tokens, current=True)
        indices, counts = topk_select(scores, self.budget_tokens, state.kv_lengths, keep_first=first, keep_last=last)
        return Selection(indices, counts, block_size=1)


METHOD = OracleTopk
