"""LongBench v1, E and v2 on real documents.

Source: Bai et al. 2023 (arXiv 2308.14508) and 2024 (LongBench v2, arXiv 2412.15204); the protocols' numbers and texts
are in longbench.yaml, with their sources.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.config_values import read_yaml
from longdecode.evals.datasets.reader import SOURCES, HubId, Row, hub_file, json_rows, read_rows
from longdecode.evals.scoring.longbench import first_line, score_answers
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task

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
"""LongBench v2's key in longbench.yaml: 503 questions with four choices."""
QUESTION_CHARACTERS = 100
"""At most so many characters at the prompt's end are decoded token by token."""
Marks = tuple[tuple[str, ...], tuple[str, ...] | None]
"""References of a question, and the names of all classes if there are any."""
_ARCHIVE = "data.zip"
_DATA = SOURCES["longbench"]


@dataclass(frozen=True, slots=True)
class LongBenchProtocol:
    """One line of longbench.yaml: prompt with ``{context}`` and ``{input}``, tokens to generate, how to mark."""

    prompt: str
    max_new_tokens: int
    metric: str
    marker: str | None = None
    first_line: bool = False


PROTOCOLS: Mapping[str, LongBenchProtocol] = {
    name: LongBenchProtocol(**values) for name, values in read_yaml(Path(__file__).with_suffix(".yaml")).items()
}
"""The protocol of every data set: LongBench v1's in its order, then v2's."""


class LongBench(Task):
    """One data set; sample ``i`` is its row ``i``, and a context is the length that prompts are cut down to.

    A prompt longer than the context less the generation loses its middle, counted in tokens. Then the
    question is cut off its end to be decoded through the method: from the task's marker on, but at most the last 100
    characters; so a method must find the answer's place by itself, rather than be shown it by a dense prefill. No chat
    template: neither of the harnesses that this mirrors applies one.

    Args:
        dataset: LongBench's name of the data set; of LongBench-E with ``_e`` at its end; or ``V2``.
        data: ``longbench`` and ``longbench_v2`` are folders or hub ids of the data.

    Source: github DerrickYLJ/TidalDecode, examples/LongBench/pred.py, for the decoded question. Deviations: its tail
    loses a first token where the tokenizer puts none before a text (Qwen), ours does not; NarrativeQA is cut to the
    cell's context like the others, not always to 28,000.
    """

    data_source = "real"
    stop_at_eos = True

    def __init__(self, dataset: str, data: Data):
        super().__init__(data)
        self.dataset = dataset
        self.protocol = PROTOCOLS[dataset.removesuffix("_e")]
        self.metric = self.protocol.metric

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Cut the first ``count`` rows to ``context_tokens``; ``seed`` plays no part.

        Raises:
            UnsupportedCellError: the context leaves no room before the generation.
            DataUnavailableError: the rows are not here.
        """
        if v2 := self.dataset == V2:
            rows = read_rows(SOURCES["longbench_v2"], self.data.get("longbench_v2"))[:count]
        else:
            rows = read_v1_rows(self.data.get("longbench"), self.dataset, count)
        most = self.protocol.max_new_tokens
        # One replacement pass: braces in a context (code, for one) are text.
        before, _, after = self.protocol.prompt.partition("{context}")
        made = []
        for index, row in enumerate(rows):
            question, marks = _v2(row) if v2 else _v1(row)
            text = before + row.text("context") + after.replace("{input}", question)
            made.append(Sample(index, *self._cut(text, context_tokens - most, tokenizer), most, None, marks))
        return made

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return the metric's best value over the references."""
        answers, classes = sample.meta
        marked = first_line(completion) if self.protocol.first_line else completion
        return Score(score_answers(self.metric, marked, answers, classes))

    def _cut(self, text: str, room: int, tokenizer: TextTokenizer) -> tuple[str, str]:
        """Return a text's prompt and question in at most ``room`` tokens, its middle cut out where needed."""
        ids = tokenizer.encode(text)
        keep = len(ids)
        while True:
            marked = text.rfind(self.protocol.marker) if self.protocol.marker else -1
            at = max(1, len(text) - QUESTION_CHARACTERS, marked)
            excess = len(tokenizer.prompt_ids(text[:at])) + len(tokenizer.encode(text[at:])) - room
            if excess <= 0:
                return text[:at], text[at:]
            # Halves that were decoded, joined and split may take a few tokens more than they were.
            keep = min(keep - excess, len(ids) - 1)
            if keep < 2:
                most = self.protocol.max_new_tokens
                raise UnsupportedCellError(f"{self.name} generates {most} tokens; {room} are left for its prompt")
            half = keep // 2
            text = tokenizer.decode(ids[:half]) + tokenizer.decode(ids[-half:])


def _v1(row: Row) -> tuple[str, Marks]:
    classes = None if row.values.get("all_classes") is None else row.texts("all_classes")
    return row.text("input"), (row.texts("answers"), classes)


def _v2(row: Row) -> tuple[str, Marks]:
    """Return a question of LongBench v2, its choices after it, with the right one's letter."""
    choices = (f"({letter}) {row.text(f'choice_{letter}')}" for letter in "ABCD")
    return "\n".join([row.text("question", blank=False), *choices]), ((row.answer("answer"),), None)


def read_v1_rows(source: Path | None, dataset: str, count: int) -> list[Row]:
    """Return the first ``count`` rows of a data set, or all it has.

    Args:
        source: a folder with ``<dataset>.jsonl`` at any depth or with ``data.zip``; ``hub``; or a hub id, ``org/name``
            or ``org/name@revision`` where it is not at the official commit; ``None`` where none is named.
        dataset: LongBench's own name, such as ``qmsum``, or LongBench-E's, such as ``qasper_e``.

    Raises:
        DataUnavailableError: the file is not here and cannot be fetched, or is not LongBench's; the message holds the
            command that fetches it.
    """
    with _DATA.reading(f"{dataset}.jsonl in {source} cannot be read"):
        name, raw = _file(source, dataset)
    return list(islice(json_rows(_DATA, io.BytesIO(raw), name), count))


def _file(source: Path | None, dataset: str) -> tuple[str, bytes]:
    """Return the file of a data set, by name and content: of a folder, or of the archive that it was published in."""
    place = _DATA.locate(source)
    if isinstance(place, HubId):
        archive = hub_file(_DATA, place, _ARCHIVE)
    elif files := sorted(place.rglob(f"{dataset}.jsonl"), key=lambda file: (len(file.parts), file)):
        return str(files[0]), files[0].read_bytes()
    else:
        archive = place / _ARCHIVE
    with zipfile.ZipFile(archive) as zipped:
        members = [name for name in zipped.namelist() if Path(name).name == f"{dataset}.jsonl"]
        if not members:
            raise _DATA.unavailable(f"{archive} holds no {dataset}.jsonl")
        return f"{archive}:{members[0]}", zipped.read(members[0])


SUITES: Mapping[str, Suite] = {
    "longbench": Suite(
        {
            **{f"longbench_{dataset}": partial(LongBench, dataset) for dataset in PROTOCOLS},
            **{f"longbench_e_{dataset}": partial(LongBench, f"{dataset}_e") for dataset in EVEN_THIRTEEN},
        },
        default=tuple(f"longbench_{dataset}" for dataset in ENGLISH_EIGHT),
        data=("longbench", "longbench_v2"),
        question="decoded",
    )
}
