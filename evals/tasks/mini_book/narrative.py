"""A generated narrative: its loss after a long context, and whether what a method writes agrees with what was told."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Literal

from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals.generators import narrative
from longdecode.evals.tasks.base import Sample, Score, Task
from longdecode.evals.tasks.generated import sample_rng

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

CONTINUATION_BYTES = 256
LOSS_BINS = 8
WRITE_BYTES = 384


class LossTask(Task):
    """Nats per byte of a forced continuation: the mean, and the means of eight equal stretches of it."""

    suite = "mini_book"
    version = 1
    kind: Literal["generate", "loss"] = "loss"
    metric = "loss"
    unit = "nats/byte"
    higher_is_better = False
    data_source: Literal["generated", "real"] = "generated"
    byte_level = True

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Mean nats per byte, overall and by stretch."""
        width = len(forced_nll) // LOSS_BINS
        parts = tuple(fmean(forced_nll[i * width : (i + 1) * width]) for i in range(LOSS_BINS))
        return Score(fmean(forced_nll), parts)


class MiniBookLoss(LossTask):
    """Loss on the last 256 bytes of a narrative whose facts come back: a context that is used lowers it."""

    name = "mini_book_loss"

    def samples(
        self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer | None = None
    ) -> list[Sample]:
        """Make ``count`` narratives of exactly ``context_tokens`` bytes.

        Raises:
            UnsupportedCellError: the context leaves no room before the continuation.
        """
        _refuse_short(self.name, context_tokens, CONTINUATION_BYTES)
        episodes = (
            narrative.narrative(sample_rng(self.name, context_tokens, seed, i), context_tokens, CONTINUATION_BYTES)
            for i in range(count)
        )
        return [Sample(i, episode.prompt, episode.answer, 0, None, None) for i, episode in enumerate(episodes)]


class MiniBookWrite(Task):
    """A sampled continuation of 384 bytes: the share of its restated facts that agree with their first telling.

    A completion that restates nothing scores 0: it has shown no use of its context.
    """

    name = "mini_book_write"
    suite = "mini_book"
    version = 1
    kind: Literal["generate", "loss"] = "generate"
    metric = "consistency"
    unit = "fraction"
    higher_is_better = True
    data_source: Literal["generated", "real"] = "generated"
    byte_level = True
    temperature = 1.0

    def samples(
        self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer | None = None
    ) -> list[Sample]:
        """Make ``count`` narratives that, with the 384 bytes to be written, fill ``context_tokens``.

        Raises:
            UnsupportedCellError: the context leaves no room before the continuation.
        """
        _refuse_short(self.name, context_tokens, WRITE_BYTES)
        episodes = (
            narrative.narrative(sample_rng(self.name, context_tokens, seed, i), context_tokens, WRITE_BYTES)
            for i in range(count)
        )
        return [Sample(i, episode.prompt, "", WRITE_BYTES, None, None) for i, episode in enumerate(episodes)]

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """The share of restated facts that agree, and one mark a fact in the order written."""
        parts = tuple(float(agrees) for agrees in narrative.check_statements(sample.prompt, completion))
        return Score(fmean(parts) if parts else 0.0, parts)


def _refuse_short(task: str, context_tokens: int, continuation_bytes: int) -> None:
    if context_tokens <= continuation_bytes:
        raise UnsupportedCellError(
            f"{task} continues by {continuation_bytes} tokens; a context of {context_tokens} is too short"
        )
