"""Random identifiers in a JSON object that fills the context, one asked for; HELMET's recall beside RULER's needles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from longdecode.evals.generators.json_kv import EXAMPLES, KeyValueQuestion, json_kv
from longdecode.evals.scoring.helmet import substring_exact_match
from longdecode.evals.tasks.base import Sample, Score, Suite, Task
from longdecode.evals.tasks.generated import filling, sample_rng

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

DEPTHS = 6
"""Places of the asked pair, evenly spaced from the first pair to the last; samples take them in turn."""
MAX_NEW_TOKENS = 100


class JsonKv(Task):
    """One value looked up among as many pairs as fit; the asked key is decoded through the method.

    Source: Yen et al. 2024 (HELMET, arXiv 2410.02694); github princeton-nlp/HELMET, data.py and configs/recall.yaml:
    two answered keys, 100 tokens to generate, greedy, no chat template. Deviations: the generator's; the object is made
    for the model's tokenizer and this context, where the original has files of a fixed number of pairs; the answered
    keys are of the same object; the asked key is not prefilled.
    """

    name = "json_kv"
    suite = "json_kv"
    version = 1
    kind: Literal["generate", "loss"] = "generate"
    metric = "substring_exact_match"
    unit = "fraction"
    higher_is_better = True
    data_source: Literal["generated", "real"] = "generated"
    stop_at_eos = True

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Ask for one key each of an object that fills the context.

        Raises:
            UnsupportedCellError: not even the answered keys and the asked one fit.
        """

        def make(index: int, pairs: int) -> KeyValueQuestion:
            return json_kv(sample_rng(self.name, context_tokens, seed, index), pairs, index % DEPTHS / (DEPTHS - 1))

        def tokens(made: KeyValueQuestion) -> int:
            return len(tokenizer.prompt_ids(made.prompt)) + len(tokenizer.encode(made.question))

        made = filling(self, make, tokens, EXAMPLES + 1, count, context_tokens, MAX_NEW_TOKENS)
        return [
            Sample(index, question.prompt, question.question, MAX_NEW_TOKENS, None, question.value)
            for index, question in enumerate(made)
        ]

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """1 where the value stands in the completion, else 0."""
        return Score(substring_exact_match(completion, sample.meta))


SUITE = Suite({JsonKv.name: lambda data: JsonKv()}, question="decoded")
