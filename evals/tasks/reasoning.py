"""Share the code of suites whose problems are answered in a chat, by long sampled reasoning or greedily in short."""

from __future__ import annotations

import functools
import random
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.tasks.base import Data, Sample, Task


class ReasoningTask(Task):
    """A set of problems, each drawn ``draws`` times.

    The prompt goes through the chat template; whatever of the context the prompt leaves is there to generate, up to the
    end-of-sequence token. Tokens are drawn at temperature 0.6 and top-p 0.95, or greedily. Of several draws the metric
    is avg@k, the mean over problems of the share of right draws, and its interval resamples problems. Fewer problems
    than the set has are a random part of it, the same for every context and method; of a set that is answered greedily
    the first, as published tables of a part have it.

    Args:
        name: the task's.
        data: where the set is.
        draws: generations of each problem.
        greedy: take the likeliest token each time.
        most_new_tokens: most tokens of a generation; ``None`` for all that the context leaves.

    Source: DeepSeek-AI 2025 (DeepSeek-R1, arXiv 2501.12948) and its model cards for the sampling.
    """

    data_source = "real"
    chat = True
    stop_at_eos = True

    def __init__(
        self, name: str, data: Data, draws: int = 1, *, greedy: bool = False, most_new_tokens: int | None = None
    ):
        super().__init__(data)
        self.name = name
        self.samples_per_problem = draws
        self.most_new_tokens = most_new_tokens
        self.takes_first = greedy
        self.temperature, self.top_p = (0.0, 1.0) if greedy else (0.6, 0.95)
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
