"""Methods that bound others: selection that costs nothing, no attention at all, and any method's frozen lists.

They live here and not in the registry, because what they compute means nothing; only their time does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, Selection, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.kernels.sparse_decode_attention import EVERYTHING
from longdecode.methods.budgeted import BudgetedMethod

PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class NoParams:
    """No knobs."""


class FreeSelection(BudgetedMethod):
    """Sparse attention in every layer over pages that cost nothing to choose: the ceiling of any selector.

    Each KV head of each row has a list of its own: random distinct pages of 16 tokens, the last one among them, in
    ascending order, drawn once a generation.
    """

    name: ClassVar[str] = "free_selection"
    Params: ClassVar[type] = NoParams

    @classmethod
    def minimum_budget(cls, params: Any) -> tuple[int, str]:
        """Return one page."""
        return PAGE_TOKENS, f"one page of {PAGE_TOKENS}"

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return the selected tokens in every layer, and nothing to choose them by."""
        pages = self.budget_tokens // PAGE_TOKENS
        return self.layered_traffic(context_tokens, min(context_tokens, pages * PAGE_TOKENS), 0, bytes_per_element)

    def make_method_state(self, cache: KVCache) -> Selection:
        """Draw the pages that every layer and step reads."""
        heads = self.config.num_kv_heads
        used = -(-cache.shape.capacity // PAGE_TOKENS)
        pages = min(self.budget_tokens // PAGE_TOKENS, used)
        generator = torch.Generator(cache.device).manual_seed(used)
        draw = torch.rand(cache.batch, heads, used, generator=generator, device=cache.device)
        draw[..., used - 1] = 2.0
        indices = draw.topk(pages, dim=-1).indices.sort(dim=-1).values
        counts = torch.full((cache.batch, heads), pages, dtype=torch.int64, device=cache.device)
        return Selection(indices, counts, block_size=PAGE_TOKENS)

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Return the same pages always."""
        chosen: Selection = state.method_state
        return chosen


class NoAttention(AttentionMethod):
    """A step without attention: rotation and append stay, what is read is nothing."""

    name: ClassVar[str] = "no_attention"
    Params: ClassVar[type] = NoParams

    @classmethod
    def from_budget(cls, budget_tokens: int | None, config: ModelConfig, **overrides: Any) -> Self:
        """See ``AttentionMethod.from_budget``; there is nothing to budget."""
        if budget_tokens is not None:
            raise UnsupportedCellError("no_attention reads nothing and takes no budget")
        return cls(NoParams(), config)

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return nothing."""
        return Traffic(0)

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Return the queries themselves, which have the shape of an output."""
        return q


class SelectionGiven(AttentionMethod):
    """Mixin: each layer reads again what it read in the first step, so that nothing is chosen from then on.

    What is left of the method's own work is whatever it does outside ``attend``, such as keeping page metadata.
    """

    given: dict[int, Selection | None]

    def decode_in(self, cache: KVCache) -> DecodeState:
        """Start without lists."""
        self.given = {}
        return super().decode_in(cache)

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Let the method select and read once; then read its lists in one launch, or everything where it did."""
        if layer not in self.given:
            self.given[layer] = None
            out = super().attend(layer, q, state)
            if (lists := self.given[layer]) is not None and bool((lists.counts == EVERYTHING).all()):
                self.given[layer] = None
            return out
        lists = self.given[layer]
        if lists is None:
            return self.attend_all(layer, q, state)
        return super().attend_selected(layer, q, lists, state)

    def attend_selected(
        self, layer: int, q: Tensor, selection: Selection, state: DecodeState, **scoring: Any
    ) -> Tensor:
        """Keep a copy of the lists before they are read: a method may write into them afterwards.

        Raises:
            UnsupportedCellError: the layer has read lists already.
        """
        if self.given[layer] is not None:
            raise UnsupportedCellError(f"{self.name}: several launches over lists in layer {layer}; one can be given")
        indices, counts = selection.indices.clone(), selection.counts.clone()
        self.given[layer] = replace(selection, indices=indices, counts=counts)
        return super().attend_selected(layer, q, selection, state, **scoring)


def selection_given(method: type[AttentionMethod]) -> type[AttentionMethod]:
    """Return the method's class with its selections frozen after the first step."""
    return type(method.__name__, (SelectionGiven, method), {})


def chooses(method: AttentionMethod) -> bool:
    """Return whether the method selects at all, so that leaving selection out means something."""
    return type(method).select is not AttentionMethod.select and not isinstance(method, FreeSelection)
