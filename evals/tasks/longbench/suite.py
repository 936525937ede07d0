"""LongBench v1, E and v2 on real documents.

Source: Bai et al. 2023 (arXiv 2308.14508) and 2024 (LongBench v2, arXiv 2412.15204); the protocols' numbers and texts
are in protocol.yaml, with their sources.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import yaml

from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals.datasets.longbench import LongBenchRow, read_rows, read_v2_rows
from longdecode.evals.scoring.longbench import first_line, score_answers
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

ENGLISH_EIGHT = (
    "qmsum", "narrativeqa", "qasper", "multifieldqa_en", "triviaqa", "passage_retrieval_en", "hotpotqa", "2wikimqa",
)  # fmt: skip
"""The tasks that TidalDecode's and LycheeDecode's tables report."""
EVEN_THIRTEEN = (
    "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "gov_report", "multi_news", "trec", "triviaqa", "samsum",
    "passage_count", "passage_retrieval_en", "lcc", "repobench-p",
)  # fmt: skip
"""The data sets of LongBench-E, whose rows are spread evenly over 0 to 4, 4 to 8 and over 8 thousand words."""
V2 = "v2"
"""LongBench v2's key in protocol.yaml: 503 questions with four choices."""
QUESTION_CHARACTERS = 100
"""At most so many characters at the prompt's end are decoded token by token."""


@dataclass(frozen=True, slots=True)
class LongBenchProtocol:
    """One line of protocol.yaml: prompt with ``{context}`` and ``{input}``, tokens to generate, how to mark."""

    prompt: str
    max_new_tokens: int
    metric: str
    marker: str | None = None
    first_line: bool = False


@functools.cache
def protocols() -> Mapping[str, LongBenchProtocol]:
    """The protocol of every data set: LongBench v1's in its order, then v2's."""
    text = Path(__file__).with_name("protocol.yaml").read_text(encoding="utf-8")
    return {name: LongBenchProtocol(**values) for name, values in yaml.safe_load(text).items()}


class LongBench(Task):
    """One data set; sample ``i`` is its row ``i``, and a context is the length that prompts are cut down to.

    A prompt longer than the context less the generation loses its middle, counted in tokens. Then the
    question is cut off its end to be decoded through the method: from the task's marker on, but at most the last 100
    characters; so a method must find the answer's place by itself, rather than be shown it by a dense prefill. No chat
    template: neither of the harnesses that this mirrors applies one.

    Args:
        dataset: LongBench's name of the data set; of LongBench-E with ``_e`` at its end; or ``V2``.
        source: folder or hub id of the data (``read_rows``).

    Source: github DerrickYLJ/TidalDecode, examples/LongBench/pred.py, for the decoded question. Deviations: its tail
    loses a first token where the tokenizer puts none before a text (Qwen), ours does not; NarrativeQA is cut to the
    cell's context like the others, not always to 28,000.
    """

    suite = "longbench"
    version = 1
    kind: Literal["generate", "loss"] = "generate"
    unit = "fraction"
    higher_is_better = True
    data_source: Literal["generated", "real"] = "real"
    stop_at_eos = True

    def __init__(self, dataset: str, source: Path | None):
        base = dataset.removesuffix("_e")
        self.name = f"longbench_{base if base == dataset else f'e_{base}'}"
        self.dataset = dataset
        self.source = source
        self.protocol = protocols()[base]
        self.metric = self.protocol.metric

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """The first ``count`` rows, cut to ``context_tokens``; ``seed`` plays no part.

        Raises:
            UnsupportedCellError: the context leaves no room before the generation.
            DataUnavailableError: the rows are not here.
        """
        v2 = self.dataset == V2
        rows = read_v2_rows(self.source, count) if v2 else read_rows(self.source, self.dataset, count)
        return [self._sample(index, row, context_tokens, tokenizer) for index, row in enumerate(rows)]

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """The metric's best value over the references."""
        answers, classes = sample.meta
        marked = first_line(completion) if self.protocol.first_line else completion
        return Score(score_answers(self.metric, marked, answers, classes))

    def _sample(self, index: int, row: LongBenchRow, context_tokens: int, tokenizer: TextTokenizer) -> Sample:
        # One replacement pass: braces in a context (code, for one) are text.
        before, _, after = self.protocol.prompt.partition("{context}")
        prompt, forced = self._fit(
            before + row.context + after.replace("{input}", row.input), context_tokens, tokenizer
        )
        meta = (row.answers, row.all_classes)
        return Sample(index, prompt, forced, self.protocol.max_new_tokens, None, meta)

    def _fit(self, text: str, context_tokens: int, tokenizer: TextTokenizer) -> tuple[str, str]:
        """Prompt and forced text of at most ``context_tokens`` less the generation, the middle cut out where needed."""
        room = context_tokens - self.protocol.max_new_tokens
        ids = tokenizer.encode(text)
        keep = len(ids)
        while True:
            half = keep // 2
            cut = text if keep >= len(ids) else tokenizer.decode(ids[:half]) + tokenizer.decode(ids[-half:])
            prompt, forced = self._split(cut)
            excess = len(tokenizer.prompt_ids(prompt)) + len(tokenizer.encode(forced)) - room
            if excess <= 0:
                return prompt, forced
            # Halves that were decoded, joined and split may take a few tokens more than they were.
            keep = min(keep - excess, len(ids) - 1)
            if keep < 2:
                raise UnsupportedCellError(
                    f"{self.name} generates {self.protocol.max_new_tokens} tokens; a context of {context_tokens} "
                    "leaves no room for its prompt"
                )

    def _split(self, text: str) -> tuple[str, str]:
        marked = text.rfind(self.protocol.marker) if self.protocol.marker else -1
        at = max(1, len(text) - QUESTION_CHARACTERS, marked)
        return text[:at], text[at:]


def _task(dataset: str) -> Callable[[Data], Task]:
    place = "longbench_v2" if dataset == V2 else "longbench"
    return lambda data: LongBench(dataset, data.get(place))


_DATASETS = (*protocols(), *(f"{dataset}_e" for dataset in EVEN_THIRTEEN))
SUITE = Suite(
    {LongBench(dataset, None).name: _task(dataset) for dataset in _DATASETS},
    default=tuple(f"longbench_{dataset}" for dataset in ENGLISH_EIGHT),
    data=("longbench", "longbench_v2"),
    question="decoded",
)
