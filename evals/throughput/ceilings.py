"""Methods that bound others and serve nobody: attention whose indices are free, and no attention at all.

They live here and not in the registry, because what they compute means nothing; only their time does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, DecodeState, Selection, Traffic
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import KVCache
from longdecode.engine.model_config import ModelConfig
from longdecode.kernels.sparse_decode_attention import EVERYTHING, naive, sparse_decode_attention
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
        """One page."""
        return PAGE_TOKENS, f"one page of {PAGE_TOKENS}"

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """The selected tokens in every layer, and nothing to choose them by."""
        pages = self.budget_tokens // PAGE_TOKENS
        return self.layered_traffic(context_tokens, min(context_tokens, pages * PAGE_TOKENS), 0, bytes_per_element)

    def make_method_state(self, cache: KVCache) -> Selection:
        """The pages that every layer and step reads."""
        heads = self.config.num_kv_heads
        used = -(-cache.capacity // PAGE_TOKENS)
        pages = min(self.budget_tokens // PAGE_TOKENS, used)
        generator = torch.Generator(cache.device).manual_seed(used)
        draw = torch.rand(cache.batch, heads, used, generator=generator, device=cache.device)
        draw[..., used - 1] = 2.0
        indices = draw.topk(pages, dim=-1).indices.sort(dim=-1).values
        counts = torch.full((cache.batch, heads), pages, dtype=torch.int64, device=cache.device)
        return Selection(indices, counts, block_size=PAGE_TOKENS)

    def select(self, layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        """Always the same pages."""
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
        """Nothing."""
        return Traffic(0)

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """The queries themselves, which have the shape of an output."""
        return q


def sharing_cache(method: AttentionMethod) -> AttentionMethod:
    """The method, except that it decodes in the cache it is started with instead of a copy.

    At 512K tokens the cache of an 8B model takes 68.7 GB, so that a pair of methods must share one.
    """
    shared = copy.copy(method)
    vars(shared)["start"] = partial(method.start, keep_prompt=False)
    return shared


def chooses(method: AttentionMethod) -> bool:
    """Whether the method selects at all, so that leaving selection out means something."""
    return type(method).select is not AttentionMethod.select and not isinstance(method, FreeSelection)


def with_selection_given(method: AttentionMethod) -> AttentionMethod:
    """The method with its selections frozen: each layer's first one is kept and given back from then on.

    What is left of the method's own work is whatever it does outside ``select``, such as keeping page metadata. Of a
    method with an ``attend`` of its own, which may score and choose while it reads, one launch over its lists is left.
    """
    whole = type(method).attend is not AttentionMethod.attend
    return _with_lists_given(method) if whole else _with_select_given(method)


def _with_select_given(method: AttentionMethod) -> AttentionMethod:
    given = copy.copy(method)
    kept: dict[int, Selection | None] = {}
    choose: Callable[[int, Tensor, DecodeState], Selection | None] = method.select

    def select(layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        if layer not in kept:
            chosen = choose(layer, q, state)
            kept[layer] = chosen and replace(chosen, indices=chosen.indices.clone(), counts=chosen.counts.clone())
        return kept[layer]

    vars(given)["select"] = select
    return given


def _with_lists_given(method: AttentionMethod) -> AttentionMethod:
    """The method, its ``attend`` replaced by one launch over what it was seen to read in a layer's first step.

    Where all of a layer's lists were of everything, and without a launch over lists, that is dense attention.
    """
    given = copy.copy(method)
    kept: dict[int, Selection | None] = {}
    attend: Callable[[int, Tensor, DecodeState], Tensor] = method.attend

    def attend_given(layer: int, q: Tensor, state: DecodeState) -> Tensor:
        if layer not in kept:
            with launched_lists() as launches:
                out = attend(layer, q, state)
            if len(launches) > 1:
                raise UnsupportedCellError(
                    f"{method.name}: {len(launches)} launches over lists in layer {layer}; one can be given"
                )
            dense = not launches or bool((launches[0].counts == EVERYTHING).all())
            kept[layer] = None if dense else launches[0]
            return out
        lists = kept[layer]
        if lists is None:
            return method.attend_all(layer, q, state)
        return sparse_decode_attention(
            q, state.cache.keys(layer), state.cache.values(layer), lists.indices, lists.counts,
            block_size=lists.block_size, kv_lengths=state.kv_lengths, uneven=lists.uneven,
            kv_tokens_read=state.kv_tokens_read[layer],
        )[0]  # fmt: skip

    vars(given)["attend"] = attend_given
    return given


@contextmanager
def launched_lists() -> Iterator[list[Selection]]:
    """Copies of the lists that sparse decode attention is launched over while the block runs, in order.

    Both paths of the op are wrapped where the op looks them up, so that it does not matter who calls it.
    """
    seen: list[Selection] = []
    undo: list[tuple[ModuleType, str, Any]] = []
    for module, name in _sparse_paths():
        original = getattr(module, name)
        undo.append((module, name, original))
        setattr(module, name, _noting(seen, original))
    try:
        yield seen
    finally:
        for module, name, original in undo:
            setattr(module, name, original)


def _noting(seen: list[Selection], original: Callable[..., Any]) -> Callable[..., Any]:
    def run(
        q: Tensor, k: Tensor, v: Tensor, indices: Tensor, counts: Tensor, *, block_size: int, **rest: Any
    ) -> tuple[Tensor, Tensor]:
        # Noted before the launch: a method may write into its lists as soon as they are read.
        seen.append(Selection(indices.clone(), counts.clone(), block_size, bool(rest.get("uneven", False))))
        out: tuple[Tensor, Tensor] = original(q, k, v, indices, counts, block_size=block_size, **rest)
        return out

    return run


def _sparse_paths() -> Iterator[tuple[ModuleType, str]]:
    """Modules and names of the op's paths; the Triton one where it can be imported."""
    yield naive, "sparse_decode_attention"
    if torch.cuda.is_available():
        yield import_module("longdecode.kernels.sparse_decode_attention.gpu"), "sparse_decode_attention_gpu"
