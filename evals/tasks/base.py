"""Define tasks and suites: a task makes samples for a context length and scores a completion.

Two kinds of task that suites share stand here too: sets of problems that are answered in a chat (``ReasoningTask``),
and a task whose question stands elsewhere than where its suite puts it (``Reasked``).
"""

from __future__ import annotations

import functools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from longdecode.engine.request import Completion

Data = Mapping[str, Path | None]
"""Places of data sets: a local folder or a hub id."""
Question = Literal["decoded", "prompt"]
"""Protocol: the question is decoded through the method, or ends the prompt, which is prefilled whole."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One problem, as text. ``forced`` is decoded token by token through the method before it may write freely.

    ``meta`` is the task's own (expected values, segment marks); it must be enough to score a completion.
    ``question_chars`` marks the question of a suite that leaves it in the prompt: so many characters at the prompt's
    end. ``templated`` tells that the prompt is written in the model's chat template already.
    """

    index: int
    prompt: str
    forced: str
    max_new_tokens: int
    stop: str | None
    meta: Any
    question_chars: int = 0
    templated: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """The mark of one sample: ``value`` for the table, ``parts`` along the generation, further ``measures`` by name."""

    value: float
    parts: tuple[float, ...] = ()
    measures: Mapping[str, float] = field(default_factory=dict)


class Task(ABC):
    """One task of a suite; the defaults are those of most tasks.

    ``name`` and ``suite`` are those under which the task stands in its suite; ``get_task`` sets them.
    ``kind`` is ``generate`` (the completion's text is scored) or ``loss`` (the forced tokens' negative log-likelihood
    in nats is). ``options`` such as the number of questions are fixed by the task's name, so that a name means one
    thing. Prompts begin with the special tokens that the model's tokenizer puts first or, with ``chat``, go through its
    chat template as the user's one turn. ``stop_at_eos`` ends a generation at the checkpoint's end-of-sequence tokens,
    beside the sample's own stop text. ``temperature`` 0 is greedy decoding; ``top_p`` keeps the most probable tokens
    that hold this share of the probability.

    ``against_full`` marks tasks whose samples are compared with Full's run over the same prompt, by ``compare`` in
    place of ``score``; ``full_top_tokens`` is how many of Full's likeliest tokens a comparison needs at each forced
    place.

    ``question`` is the protocol, ``None`` where nothing is asked of a text; ``get_task`` sets it from the suite.

    ``samples_per_problem`` is how often each problem is drawn (avg@k): sample ``i`` is a draw of problem
    ``i // samples_per_problem``, and each draw has noise of its own.
    """

    name: str = ""
    suite: str = ""
    version: int = 1
    kind: Literal["generate", "loss"] = "generate"
    metric: str = "accuracy"
    unit: str = "fraction"
    higher_is_better: bool = True
    data_source: Literal["generated", "real"] = "generated"
    temperature: float = 0.0
    top_p: float = 1.0
    chat: bool = False
    stop_at_eos: bool = False
    samples_per_problem: int = 1
    against_full: bool = False
    full_top_tokens: int = 0
    question: Question | None = None
    code_module: str = ""
    """Dotted name of the module that defines the task."""

    def __init_subclass__(cls) -> None:
        cls.code_module = cls.__module__

    def __init__(self, data: Data | None = None):
        """Keep the places of real data."""
        self.data = data or {}

    @abstractmethod
    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Make the samples of ``count`` problems; prompt, forced text and generation together fit ``context_tokens``.

        Args:
            context_tokens: the cell's context.
            count: problems wanted; a data set that has fewer gives all it has.
            seed: seed of generated samples.
            tokenizer: the model's, whose tokens are counted.

        Returns:
            ``samples_per_problem`` samples a problem, numbered from 0 without a gap.

        Raises:
            UnsupportedCellError: the task does not fit this context.
            DataUnavailableError: the data is not here; the message says how to fetch it.
        """

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Mark one completion; ``forced_nll`` holds nats per forced token.

        Raises:
            ScoreTimeoutError: marking did not end in time, so that nothing is known about the completion.
        """
        raise NotImplementedError(f"{self.name} is scored against Full")

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Mark a completion against Full's; only tasks that are ``against_full`` have it."""
        raise NotImplementedError(f"{self.name} is not compared with Full")

    def rng(self, context_tokens: int, seed: int, index: int) -> random.Random:
        """Return the random numbers of one sample; a string seed is hashed by SHA-512, the same on every machine."""
        return random.Random(f"{self.name}/{context_tokens}/{seed}/{index}")


@dataclass(frozen=True, slots=True)
class Suite:
    """The tasks of a suite.

    ``tasks`` makes each task from the places of real data; ``default`` names those that run where a configuration names
    none, all when left out; ``data`` lists the data sets that the tasks read. ``question`` is the protocol that samples
    are made in, and gives the suite the other one too: ``decoded`` where the forced text is the question, ``prompt``
    where each sample marks it at the prompt's end (``question_chars``). ``None``: no switch.
    """

    tasks: Mapping[str, Callable[[Data], Task]]
    default: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    question: Question | None = None


def encoded(sample: Sample, chat: bool, tokenizer: TextTokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the token ids of a sample's prompt and of its forced text, each encoded at once.

    Args:
        chat: the prompt goes through the chat template, unless it is templated already.

    Raises:
        UnsupportedCellError: ``chat`` is wanted and the checkpoint has no chat template.
    """
    if sample.templated:  # the template brings its own special tokens
        return tokenizer.encode(sample.prompt), tokenizer.encode(sample.forced)
    return tokenizer.prompt_ids(sample.prompt, chat), tokenizer.encode(sample.forced)


def context_of(sample: Sample, chat: bool, tokenizer: TextTokenizer) -> int:
    """Return the context that a sample takes: prompt, forced text and generation."""
    return sum(map(len, encoded(sample, chat, tokenizer))) + sample.max_new_tokens


class Reasked(Task):
    """A task under a protocol of choice: the same texts and marks, cut elsewhere.

    Under ``prompt`` the question ends the prompt, in a chat template the user's turn. Under ``decoded`` the forced text
    begins with it; in a chat template it holds the rest of the template too. What the task itself has the model begin
    its answer with stays forced.

    Args:
        task: the task as its suite makes it.
        made: the protocol that ``task`` makes samples in.
        question: the protocol wanted.
    """

    def __init__(self, task: Task, made: Question | None, question: Question):
        for name in Task.__annotations__:
            setattr(self, name, getattr(task, name))
        self.question = question
        self.task = task
        self.made = made

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Make the task's samples and move their questions; raises as the task does.

        Joined or cut elsewhere, a text may take a token more than the task counted: then all are made anew for a
        context that is shorter by the excess.

        Raises:
            ConfigError: a sample does not mark its question.
            UnsupportedCellError: the chat template changes the text, so that the question is not found in it.
        """
        room = context_tokens
        while True:
            moved = [self._moved(sample, tokenizer) for sample in self.task.samples(room, count, seed, tokenizer)]
            used = (context_of(sample, self.chat, tokenizer) for sample in moved)
            if (excess := max(used, default=0) - context_tokens) <= 0:
                return moved
            room -= excess

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Mark a completion as the task does."""
        return self.task.score(sample, completion, forced_nll)

    def _moved(self, sample: Sample, tokenizer: TextTokenizer) -> Sample:
        if self.made == "decoded":
            context, question, begun = sample.prompt, sample.forced, ""
        else:
            at = len(sample.prompt) - sample.question_chars
            context, question, begun = sample.prompt[:at], sample.prompt[at:], sample.forced
        if not context or not question:
            raise ConfigError(
                f"{self.task.name}: sample {sample.index} has a text of {len(context)} characters and a question of "
                f"{len(question)}; a suite that declares question={self.made!r} has both in each sample"
            )
        if self.question == "prompt":
            return replace(sample, prompt=context + question, forced=begun, question_chars=len(question))
        text, at = context + question, len(context)
        if self.chat:
            whole = tokenizer.chat_text(text)
            # The template may trim the text's ends.
            start = whole.find(text.strip())
            at += start - (len(text) - len(text.lstrip()))
            if start < 0 or not 0 < at < len(whole):
                raise UnsupportedCellError(f"{self.name}: the chat template changes the text: no question apart")
            text = whole
        return replace(sample, prompt=text[:at], forced=text[at:] + begun, question_chars=0, templated=self.chat)


class ReasoningTask(Task):
    """A set of problems, each drawn ``draws`` times.

    The prompt goes through the chat template; whatever of the context the prompt leaves is there to generate, up to the
    end-of-sequence token. Tokens are drawn at temperature 0.6 and top-p 0.95; short answers, of at most
    ``most_new_tokens``, are greedy. Of several draws the metric is avg@k, the mean over problems of the share of right
    draws, and its interval resamples problems. Fewer problems than the set has are a random part of it, the same for
    every context and method; of short answers the first (``takes_first``), as published tables of a part have it.

    Args:
        data: where the set is.
        draws: generations of each problem.
        most_new_tokens: most tokens of a short answer; ``None`` for all that the context leaves.

    Source: DeepSeek-AI 2025 (DeepSeek-R1, arXiv 2501.12948) and its model cards for the sampling.
    """

    data_source = "real"
    chat = True
    stop_at_eos = True

    def __init__(self, data: Data, draws: int = 1, most_new_tokens: int | None = None):
        super().__init__(data)
        self.samples_per_problem = draws
        self.most_new_tokens = most_new_tokens
        self.takes_first = most_new_tokens is not None
        self.temperature, self.top_p = (0.0, 1.0) if self.takes_first else (0.6, 0.95)
        self.metric = f"avg@{draws}" if draws > 1 else "accuracy"

    @abstractmethod
    def problems(self) -> Sequence[tuple[str, Any]]:
        """Return the prompt of every problem, and what marks a completion.

        Raises:
            DataUnavailableError: the set is not here; the message says how to fetch it.
        """

    @functools.cached_property
    def _problems(self) -> Sequence[tuple[str, Any]]:
        return self.problems()

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Make the draws of ``count`` problems, or of all where the set has fewer.

        Raises:
            UnsupportedCellError: a prompt leaves no room in the context, or the model has no chat template.
            DataUnavailableError: the set is not here; the message says how to fetch it.
        """
        chosen = self._problems[:count]
        if count < len(self._problems) and not self.takes_first:
            drawn = random.Random(f"{self.name}/{seed}").sample(range(len(self._problems)), count)
            chosen = [self._problems[index] for index in sorted(drawn)]
        draws = self.samples_per_problem
        made: list[Sample] = []
        for number, (prompt, meta) in enumerate(chosen):
            room = context_tokens - len(tokenizer.prompt_ids(prompt, chat=True))
            if room < 1:
                raise UnsupportedCellError(
                    f"{self.name}: a prompt of {context_tokens - room} tokens leaves nothing to generate in a context "
                    f"of {context_tokens}"
                )
            tokens = min(room, self.most_new_tokens or room)
            made += [Sample(number * draws + draw, prompt, "", tokens, None, meta) for draw in range(draws)]
        return made
