"""SnapKV: keep what the prompt's last queries attend to, once, at the end of the prefill."""

from __future__ import annotations

from typing import ClassVar

from longdecode.methods.window_cut import WindowCut, WindowParams


class SnapKV(WindowCut):
    """``budget`` tokens of the prompt per KV head: its last ``window``, and those that the window attends to most.

    Source: Li et al. 2024, SnapKV (arXiv 2404.14469), listing 1, and its released code; deviations in card.yaml.
    """

    name: ClassVar[str] = "snapkv"
    Params: ClassVar[type] = WindowParams


METHOD = SnapKV
