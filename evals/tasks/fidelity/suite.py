"""Distance of a method's predictions from Full's on prose after a dense prefill, which asks no skill of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from longdecode.engine.errors import DataUnavailableError, UnsupportedCellError
from longdecode.evals.datasets.books import read_books
from longdecode.evals.datasets.data_file import read_text
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.generated import sample_rng
from longdecode.evals.tasks.windows import has_tokens, window

if TYPE_CHECKING:
    from torch import Tensor

    from longdecode.engine.request import Completion
    from longdecode.evals.tokenizing import TextTokenizer

UNSEEN = ("860", "4047", "5962", "7412", "9931", "12204", "26493", "28444")
"""PG-19 books that no model of this project was trained on."""
FORCED_TOKENS = 128
FREE_TOKENS = 128
BINS = 8
TOP_TOKENS = 64
WINDOWS_A_TEXT = 4
_LEAST_MASS = 1e-7  # what float32 log-probabilities of 64 tokens leave of the rest


class Prose(Task):
    """Windows of texts that no model has seen; a problem is a text, so that intervals are clustered by it.

    Args:
        books: a folder or hub id with PG-19's books, as ``read_books`` takes it; those of ``ids`` are read.
        prose: a text file, or a folder of them, read in place of the books.
    """

    ids: tuple[str, ...] = UNSEEN
    suite = "fidelity"
    version = 1
    data_source: Literal["generated", "real"] = "real"
    samples_per_problem = WINDOWS_A_TEXT
    against_full = True
    continuation_tokens: int

    def __init__(self, books: Path | None, prose: Path | None):
        self.books = books
        self.prose = prose

    def samples(
        self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer | None = None
    ) -> list[Sample]:
        """Cut ``samples_per_problem`` windows of each of the first ``count`` texts that are long enough.

        Raises:
            UnsupportedCellError: no text is as long as the context, or the context is shorter than the continuation.
            DataUnavailableError: the texts are not here; the message says how to fetch them.
        """
        prompt_tokens = context_tokens - self.continuation_tokens
        if prompt_tokens < 1:
            raise UnsupportedCellError(
                f"{self.name} continues by {self.continuation_tokens} of {context_tokens} tokens"
            )
        texts = {name: text for name, text in self._texts().items() if has_tokens(text, context_tokens, tokenizer)}
        if not texts:
            raise UnsupportedCellError(
                f"{self.name}: no text of {self.prose or self.books} has {context_tokens} tokens; the longest has "
                f"{max(map(len, self._texts().values()))} characters"
            )
        samples: list[Sample] = []
        for name, text in list(texts.items())[:count]:
            for _ in range(self.samples_per_problem):
                rng = sample_rng(self.name, context_tokens, seed, len(samples))
                prompt, tail = window(text, rng, prompt_tokens, self.continuation_tokens, tokenizer)
                samples.append(self._sample(len(samples), prompt, tail, name))
        return samples

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Refuse: a completion by itself says nothing of fidelity."""
        raise NotImplementedError(f"{self.name} is scored against Full")

    def _sample(self, index: int, prompt: str, tail: str, name: str) -> Sample:
        raise NotImplementedError

    def _texts(self) -> Mapping[str, str]:
        if self.prose is not None:
            files = sorted(self.prose.rglob("*.txt")) if self.prose.is_dir() else [self.prose]
            if not files or not files[0].is_file():
                raise DataUnavailableError(f"data.prose is {self.prose}: neither a text file nor a folder of *.txt")
            return {file.stem: read_text(file, _unreadable_prose) for file in files}
        try:
            return read_books(self.books, self.ids)
        except DataUnavailableError as error:
            raise DataUnavailableError(f"{error}; or set data.prose to a text of your own") from error


def _unreadable_prose(why: str) -> DataUnavailableError:
    return DataUnavailableError(f"{why}; set data.prose to a text of your own in UTF-8, or to a folder of them")


class FidelityForced(Prose):
    """The text's own next tokens forced through the method: what their loss is over Full's, and how far the
    distributions are apart.

    ``measures``: ``kl`` from Full over its 64 likeliest tokens and all others as one, in nats; ``top1``, the share of
    steps where Full's first choice stays first; both also by tokens since the prefill (``kl_from_16`` ...).
    """

    name = "fidelity_forced"
    kind: Literal["generate", "loss"] = "loss"
    metric = "loss_over_full"
    unit = "nats/token"
    higher_is_better = False
    continuation_tokens = FORCED_TOKENS
    full_top_tokens = TOP_TOKENS
    bins = BINS

    def _sample(self, index: int, prompt: str, tail: str, name: str) -> Sample:
        return Sample(index, prompt, tail, 0, None, name)

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Return the mean loss over Full's, by stretch too, with the divergence and the kept first choices."""
        import torch  # seconds that naming the suite's tasks does not need

        over = torch.tensor(full.forced_logprobs) - torch.tensor(completion.forced_logprobs)
        divergence, kept = kl_from_full(completion, full), first_kept(completion, full)
        measures = {"kl": divergence.mean().item(), "top1": kept.mean().item()}
        for name, values in (("kl", divergence), ("top1", kept)):
            measures |= {f"{name}_from_{start}": mean for start, mean in self.stretches(values)}
        return Score(over.mean().item(), tuple(mean for _, mean in self.stretches(over)), measures)

    def stretches(self, values: Tensor) -> list[tuple[int, float]]:
        """Return means of ``bins`` stretches with their first token; the last takes what is left over."""
        width = max(1, len(values) // self.bins)
        starts = [i * width for i in range(self.bins) if i * width < len(values)]
        ends = [*starts[1:], len(values)]
        named = (self.continuation_tokens // self.bins * i for i in range(len(starts)))
        return [(name, values[start:end].mean().item()) for name, start, end in zip(named, starts, ends, strict=True)]


class FidelityFree(Prose):
    """Greedy continuation: how many tokens a method writes before its first that is not Full's."""

    name = "fidelity_free"
    kind: Literal["generate", "loss"] = "generate"
    metric = "tokens_as_full"
    unit = "tokens"
    higher_is_better = True
    continuation_tokens = FREE_TOKENS

    def _sample(self, index: int, prompt: str, tail: str, name: str) -> Sample:
        return Sample(index, prompt, "", self.continuation_tokens, None, name)

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Return the number of tokens before the first different one."""
        pairs = zip(completion.output_ids, full.output_ids, strict=False)
        same = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
        return Score(float(min(len(completion.output_ids), len(full.output_ids)) if same is None else same))


def kl_from_full(completion: Completion, full: Completion) -> Tensor:
    """Return ``sum p log(p / q)`` over Full's likeliest tokens, and all others as one, ``[N]`` float64."""
    assert full.top_logprobs is not None and completion.compared_logprobs is not None
    log_p, log_q = full.top_logprobs.double(), completion.compared_logprobs.double()
    p = log_p.exp()
    rest_p, rest_q = ((1 - log.exp().sum(dim=1)).clamp(min=_LEAST_MASS) for log in (log_p, log_q))
    return (p * (log_p - log_q)).sum(dim=1) + rest_p * (rest_p / rest_q).log()


def first_kept(completion: Completion, full: Completion) -> Tensor:
    """Return 1 at each forced place where Full's first choice is the method's, else 0, ``[N]`` float64."""
    assert full.top_ids is not None and completion.top_ids is not None
    return (full.top_ids[:, 0] == completion.top_ids[:, 0]).double()


def _task(kind: type[Prose]) -> Callable[[Data], Task]:
    return lambda data: kind(data.get("pg19"), data.get("prose"))


SUITE = Suite({kind.name: _task(kind) for kind in (FidelityForced, FidelityFree)}, data=("pg19", "prose"))
