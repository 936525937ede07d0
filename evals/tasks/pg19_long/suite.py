"""Books continued for long: the loss along a forced continuation of up to 16,384 tokens, and free running.

Source: Rae et al. 2020 (Compressive Transformers, arXiv 1911.05507) for the books; RetroAttention (arXiv 2508.09001,
figures 1b and 7) for the gap to full attention along a long continuation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.fidelity.suite import FidelityForced, FidelityFree

if TYPE_CHECKING:
    from longdecode.engine.request import Completion

LENGTHS = (1024, 4096, 16384)
BINS = 16
GRAM = 4


class Pg19LongForced(FidelityForced):
    """``tokens`` of a book forced through the method after a dense prefill: loss over Full's, in 16 stretches.

    ``measures`` besides fidelity's: ``loss``, the method's own in nats a token, whole and by stretch (``loss_from_0``).
    """

    suite = "pg19_long"
    samples_per_problem = 1
    bins = BINS

    def __init__(self, tokens: int, books: Path | None, prose: Path | None):
        super().__init__(books, prose)
        self.name = f"pg19_long_forced_{tokens}"
        self.continuation_tokens = tokens

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Return fidelity's score, and the method's own loss."""
        import torch  # seconds that naming the suite's tasks does not need

        score = super().compare(sample, completion, full)
        loss = -torch.tensor(completion.forced_logprobs)
        by_stretch = {f"loss_from_{start}": mean for start, mean in self.stretches(loss)}
        return replace(score, measures={**score.measures, "loss": loss.mean().item(), **by_stretch})


class Pg19LongFree(FidelityFree):
    """``tokens`` written greedily: how many before the first that is not Full's, and how much repeats itself.

    ``measures``: ``repeated``, the share of runs of four tokens that stood earlier in the same continuation, and
    ``repeated_full``, the same of Full's: a method that loses its context falls into loops.

    Source: Welleck et al. 2020 (Unlikelihood Training, arXiv 1908.04319), seq-rep-4, for the share.
    """

    suite = "pg19_long"
    samples_per_problem = 1

    def __init__(self, tokens: int, books: Path | None, prose: Path | None):
        super().__init__(books, prose)
        self.name = f"pg19_long_free_{tokens}"
        self.continuation_tokens = tokens

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Return the number of tokens before the first different one, and the repetition of both."""
        measures = {"repeated": repeated(completion.output_ids), "repeated_full": repeated(full.output_ids)}
        return replace(super().compare(sample, completion, full), measures=measures)


def repeated(ids: Sequence[int]) -> float:
    """Return the share of runs of four tokens that stood before; 0 where there is none."""
    grams = [tuple(ids[start : start + GRAM]) for start in range(len(ids) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _task(kind: Callable[[int, Path | None, Path | None], Task], tokens: int) -> Callable[[Data], Task]:
    return lambda data: kind(tokens, data.get("pg19"), data.get("prose"))


SUITE = Suite(
    {f"pg19_long_forced_{tokens}": _task(Pg19LongForced, tokens) for tokens in LENGTHS}
    | {f"pg19_long_free_{tokens}": _task(Pg19LongFree, tokens) for tokens in LENGTHS},
    default=("pg19_long_forced_16384", "pg19_long_free_4096"),
    data=("pg19", "prose"),
)
