"""PyramidKV: SnapKV's cut with more room in lower layers and less in upper ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from longdecode.methods.window_cut import WindowCut, WindowParams


@dataclass(frozen=True, slots=True)
class PyramidParams(WindowParams):
    """Knobs of PyramidKV."""

    beta: Annotated[int, Field(ge=1)] = 20


class PyramidKV(WindowCut):
    """SnapKV's scores; what a layer keeps before the window falls linearly from the first layer to the last.

    Of ``b`` tokens before the window in the mean the last layer keeps ``b // beta`` and the first ``2 b - b // beta``,
    or as many as there are. Prompts of fewer than ``2 b`` tokens are cut alike in every layer.

    Source: Cai et al. 2024, PyramidKV (arXiv 2406.02069), section 3.2, and its released code; deviations in card.yaml.
    """

    name: ClassVar[str] = "pyramidkv"
    Params: ClassVar[type] = PyramidParams
    params: PyramidParams

    def budget_of(self, layer: int, context_tokens: int) -> int:
        """Return the window and the layer's step of the pyramid."""
        budget, last = self.budget_at(context_tokens), self.config.num_layers - 1
        base = budget - self.params.window
        if context_tokens <= budget or context_tokens < 2 * base or last == 0:
            return budget
        least = base // self.params.beta
        most = 2 * base - least
        if (before := context_tokens - self.params.window) < most:
            most, least = before, 2 * base - before
        # Rounded towards less, so that the mean over the layers keeps to the budget.
        return self.params.window + most - -(-layer * (most - least) // last)


METHOD = PyramidKV
