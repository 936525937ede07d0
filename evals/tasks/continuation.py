"""Texts continued after a dense prefill: loss on real and generated prose, distance from Full, and what is written.

Four suites: ``fidelity`` and ``pg19_long`` (distance from Full, which asks no skill of a model), ``mini_book`` (long
narratives), and ``tuning`` (prompts that knobs are tuned on, so that no table's prompt chooses a knob).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.datasets.books import UNSEEN, read_books
from longdecode.evals.datasets.reader import SOURCES, read_text
from longdecode.evals.generators import narrative
from longdecode.evals.tasks.base import Data, Reasked, Sample, Score, Suite, Task
from longdecode.evals.tasks.episodes import CHAIN, LOOKUP, EpisodeTask
from longdecode.evals.tasks.fitting import fill_context, has_tokens, head_end, tail_start, window
from longdecode.evals.tasks.needles import JsonKv

if TYPE_CHECKING:
    from torch import Tensor

    from longdecode.engine.request import Completion

HELD_OUT = ("12204", "860")
"""Books of PG-19's test split that no training run of the miniature reads."""
TUNING_BOOKS = ("27454", "53345")
"""PG-19 books that the project's models were trained on, so that no suite asks for them."""
TUNING_PEOPLE = 16
LENGTHS = (1024, 4096, 16384)
TOP_TOKENS = 64
GRAM = 4
_LEAST_MASS = 1e-7  # what float32 log-probabilities of 64 tokens leave of the rest
_PROSE = SOURCES["prose"]


@dataclass(frozen=True, slots=True)
class Story:
    """A generated narrative that fills the context; its facts come back, so that a context that is used helps."""

    people: int = narrative.PEOPLE

    def cut(
        self, task: Continuation, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer
    ) -> Iterator[tuple[str, str]]:
        """Tell narratives of as many tokens as the context has."""

        def tell(index: int, size: int) -> Sample:
            told = narrative.narrative(task.rng(context_tokens, seed, index), size, self.people)
            return Sample(index, told, "", 0, None, None)

        room = context_tokens - task.tokens - len(tokenizer.first_ids)
        told = fill_context(task, tell, context_tokens // 2, count, context_tokens, tokenizer)
        for text in (sample.prompt for sample in told):
            loss = task.kind == "loss"
            at = tail_start(text, task.tokens, tokenizer) if loss else head_end(text, 0, room, tokenizer)
            yield text[:at], text[at:]


@dataclass(frozen=True, slots=True)
class Books:
    """Windows of texts that no model has seen; a problem is a text, so that intervals are clustered by it.

    Args:
        ids: PG-19's books that are read.
        windows: windows cut of each of the first texts that are long enough.
        in_turn: as many windows as samples are asked for, the books in turn, in plain ASCII: the miniature has seen
            nothing else, and its score counts bytes as characters.

    Source: Rae et al. 2020 (Compressive Transformers, arXiv 1911.05507) for the books.
    """

    ids: Sequence[str] = UNSEEN
    windows: int = 1
    in_turn: bool = False

    def cut(
        self, task: Continuation, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer
    ) -> Iterator[tuple[str, str]]:
        """Cut windows, each at a random place of its text."""
        texts = [text for text in self.read(task.data) if has_tokens(text, context_tokens, tokenizer)]
        if not texts:
            raise UnsupportedCellError(f"{task.name}: no text has {context_tokens} tokens")
        chosen = [texts[index % len(texts)] for index in range(count)] if self.in_turn else texts[:count]
        for index, text in enumerate(text for text in chosen for _ in range(self.windows)):
            rng = task.rng(context_tokens, seed, index)
            yield window(text, rng, context_tokens - task.tokens, task.tokens, tokenizer)

    def read(self, data: Data) -> list[str]:
        """Read the texts: the books of ``data.pg19``, or the file or folder of texts that ``data.prose`` names."""
        prose = data.get("prose")
        if self.in_turn:
            books = read_books(data.get("pg19"), self.ids).values()
            return [book.encode("ascii", "ignore").decode("ascii") for book in books]
        if prose is None:
            return list(read_books(data.get("pg19"), self.ids).values())
        files = sorted(prose.rglob("*.txt")) if prose.is_dir() else [prose]
        if not files:
            raise _PROSE.unavailable(f"data.prose is {prose}, which holds no *.txt")
        return [read_text(_PROSE, file) for file in files]


class Continuation(Task):
    """A text that fills the context, whose last tokens are forced (``loss``) or written anew (``generate``).

    Args:
        texts: the texts, and how they are cut.
        tokens: tokens of the continuation.
        bins: stretches of it that are told apart.
        data: ``pg19`` and ``prose``, as ``Books.read`` takes them.
    """

    def __init__(self, texts: Story | Books, tokens: int, bins: int, data: Data):
        super().__init__(data)
        self.texts, self.tokens, self.bins = texts, tokens, bins
        if isinstance(texts, Books):
            self.data_source, self.samples_per_problem = "real", texts.windows

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Make samples of ``count`` texts.

        Raises:
            UnsupportedCellError: no text is as long as the context, or the context is shorter than the continuation.
            DataUnavailableError: the texts are not here; the message says how to fetch them.
        """
        if context_tokens <= self.tokens:
            raise UnsupportedCellError(f"{self.name} continues by {self.tokens} of {context_tokens} tokens")
        parts = enumerate(self.texts.cut(self, context_tokens, count, seed, tokenizer))
        if self.kind == "loss":
            return [Sample(index, prompt, tail, 0, None, None) for index, (prompt, tail) in parts]
        return [Sample(index, prompt, "", self.tokens, None, None) for index, (prompt, _) in parts]


class ForcedNearFull(Continuation):
    """The text's own next tokens forced through the method: their loss over Full's, and how far distributions differ.

    ``measures``: ``kl`` from Full over its 64 likeliest tokens and all others as one, in nats; ``top1``, the share of
    steps where Full's first choice stays first; ``loss``, the method's own in nats a token; all also by tokens since
    the prefill (``kl_from_16`` ...).

    Source: RetroAttention (arXiv 2508.09001, figures 1b and 7) for the gap to Full along a long continuation.
    """

    kind = "loss"
    metric = "loss_over_full"
    unit = "nats/token"
    higher_is_better = False
    against_full = True
    full_top_tokens = TOP_TOKENS

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Return the mean loss over Full's, by stretch too, with the measures."""
        import torch  # seconds that naming the suite's tasks does not need

        loss = -torch.tensor(completion.forced_logprobs)
        over = loss + torch.tensor(full.forced_logprobs)
        found = {"kl": kl_from_full(completion, full), "top1": first_kept(completion, full), "loss": loss}
        measures = {name: values.mean().item() for name, values in found.items()}
        for name, values in found.items():
            measures |= {f"{name}_from_{start}": mean for start, mean in self.stretches(values)}
        return Score(over.mean().item(), tuple(mean for _, mean in self.stretches(over)), measures)

    def stretches(self, values: Tensor) -> list[tuple[int, float]]:
        """Return means of ``bins`` stretches with their first token; the last takes what is left over."""
        width = max(1, len(values) // self.bins)
        starts = [i * width for i in range(self.bins) if i * width < len(values)]
        ends = [*starts[1:], len(values)]
        named = (self.tokens // self.bins * i for i in range(len(starts)))
        return [(name, values[start:end].mean().item()) for name, start, end in zip(named, starts, ends, strict=True)]


class FreeNearFull(Continuation):
    """Tokens written greedily: how many before the first that is not Full's, and how much repeats itself.

    ``measures``: ``repeated``, the share of runs of four tokens that stood earlier in the same continuation, and
    ``repeated_full``, the same of Full's: a method that loses its context falls into loops.

    Source: Welleck et al. 2020 (Unlikelihood Training, arXiv 1908.04319), seq-rep-4, for the share.
    """

    metric = "tokens_as_full"
    unit = "tokens"
    against_full = True

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Return the number of tokens before the first different one, and the repetition of both."""
        pairs = zip(completion.output_ids, full.output_ids, strict=False)
        least = min(len(completion.output_ids), len(full.output_ids))
        same = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), least)
        measures = {"repeated": repeated(completion.output_ids), "repeated_full": repeated(full.output_ids)}
        return Score(float(same), (), measures)


class NatsPerByte(Continuation):
    """Nats per byte of a forced continuation: the mean, and the means of equal stretches of it."""

    kind = "loss"
    metric = "loss"
    unit = "nats/byte"
    higher_is_better = False

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return nats per byte, overall and by stretch; stretches are equal in tokens and in bytes."""
        width, size = len(forced_nll) // self.bins, len(sample.forced.encode())
        stretches = (forced_nll[i * width : (i + 1) * width] for i in range(self.bins))
        parts = tuple(math.fsum(stretch) / (size // self.bins) for stretch in stretches)
        return Score(math.fsum(forced_nll) / size, parts)


class StoryWriting(Continuation):
    """A sampled continuation: the share of its restated facts that agree with their first telling.

    A completion that restates nothing scores 0: it has shown no use of its context.
    """

    metric = "consistency"
    temperature = 1.0

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return the share of restated facts that agree, and one mark a fact in the order written."""
        parts = tuple(float(agrees) for agrees in narrative.check_statements(sample.prompt, completion))
        return Score(fmean(parts) if parts else 0.0, parts)


class Nearness(Continuation):
    """Force a text's next tokens through a method: ``exp(-KL)`` from Full, 1 where nothing is lost.

    It tells settings of methods apart that answer no question.
    """

    kind = "loss"
    metric = "nearness"
    against_full = True
    full_top_tokens = TOP_TOKENS

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Return ``exp`` of minus the mean divergence from Full, which lies between 0 and 1."""
        return Score(math.exp(-max(0.0, kl_from_full(completion, full).mean().item())))


def kl_from_full(completion: Completion, full: Completion) -> Tensor:
    """Return ``sum p log(p / q)`` over Full's likeliest tokens, and all others as one, ``[N]`` float64."""
    assert full.top_logprobs is not None and completion.compared_logprobs is not None
    log_p, log_q = full.top_logprobs.double(), completion.compared_logprobs.double()
    rest_p, rest_q = ((1 - log.exp().sum(dim=1)).clamp(min=_LEAST_MASS) for log in (log_p, log_q))
    return (log_p.exp() * (log_p - log_q)).sum(dim=1) + rest_p * (rest_p / rest_q).log()


def first_kept(completion: Completion, full: Completion) -> Tensor:
    """Return 1 at each forced place where Full's first choice is the method's, else 0, ``[N]`` float64."""
    assert full.top_ids is not None and completion.top_ids is not None
    return (full.top_ids[:, 0] == completion.top_ids[:, 0]).double()


def repeated(ids: Sequence[int]) -> float:
    """Return the share of runs of four tokens that stood before; 0 where there is none."""
    grams = [tuple(ids[start : start + GRAM]) for start in range(len(ids) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


_LONG: Mapping[str, type[Continuation]] = {"forced": ForcedNearFull, "free": FreeNearFull}
_TASKS: tuple[tuple[type[Continuation], str, Story | Books, int, int], ...] = (
    *((kind, f"fidelity_{how}", Books(windows=4), 128, 8) for how, kind in _LONG.items()),
    *((kind, f"pg19_long_{how}_{tokens}", Books(), tokens, 16) for how, kind in _LONG.items() for tokens in LENGTHS),
    (NatsPerByte, "mini_book_loss", Story(), 256, 8),
    (StoryWriting, "mini_book_write", Story(), 384, 8),
    (NatsPerByte, "mini_book_pg19", Books(HELD_OUT, in_turn=True), 256, 8),
    (Nearness, "tuning_story", Story(TUNING_PEOPLE), 96, 8),
    (Nearness, "tuning_prose", Books(TUNING_BOOKS, windows=4), 96, 8),
)
"""Of each task how it is scored, its name, its texts, the tokens that continue them, and the stretches told apart."""


def _tasks(suite: str) -> dict[str, partial[Continuation]]:
    rows = (row for row in _TASKS if row[1].startswith(suite))
    return {name: partial(kind, texts, tokens, bins) for kind, name, texts, tokens, bins in rows}


SUITES: Mapping[str, Suite] = {
    "fidelity": Suite(_tasks("fidelity"), data=("pg19", "prose")),
    "pg19_long": Suite(
        _tasks("pg19_long"), default=("pg19_long_forced_16384", "pg19_long_free_4096"), data=("pg19", "prose")
    ),
    "mini_book": Suite(_tasks("mini_book"), data=("pg19",)),
    "tuning": Suite(
        {
            "tuning_lookup_20": partial(EpisodeTask, LOOKUP, "longgen", 20),
            "tuning_chain_12": partial(EpisodeTask, CHAIN, "chain", 12),
            "tuning_json_kv": JsonKv,
            "tuning_json_kv_prompt": lambda data: Reasked(JsonKv(data), "decoded", "prompt"),
            **_tasks("tuning"),
        },
        data=("pg19",),
    ),
}
