"""AdaKV: SnapKV's cut with a layer's room shared out among its KV heads by where the best scores are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from longdecode.methods.budgeted import exact_share
from longdecode.methods.window_cut import WindowCut, WindowParams


@dataclass(frozen=True, slots=True)
class AdaParams(WindowParams):
    """Knobs of AdaKV."""

    floor_share: Annotated[float, Field(ge=0, le=1)] = 0.2


class AdaKV(WindowCut):
    """SnapKV's scores; each KV head keeps in proportion to how many of the layer's best tokens are its own.

    Of ``b`` tokens before the window in the mean every head has ``floor_share * b`` for sure; the rest goes by the
    number of its tokens among the ``Hkv * b`` best of all heads.

    Source: Feng et al. 2024, Ada-KV (arXiv 2407.11550), algorithm 1 and section 3.3, and its released code for
    Ada-SnapKV; deviations in card.yaml.
    """

    name: ClassVar[str] = "adakv"
    Params: ClassVar[type] = AdaParams
    params: AdaParams

    def counts(self, layer: int, scores: Tensor, lengths: Tensor) -> Tensor:
        """Share out the layer's budget row by row; a prompt within the budget is kept whole."""
        kept = lengths[:, None].repeat(1, scores.shape[1])
        share = exact_share(self.params.floor_share)
        for row, tokens in enumerate(lengths.tolist()):
            base = self.budget_of(layer, tokens) - self.params.window
            before = tokens - self.params.window
            if before <= base:
                continue
            # Stable: of equal scores the lower head's earlier token counts.
            ranked = scores[row, :, :before].flatten().sort(descending=True, stable=True).indices
            own = torch.bincount(ranked[: base * scores.shape[1]] // before, minlength=scores.shape[1])
            floor = base * share.numerator // share.denominator
            adaptive = own * (share.denominator - share.numerator) // share.denominator
            kept[row] = (self.params.window + floor + adaptive).clamp(max=tokens)
        return kept


METHOD = AdaKV
