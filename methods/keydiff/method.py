"""KeyDiff: keep the keys that are least like the mean key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from longdecode.engine.attention import Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.kernels.layout import accumulator, before
from longdecode.methods.budgeted import Share
from longdecode.methods.evicting import EvictingMethod
from longdecode.methods.kept_cache import KeptCache


@dataclass(frozen=True, slots=True)
class KeyDiffParams:
    """Knobs of KeyDiff."""

    dense_layers: Annotated[int, Field(ge=0)] = 0
    share: Share = None


class KeyDiff(EvictingMethod):
    """``budget`` tokens per KV head; the key most like the mean of the stored keys makes room for the next.

    A token's score is ``-cos(k_i, m)`` with ``m = mean_j k_j / |k_j|`` over the tokens that the head stores, so that no
    attention weight is needed. The prompt is cut by it at once; then one token is dropped in every step.

    Source: Park et al. 2025, KeyDiff (arXiv 2504.15364), section 3; the score as in kvpress 08a43bf, keydiff_press.
    """

    name: ClassVar[str] = "keydiff"
    Params: ClassVar[type] = KeyDiffParams
    params: KeyDiffParams
    latest = 1

    @classmethod
    def minimum_budget(cls, params: KeyDiffParams) -> tuple[int, str]:
        """Return the current token and one other."""
        return 2, "the current token and one other"

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """Return the budget, whose keys are read once more for their likeness."""
        read = min(context_tokens, self.budget_at(context_tokens))
        governed = self.config.num_layers - len(self.dense_layers())
        again = governed * read * self.token_bytes(bytes_per_element) // 2
        return self.layered_traffic(context_tokens, read, again, bytes_per_element)

    def prompt_scores(self, keys: Tensor, lengths: Tensor, observed: Mapping[str, Tensor]) -> Tensor:
        """Return how little each key of the prompt is like their mean."""
        return difference(keys, lengths[:, None].expand(keys.shape[:2]))

    def attend(self, layer: int, q: Tensor, state: DecodeState) -> Tensor:
        """Read what is kept and choose who makes room for the next token."""
        out, cache = self.attend_all(layer, q, state), state.cache
        if isinstance(cache, KeptCache) and layer not in self.dense_layers():
            lengths = cache.kv_lengths[layer]
            cache.record_newest(layer)
            free = before(lengths, cache.k[layer].shape[2])
            free = free & (cache.slot_positions[layer] < cache.protected[:, None, None])
            scores = difference(cache.k[layer], lengths)
            cache.victims[layer] = torch.where(free, scores, torch.inf).argmin(dim=2)
        return out


def difference(keys: Tensor, lengths: Tensor) -> Tensor:
    """Return ``-cos(k_i, mean_j k_j / |k_j|)``, ``[B, Hkv, S]``; anything past a length.

    Args:
        keys: ``[B, Hkv, S, D]``.
        lengths: ``[B, Hkv]`` int64.
    """
    stored = before(lengths, keys.shape[2])[..., None]
    unit = normalize(torch.where(stored, keys, 0.0).to(accumulator(keys.dtype)), dim=-1)
    # A positive factor on the mean changes no cosine.
    return -(unit @ normalize(unit.sum(dim=2), dim=-1)[..., None])[..., 0]


METHOD = KeyDiff
