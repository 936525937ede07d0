"""The choice between two draft trees within one text: steps verify the one that lately wrote more tokens a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from longdecode.engine.sequences import Sequences

LOOK = 32
"""Steps in a window, all of one tree; between two windows the device is asked once what was written."""
TRY = 8
"""One window in so many is the other tree's."""


class Pace:
    """Say which of two trees the next step verifies.

    A window's rate is the tokens that a row wrote in a step over the seconds that a step took: rows that are done
    lower neither. The mean with the rates before, half as heavy each, is compared, since the acceptance over 32 steps
    varies.

    Args:
        sequences: the batch.
        clock: seconds on the host.
    """

    def __init__(self, sequences: Sequences, clock: Callable[[], float] = time.perf_counter):
        self.sequences, self.clock = sequences, clock
        self.rates = [0.0, 0.0]
        self.narrow = self.better = False
        self.steps = self.windows = 0
        self.began: tuple[float, ...] = (0, 0, 0.0)

    def takes_narrow(self, renewing: bool) -> bool:
        """Return true where the next step verifies the narrow tree; call it once a step, waits for the device seldom.

        Args:
            renewing: the step builds a cache anew, with the wide tree. It costs more than either tree's own steps, so
                the window it falls in is dropped and begun again, at most once: a cache built anew more often keeps the
                better tree.
        """
        if renewing:
            self.steps, self.narrow = 0, self.better if self.steps < LOOK else self.narrow
            return False
        if self.steps % LOOK == 0:
            self._look()
        self.steps += 1
        return self.narrow

    def _look(self) -> None:
        """Rate the window that ends here and choose the tree of the next one."""
        now = (*torch.stack((self.sequences.counts.sum(), self.sequences.steps.sum())).tolist(), self.clock())
        if self.steps:
            tokens, taken, seconds = (new - old for new, old in zip(now, self.began, strict=True))
            if taken:
                rate, before = tokens / taken / seconds, self.rates[self.narrow]
                self.rates[self.narrow] = (rate + before) / 2 if before else rate
                self.better ^= self.rates[not self.better] > self.rates[self.better]
            self.windows += 1
            self.narrow = self.better != (self.windows % TRY == 1)
        self.began = now
