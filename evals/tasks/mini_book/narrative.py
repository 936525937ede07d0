"""A generated narrative: its loss after a long context, and whether what a method writes agrees with what was told."""

from __future__ import annotations

import random
from math import fsum
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals.generators import narrative
from longdecode.evals.tasks.base import Sample, Score, Task
from longdecode.evals.tasks.generated import counts_bytes, fitted, sample_rng
from longdecode.evals.tasks.windows import head_end, tail_start

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

CONTINUATION_TOKENS = 256
LOSS_BINS = 8
WRITE_TOKENS = 384


class LossTask(Task):
    """Nats per byte of a forced continuation: the mean, and the means of eight equal stretches of it."""

    suite = "mini_book"
    version = 1
    kind: Literal["generate", "loss"] = "loss"
    metric = "loss"
    unit = "nats/byte"
    higher_is_better = False
    data_source: Literal["generated", "real"] = "generated"

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return nats per byte, overall and by stretch; a stretch is an eighth of the tokens and of the bytes."""
        width, size = len(forced_nll) // LOSS_BINS, len(sample.forced.encode())
        stretches = (forced_nll[i * width : (i + 1) * width] for i in range(LOSS_BINS))
        return Score(fsum(forced_nll) / size, tuple(fsum(stretch) / (size // LOSS_BINS) for stretch in stretches))


class MiniBookLoss(LossTask):
    """Loss on the last 256 bytes of a narrative whose facts come back: a context that is used lowers it."""

    name = "mini_book_loss"

    def samples(
        self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer | None = None
    ) -> list[Sample]:
        """Make ``count`` narratives that fill ``context_tokens``.

        Raises:
            UnsupportedCellError: the context leaves no room before the continuation.
        """
        texts = _narratives(self.name, context_tokens, count, seed, tokenizer, CONTINUATION_TOKENS)
        cuts = [tail_start(text, CONTINUATION_TOKENS, tokenizer) for text in texts]
        return [
            Sample(i, text[:cut], text[cut:], 0, None, None)
            for i, (text, cut) in enumerate(zip(texts, cuts, strict=True))
        ]


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
    temperature = 1.0

    def samples(
        self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer | None = None
    ) -> list[Sample]:
        """Make ``count`` narratives that, with the 384 tokens to be written, fill ``context_tokens``.

        Raises:
            UnsupportedCellError: the context leaves no room before the continuation.
        """
        texts = _narratives(self.name, context_tokens, count, seed, tokenizer, WRITE_TOKENS)
        room = context_tokens - WRITE_TOKENS - (len(tokenizer.first_ids) if tokenizer else 0)
        prompts = [text[: head_end(text, 0, room, tokenizer)] for text in texts]
        return [Sample(i, prompt, "", WRITE_TOKENS, None, None) for i, prompt in enumerate(prompts)]

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """The share of restated facts that agree, and one mark a fact in the order written."""
        parts = tuple(float(agrees) for agrees in narrative.check_statements(sample.prompt, completion))
        return Score(fmean(parts) if parts else 0.0, parts)


def _narratives(
    task: str, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer | None, continuation_tokens: int
) -> list[str]:
    """Make narratives of as many tokens as the context has."""
    if context_tokens <= continuation_tokens:
        raise UnsupportedCellError(
            f"{task} continues by {continuation_tokens} tokens; a context of {context_tokens} is too short"
        )

    def tell(rng: random.Random, size: int) -> str:
        return narrative.narrative(rng, size, 0).prompt

    def rng(index: int) -> random.Random:
        return sample_rng(task, context_tokens, seed, index)

    if tokenizer is None or counts_bytes(tokenizer):
        return [tell(rng(index), context_tokens) for index in range(count)]
    return fitted(tell, lambda text: len(tokenizer.prompt_ids(text)), context_tokens, rng, count)
