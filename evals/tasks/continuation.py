"""Texts continued after a dense prefill: loss on real and generated prose, distance from Full, and what is written.

Four suites: ``fidelity`` and ``pg19_long`` (distance from Full, which asks no skill of a model), ``mini_book`` (long
narratives), and ``tuning`` (prompts that knobs are tuned on, so that no table's prompt chooses a knob).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from longdecode.engine.errors import DataUnavailableError, UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.datasets.books import read_books
from longdecode.evals.datasets.reader import SOURCES, read_text
from longdecode.evals.generators import chain, lookup, narrative
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.episodes import EpisodeTask
from longdecode.evals.tasks.fitting import fill_context, has_tokens, head_end, tail_start, window

if TYPE_CHECKING:
    from torch import Tensor

    from longdecode.engine.request import Completion

UNSEEN = ("860", "4047", "5962", "7412", "9931", "12204", "26493", "28444")
"""PG-19 books that no model of this project was trained on."""
HELD_OUT = ("12204", "860")
"""Books of PG-19's test split that no training run of the miniature reads."""
TUNING_BOOKS = ("27454", "53345")
"""PG-19 books that the project's models were trained on, so that no suite asks for them."""
TUNING_PEOPLE = 16
WINDOWS_A_TEXT = 4
LENGTHS = (1024, 4096, 16384)
TOP_TOKENS = 64
LOSS_BINS = 8
GRAM = 4
_LEAST_MASS = 1e-7  # what float32 log-probabilities of 64 tokens leave of the rest
_PROSE = SOURCES["prose"]


class Continuation(Task):
    """A text that fills the context, whose last tokens are forced (``loss``) or written anew (``generate``)."""

    suite: str
    continuation_tokens: int

    @abstractmethod
    def cut(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> Iterator[tuple[str, str]]:
        """Yield the prompt and the continuation of each sample."""

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Make samples of ``count`` texts.

        Raises:
            UnsupportedCellError: no text is as long as the context, or the context is shorter than the continuation.
            DataUnavailableError: the texts are not here; the message says how to fetch them.
        """
        if context_tokens <= self.continuation_tokens:
            raise UnsupportedCellError(
                f"{self.name} continues by {self.continuation_tokens} of {context_tokens} tokens"
            )
        parts = enumerate(self.cut(context_tokens, count, seed, tokenizer))
        if self.kind == "loss":
            return [Sample(index, prompt, tail, 0, None, None) for index, (prompt, tail) in parts]
        return [Sample(index, prompt, "", self.continuation_tokens, None, None) for index, (prompt, _) in parts]


class Prose(Continuation):
    """Windows of texts that no model has seen; a problem is a text, so that intervals are clustered by it.

    ``samples_per_problem`` windows are cut of each of the first ``count`` texts that are long enough, or of ``count``
    texts ``in_turn``.

    Args:
        data: ``pg19`` has PG-19's books, of which those of ``books`` are read; ``prose`` is a text file, or a folder of
            them, read in place of the books.

    Source: Rae et al. 2020 (Compressive Transformers, arXiv 1911.05507) for the books.
    """

    data_source = "real"
    books: Sequence[str] = UNSEEN
    samples_per_problem = WINDOWS_A_TEXT
    in_turn = False

    def cut(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> Iterator[tuple[str, str]]:
        """Cut windows, each at a random place of its text."""
        texts = [text for text in self.texts() if has_tokens(text, context_tokens, tokenizer)]
        if not texts:
            raise UnsupportedCellError(f"{self.name}: no text has {context_tokens} tokens")
        chosen = [texts[index % len(texts)] for index in range(count)] if self.in_turn else texts[:count]
        wanted = [text for text in chosen for _ in range(self.samples_per_problem)]
        for index, text in enumerate(wanted):
            rng = self.rng(context_tokens, seed, index)
            sizes = (context_tokens - self.continuation_tokens, self.continuation_tokens)
            yield window(text, rng, *sizes, tokenizer)

    def texts(self) -> list[str]:
        """Read the texts."""
        if (prose := self.data.get("prose")) is None:
            try:
                return list(read_books(self.data.get("pg19"), self.books).values())
            except DataUnavailableError as error:
                raise DataUnavailableError(f"{error}; or set data.prose to a text of your own") from error
        files = sorted(prose.rglob("*.txt")) if prose.is_dir() else [prose]
        if not files:
            raise _PROSE.unavailable(f"data.prose is {prose}, which holds no *.txt")
        return [read_text(_PROSE, file) for file in files]


class NearFull(Prose):
    """A continuation that is told by its distance from Full's.

    Args:
        suite: the task's suite.
        name: its name.
        tokens: tokens of the continuation.
        bins: stretches of it that are told apart.
        windows: windows cut of each text.

    Source: RetroAttention (arXiv 2508.09001, figures 1b and 7) for the gap to Full along a long continuation.
    """

    against_full = True

    def __init__(self, suite: str, name: str, tokens: int, bins: int, windows: int, data: Data):
        super().__init__(data)
        self.suite, self.name = suite, name
        self.continuation_tokens = tokens
        self.bins = bins
        self.samples_per_problem = windows


class ForcedNearFull(NearFull):
    """The text's own next tokens forced through the method: their loss over Full's, and how far distributions differ.

    ``measures``: ``kl`` from Full over its 64 likeliest tokens and all others as one, in nats; ``top1``, the share of
    steps where Full's first choice stays first; ``loss``, the method's own in nats a token; all also by tokens since
    the prefill (``kl_from_16`` ...).
    """

    kind = "loss"
    metric = "loss_over_full"
    unit = "nats/token"
    higher_is_better = False
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
        named = (self.continuation_tokens // self.bins * i for i in range(len(starts)))
        return [(name, values[start:end].mean().item()) for name, start, end in zip(named, starts, ends, strict=True)]


class FreeNearFull(NearFull):
    """Tokens written greedily: how many before the first that is not Full's, and how much repeats itself.

    ``measures``: ``repeated``, the share of runs of four tokens that stood earlier in the same continuation, and
    ``repeated_full``, the same of Full's: a method that loses its context falls into loops.

    Source: Welleck et al. 2020 (Unlikelihood Training, arXiv 1908.04319), seq-rep-4, for the share.
    """

    metric = "tokens_as_full"
    unit = "tokens"

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Return the number of tokens before the first different one, and the repetition of both."""
        pairs = zip(completion.output_ids, full.output_ids, strict=False)
        least = min(len(completion.output_ids), len(full.output_ids))
        same = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), least)
        measures = {"repeated": repeated(completion.output_ids), "repeated_full": repeated(full.output_ids)}
        return Score(float(same), (), measures)


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


class Story(Continuation):
    """A generated narrative that fills the context; its facts come back, so that a context that is used helps."""

    people = narrative.PEOPLE

    def cut(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> Iterator[tuple[str, str]]:
        """Tell narratives of as many tokens as the context has."""

        def tell(index: int, size: int) -> Sample:
            told = narrative.narrative(self.rng(context_tokens, seed, index), size, 0, self.people).prompt
            return Sample(index, told, "", 0, None, None)

        if tokenizer.counts_bytes:
            told = [tell(index, context_tokens) for index in range(count)]
        else:
            told = fill_context(self, tell, context_tokens // 2, count, context_tokens, tokenizer)
        room = context_tokens - self.continuation_tokens - len(tokenizer.first_ids)
        for text in (sample.prompt for sample in told):
            loss = self.kind == "loss"
            at = tail_start(text, self.continuation_tokens, tokenizer) if loss else head_end(text, 0, room, tokenizer)
            yield text[:at], text[at:]


class NatsPerByte(Continuation):
    """Nats per byte of a forced continuation: the mean, and the means of eight equal stretches of it."""

    suite = "mini_book"
    kind = "loss"
    metric = "loss"
    unit = "nats/byte"
    higher_is_better = False
    continuation_tokens = 256

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return nats per byte, overall and by stretch; a stretch is an eighth of the tokens and of the bytes."""
        width, size = len(forced_nll) // LOSS_BINS, len(sample.forced.encode())
        stretches = (forced_nll[i * width : (i + 1) * width] for i in range(LOSS_BINS))
        parts = tuple(math.fsum(stretch) / (size // LOSS_BINS) for stretch in stretches)
        return Score(math.fsum(forced_nll) / size, parts)


class MiniBookLoss(NatsPerByte, Story):
    """Loss on the last 256 bytes of a narrative."""

    name = "mini_book_loss"


class MiniBookPg19(NatsPerByte, Prose):
    """Loss on the last 256 bytes of windows of held-out books, the books in turn."""

    name = "mini_book_pg19"
    books = HELD_OUT
    samples_per_problem = 1
    in_turn = True

    def texts(self) -> list[str]:
        """Read the books; the score counts bytes as characters, and the miniature has seen plain ASCII only."""
        books = read_books(self.data.get("pg19"), self.books).values()
        return [book.encode("ascii", "ignore").decode("ascii") for book in books]


class MiniBookWrite(Story):
    """A sampled continuation of 384 bytes: the share of its restated facts that agree with their first telling.

    A completion that restates nothing scores 0: it has shown no use of its context.
    """

    suite = "mini_book"
    name = "mini_book_write"
    metric = "consistency"
    temperature = 1.0
    continuation_tokens = 384

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return the share of restated facts that agree, and one mark a fact in the order written."""
        parts = tuple(float(agrees) for agrees in narrative.check_statements(sample.prompt, completion))
        return Score(fmean(parts) if parts else 0.0, parts)


class Nearness(Continuation):
    """Force a text's next tokens through a method: ``exp(-KL)`` from Full, 1 where nothing is lost."""

    suite = "tuning"
    kind = "loss"
    metric = "nearness"
    against_full = True
    continuation_tokens = 96
    full_top_tokens = TOP_TOKENS

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Return ``exp`` of minus the mean divergence from Full, which lies between 0 and 1."""
        return Score(math.exp(-max(0.0, kl_from_full(completion, full).mean().item())))


class TuningProse(Nearness, Prose):
    """Nearness on books that no table uses: it tells settings of methods apart that answer no question."""

    name = "tuning_prose"
    books = TUNING_BOOKS


class TuningStory(Nearness, Story):
    """Nearness on a generated narrative of a smaller cast than the suites' own, which needs no data."""

    name = "tuning_story"
    people = TUNING_PEOPLE


def _near_full(suite: str, lengths: Mapping[str, int], bins: int, windows: int) -> dict[str, Any]:
    """Return makers of a suite's tasks, whose names end in those of the lengths."""
    kinds: Mapping[str, type[NearFull]] = {"forced": ForcedNearFull, "free": FreeNearFull}
    rows = {f"{suite}_{how}{end}": (how, tokens) for how in kinds for end, tokens in lengths.items()}
    return {name: partial(kinds[how], suite, name, tokens, bins, windows) for name, (how, tokens) in rows.items()}


SUITES: Mapping[str, Suite] = {
    "fidelity": Suite(_near_full("fidelity", {"": 128}, 8, WINDOWS_A_TEXT), data=("pg19", "prose")),
    "pg19_long": Suite(
        _near_full("pg19_long", {f"_{tokens}": tokens for tokens in LENGTHS}, 16, 1),
        default=("pg19_long_forced_16384", "pg19_long_free_4096"),
        data=("pg19", "prose"),
    ),
    "mini_book": Suite({task.name: task for task in (MiniBookLoss, MiniBookWrite, MiniBookPg19)}, data=("pg19",)),
    "tuning": Suite(
        {
            "tuning_lookup_20": partial(EpisodeTask, "tuning", lookup.longgen, 20, stem="tuning_lookup"),
            "tuning_chain_12": partial(EpisodeTask, "tuning", chain.chain, 12, stem="tuning_chain"),
            "tuning_story": TuningStory,
            "tuning_prose": TuningProse,
        },
        data=("pg19",),
    ),
}
