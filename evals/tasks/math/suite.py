"""Mathematics from school to university, marked by equivalence, by long reasoning or in short: the suite ``math``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from longdecode.evals.scoring.math_answer import final_answer, integer_answer
from longdecode.evals.scoring.math_checker import MathChecker, shared_checker
from longdecode.evals.scoring.math_equivalence import Rule
from longdecode.evals.scoring.plain_text import plain
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.math.problems import INSTRUCTION, SETS, Problem, load_problems
from longdecode.evals.tasks.reasoning import ReasoningTask

AIME_DRAWS = 16
"""Draws of each AIME problem: a set of 30 problems says little from one draw of each."""
OLYMPIAD_PRECISION = 1e-8
"""Largest difference of numbers where OlympiadBench states none, as in its own judge."""
MINERVA_RELATIVE = 1e-4
"""Relative difference of numbers that counts as equal; that of the harness which published this copy of the set."""

SHORT = {"gsm8k": ("gsm8k", 512), "math500_greedy": ("math500", 2048)}
"""Tasks that are decoded greedily, for models that do not reason at length: set, and most tokens of an answer."""
_ONE_NUMBER = re.compile(r"[^\d\\(+\-.]*([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?)[^\d\\]*")
"""A number and the plain words around it: ``18 dollars per day``, ``\\text{18 apples}``, ``€2,125.00``."""


class MathTask(ReasoningTask):
    """One set of problems; a completion is right when its last box holds something equivalent to the gold answer.

    A set of few problems draws each several times. A completion without a closed box is wrong. One whose comparison
    does not end in time is neither right nor wrong.

    Args:
        name: a key of ``problems.SETS`` or ``SHORT``.
        data: where the sets are, as ``load_problems`` takes it.
        checker: what compares answers; the process's shared one by default.
    """

    suite = "math"
    version = 2

    def __init__(self, name: str, data: Path | None, checker: MathChecker | None = None):
        self.dataset, limit = SHORT.get(name, (name, None))
        draws = AIME_DRAWS if name in ("aime24", "aime25") else 1
        super().__init__(name, data, draws, greedy=limit is not None, most_new_tokens=limit)
        self._checker = checker

    def asked(self) -> list[tuple[str, Problem]]:
        """Return every problem with the instruction after it."""
        return [(problem.text + INSTRUCTION, problem) for problem in load_problems(self.dataset, self.data)]

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """1 where the last box holds the answer, else 0.

        Raises:
            ScoreTimeoutError: the comparison did not end in time.
        """
        answer = final_answer(completion)
        return Score(0.0 if answer is None else float(self.is_right(sample.meta, answer)))

    def is_right(self, problem: Problem, answer: str) -> bool:
        """Return whether an answer, as it stands in its box, is the problem's.

        AIME's and GSM8K's answers are integers and compared as such, whatever zeros lead them.

        Raises:
            ScoreTimeoutError: the comparison did not end in time.
        """
        gold, given = integer_answer(problem.gold), integer_answer(answer)
        if gold is not None and given is not None and problem.tolerance is None:
            return gold == given
        if self.dataset == "gsm8k" and gold is not None and (found := _ONE_NUMBER.fullmatch(plain(answer))):
            return float(found[1].replace(",", "")) == gold
        checker = self._checker or shared_checker()
        wanted = str(gold) if self.dataset in ("aime24", "aime25", "gsm8k") else problem.gold
        return checker.equal(wanted, answer, self._rule(problem))

    def _rule(self, problem: Problem) -> Rule:
        if self.dataset == "olympiadbench":
            stated = problem.tolerance
            precision = tuple(float(part) for part in stated.split(",")) if stated else (OLYMPIAD_PRECISION,)
            return Rule(absolute=precision, drop_units=True)
        if self.dataset == "minerva":
            return Rule(relative=MINERVA_RELATIVE, drop_units=True)
        return Rule(drop_units=self.dataset == "gsm8k")


def _task(name: str) -> Callable[[Data], Task]:
    return lambda data: MathTask(name, data.get("math"))


SUITE = Suite(
    {name: _task(name) for name in (*SETS, *SHORT)},
    default=tuple(name for name in SETS if name not in SHORT),
    data=("math",),
)
