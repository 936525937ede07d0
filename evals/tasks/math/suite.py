"""Competition and university mathematics, answered by long reasoning and marked by equivalence: the suite ``math``."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals.scoring.math_answer import final_answer, integer_answer
from longdecode.evals.scoring.math_checker import MathChecker, shared_checker
from longdecode.evals.scoring.math_equivalence import Rule
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.math.problems import INSTRUCTION, SETS, Problem, load_problems

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

AIME_DRAWS = 16
"""Draws of each AIME problem: a set of 30 problems says little from one draw of each."""
OLYMPIAD_PRECISION = 1e-8
"""Largest difference of numbers where OlympiadBench states none, as in its own judge."""
MINERVA_RELATIVE = 1e-4
"""Relative difference of numbers that counts as equal; that of the harness which published this copy of the set."""


class MathTask(Task):
    """One set of problems; a completion is right when its last box holds something equivalent to the gold answer.

    The prompt goes through the chat template; whatever of the context the prompt leaves is there to generate, up to the
    end-of-sequence token. Tokens are drawn at temperature 0.6 and top-p 0.95. A set of few problems draws each several
    times: its metric is avg@k, the mean over problems of the share of right draws, and its interval resamples problems.
    Fewer problems than the set has are a random part of it, the same for every context and method.

    A completion without a closed box is wrong. One whose comparison does not end in time is neither right nor wrong.

    Args:
        name: a key of ``problems.SETS``.
        data: where the sets are, as ``load_problems`` takes it.
        checker: what compares answers; the process's shared one by default.

    Source: DeepSeek-AI 2025 (DeepSeek-R1, arXiv 2501.12948) and its model cards for prompt and sampling.
    """

    suite = "math"
    version = 1
    kind: Literal["generate", "loss"] = "generate"
    unit = "fraction"
    higher_is_better = True
    data_source: Literal["generated", "real"] = "real"
    temperature = 0.6
    top_p = 0.95
    chat = True
    stop_at_eos = True

    def __init__(self, name: str, data: Path | None, checker: MathChecker | None = None):
        self.name = name
        self.data = data
        self.samples_per_problem = AIME_DRAWS if name in ("aime24", "aime25") else 1
        self.metric = f"avg@{self.samples_per_problem}" if self.samples_per_problem > 1 else "accuracy"
        self._checker = checker

    @functools.cached_property
    def problems(self) -> list[Problem]:
        """All problems of the set."""
        return load_problems(self.name, self.data)

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """The draws of ``count`` problems, or of all where the set has fewer.

        Raises:
            UnsupportedCellError: a prompt leaves no room in the context, or the model has no chat template.
            DataUnavailableError: the set is not here; the message says how to fetch it.
        """
        everything = range(len(self.problems))
        rng = random.Random(f"{self.name}/{seed}")
        chosen = sorted(rng.sample(everything, count)) if count < len(everything) else everything
        draws = self.samples_per_problem
        made: list[Sample] = []
        for number, problem in enumerate(self.problems[index] for index in chosen):
            prompt = problem.text + INSTRUCTION
            room = context_tokens - len(tokenizer.prompt_ids(prompt, chat=True))
            if room < 1:
                raise UnsupportedCellError(
                    f"{self.name}: a prompt of {context_tokens - room} tokens leaves nothing to generate in a context "
                    f"of {context_tokens}"
                )
            made += [Sample(number * draws + draw, prompt, "", room, None, problem) for draw in range(draws)]
        return made

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """1 where the last box holds the answer, else 0.

        Raises:
            ScoreTimeoutError: the comparison did not end in time.
        """
        answer = final_answer(completion)
        return Score(0.0 if answer is None else float(self.is_right(sample.meta, answer)))

    def is_right(self, problem: Problem, answer: str) -> bool:
        """Return whether an answer, as it stands in its box, is the problem's.

        AIME's answers are integers and compared as such, whatever zeros lead them.

        Raises:
            ScoreTimeoutError: the comparison did not end in time.
        """
        gold, given = integer_answer(problem.gold), integer_answer(answer)
        if gold is not None and given is not None and problem.tolerance is None:
            return gold == given
        checker = self._checker or shared_checker()
        return checker.equal(str(gold) if self.name.startswith("aime") else problem.gold, answer, self._rule(problem))

    def _rule(self, problem: Problem) -> Rule:
        if self.name == "olympiadbench":
            stated = problem.tolerance
            precision = tuple(float(part) for part in stated.split(",")) if stated else (OLYMPIAD_PRECISION,)
            return Rule(absolute=precision, drop_units=True)
        return Rule(relative=MINERVA_RELATIVE, drop_units=True) if self.name == "minerva" else Rule()


def _task(name: str) -> Callable[[Data], Task]:
    return lambda data: MathTask(name, data.get("math"))


SUITE = Suite({name: _task(name) for name in SETS}, data=("math",))
