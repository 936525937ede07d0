"""Problems with a short answer, by long reasoning or in short.

Two suites: ``math``, from school to university, marked by equivalence; and ``gpqa``, 198 questions of graduate level in
biology, physics and chemistry, four choices each.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from longdecode.evals.datasets.reader import SOURCES, Row, read_rows
from longdecode.evals.scoring.answer_text import final_answer, integer_answer, plain
from longdecode.evals.scoring.choice_letter import chosen_letter
from longdecode.evals.scoring.math_checker import AnswerRule, shared_checker
from longdecode.evals.tasks.base import Data, ReasoningTask, Sample, Score, Suite

INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Text after the problem (the wording of QwQ's and DeepSeek-R1's evaluations)."""
GPQA_INSTRUCTION = "Please reason step by step, and put the letter of your choice, A, B, C or D, within \\boxed{}."
AIME_DRAWS, GPQA_DRAWS = 16, 4
"""Draws of each problem: a set of 30 problems says little from one draw of each."""
OLYMPIAD_PRECISION = 1e-8
"""Largest difference of numbers where OlympiadBench states none, as in its own judge."""
MINERVA_RELATIVE = 1e-4
"""Relative difference of numbers that counts as equal; that of the harness which published this copy of the set."""
SETS = {name: SOURCES[name] for name in ("aime24", "aime25", "math500", "olympiadbench", "minerva", "gsm8k")}
SHORT = {"gsm8k": ("gsm8k", 512), "math500_greedy": ("math500", 2048)}
"""Tasks that are decoded greedily, for models that do not reason at length: set, and most tokens of an answer."""
_CHOICES = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
_INTEGERS = ("aime24", "aime25", "gsm8k")
_ONE_NUMBER = re.compile(r"[^\d\\(+\-.]*([+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?)[^\d\\]*")
"""A number and the plain words around it: ``18 dollars per day``, ``\\text{18 apples}``, ``€2,125.00``."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The gold answer, and the tolerances stated with it."""

    gold: str
    tolerance: tuple[float, ...] = ()


class MathTask(ReasoningTask):
    """One set of problems; a completion is right when its last box holds something equivalent to the gold answer.

    A set of few problems draws each several times. A completion without a closed box is wrong. One whose comparison
    does not end in time is neither right nor wrong.

    Args:
        name: a key of ``SETS`` or ``SHORT``.
        data: ``math`` is a folder with one sub-folder a set, each holding its jsonl or a snapshot of its repository on
            the hub; or ``hub``.
    """

    version = 2

    def __init__(self, name: str, data: Data):
        self.dataset, limit = SHORT.get(name, (name, None))
        draws = AIME_DRAWS if name in ("aime24", "aime25") else 1
        super().__init__(data, draws, limit)

    def problems(self) -> list[tuple[str, Problem]]:
        """Return every problem with the instruction after it, and its answer."""
        rows = read_rows(SETS[self.dataset], self.data.get("math"))
        return [_problem(row, self.dataset == "gsm8k") for row in rows]

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return 1 where the last box holds the answer, else 0.

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
        if gold is not None and given is not None and not problem.tolerance:
            return gold == given
        if self.dataset == "gsm8k" and gold is not None and (found := _ONE_NUMBER.fullmatch(plain(answer))):
            return float(found[1].replace(",", "")) == gold
        wanted = str(gold) if self.dataset in _INTEGERS else problem.gold
        return shared_checker().equal(wanted, answer, self._rule(problem))

    def _rule(self, problem: Problem) -> AnswerRule:
        if self.dataset == "olympiadbench":
            return AnswerRule(absolute=problem.tolerance or (OLYMPIAD_PRECISION,), drop_units=True)
        if self.dataset == "minerva":
            return AnswerRule(relative=MINERVA_RELATIVE, drop_units=True)
        return AnswerRule(drop_units=self.dataset == "gsm8k")


def _problem(row: Row, worked: bool) -> tuple[str, Problem]:
    """Read one row of any of the formats that the sets are published in; GSM8K's answers are ``worked``."""
    key = next(filter(row.values.get, ("problem", "question", "prompt")), "problem")
    problem = row.text(key, blank=False).removesuffix(INSTRUCTION)
    context = row.text("context", "")
    prompt = f"{context}\n{problem}{INSTRUCTION}" if context else problem + INSTRUCTION
    return prompt, Problem(_gold(row, worked), _tolerance(row))


def _gold(row: Row, worked: bool) -> str:
    if worked:  # the number after a worked solution and ####
        gold = row.text("answer").rpartition("####")[2].strip()
        if integer_answer(gold) is None:
            raise row.fault(f"has an answer that ends in no integer: {gold[-40:]!r}")
        return gold
    if isinstance(row.values.get("final_answer"), list | tuple):
        return ", ".join(row.texts("final_answer"))
    if (key := row.first("final_answer", "answer", "solution")) != "solution":
        return row.answer(key)
    return final_answer(row.text(key)) or row.answer("answer")


def _tolerance(row: Row) -> tuple[float, ...]:
    stated = row.text("error", "")
    with row.data.reading(f"{row.where} has {stated!r} as 'error'; numbers from 0, separated by commas, are expected"):
        found = tuple(map(float, stated.split(","))) if stated else ()
        if not all(0 <= part < float("inf") for part in found):
            raise ValueError(stated)
    return found


class GpqaDiamond(ReasoningTask):
    """All questions, four draws each; right is the letter in the last box, or said to be the answer
    (``chosen_letter``).

    The order of a question's choices is drawn from its text, so that it is the same in every run. ``measures`` has
    ``answered``, the share of completions that name a letter; the others are wrong.

    Source: Rein et al. 2023 (GPQA, arXiv 2311.12022). The set is gated: its authors ask that no question be shown
    online.
    """

    version = 2

    def __init__(self, data: Data):
        super().__init__(data, GPQA_DRAWS)

    def problems(self) -> list[tuple[str, str]]:
        """Return every question with its choices, and the letter of the right one."""
        found = []
        for row in read_rows(SOURCES["gpqa"], self.data.get("gpqa")):
            question, answers = row.text("Question", blank=False).strip(), [row.answer(key) for key in _CHOICES]
            order = list(range(len(answers)))
            random.Random(hashlib.sha256(question.encode()).hexdigest()).shuffle(order)
            choices = "\n".join(f"({letter}) {answers[place]}" for letter, place in zip("ABCD", order, strict=True))
            found.append((f"{question}\n\n{choices}\n\n{GPQA_INSTRUCTION}", "ABCD"[order.index(0)]))
        return found

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return 1 where the letter is the right one, else 0."""
        letter = chosen_letter(completion)
        return Score(float(letter == sample.meta), (), {"answered": float(letter is not None)})


SUITES: Mapping[str, Suite] = {
    "math": Suite(
        {name: partial(MathTask, name) for name in (*SETS, *SHORT)},
        default=tuple(name for name in SETS if name not in SHORT),
        data=("math",),
    ),
    "gpqa": Suite({"gpqa_diamond": GpqaDiamond}, data=("gpqa",)),
}
