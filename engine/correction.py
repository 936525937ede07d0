"""Cache Correction: now and then a dense step, or dense keys and values in place of those that sparse steps left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from longdecode.engine.errors import ConfigError

CorrectionMode = Literal["rewrite", "dense_step"]
CorrectionSetting = Literal["none", "rewrite", "dense_step"]
DEFAULT_PERIOD = 32


@dataclass(frozen=True, slots=True)
class Correction:
    """Ask for a repair of the cache every ``period`` decode steps.

    ``"rewrite"`` runs the last ``period`` fed tokens again as one dense chunk and writes their keys and values over
    those that the sparse steps stored; tokens already chosen stay. ``"dense_step"`` decodes every ``period``-th step
    with all heads reading everything. Both count a row's own steps from the end of its prompt.

    Raises:
        ConfigError: an unknown mode, or a period below 1.

    Source: arXiv 2602.04541 ("every 32 tokens, a dense-attention correction"); arXiv 2410.05076, cache correction.
    """

    mode: CorrectionMode
    period: int = DEFAULT_PERIOD

    def __post_init__(self) -> None:
        if self.mode not in get_args(CorrectionMode):
            raise ConfigError(f"correction mode {self.mode!r}, expected one of {', '.join(get_args(CorrectionMode))}")
        if self.period < 1:
            raise ConfigError(f"correction period of {self.period} tokens, expected 1 or more")

    @staticmethod
    def of(setting: CorrectionSetting, period: int) -> Correction | None:
        """The correction that a method's knobs ``correction`` and ``correction_period`` ask for; ``None`` for none."""
        return None if setting == "none" else Correction(setting, period)
