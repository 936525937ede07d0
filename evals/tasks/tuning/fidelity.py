"""Distance from Full on text that no table uses: it tells settings of methods apart that answer no question."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Literal

from longdecode.evals.generators import narrative
from longdecode.evals.tasks.base import Sample, Score
from longdecode.evals.tasks.fidelity.suite import TOP_TOKENS, Prose, kl_from_full
from longdecode.evals.tasks.generated import counts_bytes, fitted, sample_rng
from longdecode.evals.tasks.windows import tail_start

if TYPE_CHECKING:
    from longdecode.engine.request import Completion
    from longdecode.evals.tokenizing import TextTokenizer

BOOKS = ("27454", "53345")
"""PG-19 books that the project's models were trained on, so that no suite asks for them."""
FORCED_TOKENS = 96
PEOPLE = 16


class TuningProse(Prose):
    """Force a book's next tokens through a method: ``exp(-KL)`` from Full, 1 where nothing is lost."""

    suite = "tuning"
    name = "tuning_prose"
    kind: Literal["generate", "loss"] = "loss"
    metric = "nearness"
    unit = "fraction"
    higher_is_better = True
    continuation_tokens = FORCED_TOKENS
    full_top_tokens = TOP_TOKENS
    ids = BOOKS

    def _sample(self, index: int, prompt: str, tail: str, name: str) -> Sample:
        return Sample(index, prompt, tail, 0, None, name)

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Return ``exp`` of minus the mean divergence from Full, which lies between 0 and 1."""
        return Score(math.exp(-max(0.0, kl_from_full(completion, full).mean().item())))


class TuningStory(TuningProse):
    """The same on a generated narrative of a smaller cast than the suites' own, which needs no data."""

    name = "tuning_story"
    data_source: Literal["generated", "real"] = "generated"
    samples_per_problem = 1

    def samples(
        self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer | None = None
    ) -> list[Sample]:
        """Make ``count`` narratives that fill ``context_tokens``."""

        def tell(rng: random.Random, size: int) -> str:
            return narrative.narrative(rng, size, 0, PEOPLE).prompt

        def rng(index: int) -> random.Random:
            return sample_rng(self.name, context_tokens, seed, index)

        if tokenizer is None or counts_bytes(tokenizer):
            texts = [tell(rng(index), context_tokens) for index in range(count)]
        else:
            texts = fitted(tell, lambda text: len(tokenizer.prompt_ids(text)), context_tokens, rng, count)
        cuts = [tail_start(text, FORCED_TOKENS, tokenizer) for text in texts]
        return [self._sample(i, t[:cut], t[cut:], t[:0]) for i, (t, cut) in enumerate(zip(texts, cuts, strict=True))]
