"""GPQA-Diamond: 198 questions of graduate level in biology, physics and chemistry, four choices each.

Source: Rein et al. 2023 (GPQA, arXiv 2311.12022). The set is gated: its authors ask that no question be shown online.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping

from longdecode.evals.datasets.reader import SOURCES, read_rows
from longdecode.evals.scoring.choice_letter import chosen_letter
from longdecode.evals.tasks.base import Data, Sample, Score, Suite
from longdecode.evals.tasks.reasoning import ReasoningTask

DRAWS = 4
INSTRUCTION = "Please reason step by step, and put the letter of your choice, A, B, C or D, within \\boxed{}."
_ANSWERS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


class GpqaDiamond(ReasoningTask):
    """All questions, four draws each; right is the letter in the last box, or said to be the answer
    (``chosen_letter``).

    The order of a question's choices is drawn from its text, so that it is the same in every run. ``measures`` has
    ``answered``, the share of completions that name a letter; the others are wrong.
    """

    suite = "gpqa"
    version = 2

    def __init__(self, data: Data):
        super().__init__("gpqa_diamond", data, DRAWS)

    def problems(self) -> list[tuple[str, str]]:
        """Return every question with its choices, and the letter of the right one."""
        found = []
        for row in read_rows(SOURCES["gpqa"], self.data.get("gpqa")):
            question, answers = row.text("Question").strip(), [row.answer(key) for key in _ANSWERS]
            order = list(range(len(answers)))
            random.Random(hashlib.sha256(question.encode()).hexdigest()).shuffle(order)
            choices = "\n".join(f"({letter}) {answers[place]}" for letter, place in zip("ABCD", order, strict=True))
            found.append((f"{question}\n\n{choices}\n\n{INSTRUCTION}", "ABCD"[order.index(0)]))
        return found

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return 1 where the letter is the right one, else 0."""
        letter = chosen_letter(completion)
        return Score(float(letter == sample.meta), (), {"answered": float(letter is not None)})


SUITES: Mapping[str, Suite] = {"gpqa": Suite({"gpqa_diamond": GpqaDiamond}, data=("gpqa",))}
