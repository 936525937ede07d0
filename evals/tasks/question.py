"""Move a question between the prompt and the forced text, alike for every suite that has one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.tasks.base import Question, Sample, Score, Task

if TYPE_CHECKING:
    from longdecode.engine.request import Completion


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
        suite: name of the suite of this protocol.
        made: the protocol that ``task`` makes samples in.
        question: the protocol wanted.
    """

    def __init__(self, task: Task, suite: str, made: Question, question: Question):
        for name in Task.__annotations__:
            setattr(self, name, getattr(task, name))
        self.suite = suite
        self.name = task.name if made == question else f"{task.name}_{question}"
        self.question = question
        self.task = task
        self.made = made

    @property
    def code_module(self) -> str:
        """Dotted name of the module that defines the task itself."""
        return self.task.code_module

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

    def compare(self, sample: Sample, completion: Completion, full: Completion) -> Score:
        """Compare with Full as the task does."""
        return self.task.compare(sample, completion, full)

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
        prompt, forced = context, question
        if self.chat:
            whole = tokenizer.chat_text(context + question)
            text = context + question
            # The template may trim the text's ends.
            start = whole.find(text.strip())
            at = start + len(context) - (len(text) - len(text.lstrip()))
            if start < 0 or not 0 < at < len(whole):
                raise UnsupportedCellError(
                    f"{self.name}: the chat template changes the text, so that its question cannot be set apart"
                )
            prompt, forced = whole[:at], whole[at:]
        return replace(sample, prompt=prompt, forced=forced + begun, question_chars=0, templated=self.chat)
