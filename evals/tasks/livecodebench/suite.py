"""LiveCodeBench: contest problems answered by a Python program, which must pass all their tests in the sandbox."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from longdecode.evals.datasets.livecodebench import CodeProblem, read_problems
from longdecode.evals.sandbox import require_sandbox
from longdecode.evals.scoring.code_tests import extract_code, run_tests
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.reasoning import ReasoningTask

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

WINDOW = ("2024-08-01", "2025-02-01")
"""The part of release_v5 that DeepSeek-R1 and QwQ report: 279 problems."""
DRAWS = 4


class LiveCodeBench(ReasoningTask):
    """Problems of release_v5; a completion is right when the program in its last fenced block passes every test.

    ``measures``: ``answered``, the share with a program; ``tests_passed`` before the first failure; ``timed_out`` and
    ``over_memory``, the shares that a limit ended.

    Args:
        name: the task's.
        data: where the release's files are.
        draws: generations of each problem.
        window: first and last day of the contests.
    """

    suite = "livecodebench"
    version = 1

    def __init__(self, name: str, data: Path | None, draws: int, window: tuple[str, str] = ("", "9")):
        super().__init__(name, data, draws)
        self.window = window

    def asked(self) -> list[tuple[str, CodeProblem]]:
        """Return every problem of the window."""
        return [(problem.prompt, problem) for problem in read_problems(self.data, *self.window)]

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        """Make the draws of ``count`` problems; refuse before anything is generated where programs cannot be run.

        Raises:
            SandboxUnsupportedError: there is no sandbox here; the message says how to get one.
            UnsupportedCellError, DataUnavailableError: as for every reasoning task.
        """
        require_sandbox()
        return super().samples(context_tokens, count, seed, tokenizer)

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return 1 where the program passes every test, else 0."""
        code = extract_code(completion)
        if code is None:
            return Score(0.0, (), {"answered": 0.0, "tests_passed": 0.0, "timed_out": 0.0, "over_memory": 0.0})
        problem: CodeProblem = sample.meta
        verdict = run_tests(code, problem.function, problem.tests())
        measures = {
            "answered": 1.0,
            "tests_passed": float(verdict.tests_passed),
            "timed_out": float(verdict.cause == "timeout"),
            "over_memory": float(verdict.cause == "memory"),
        }
        return Score(float(verdict.passed), (), measures)


def _task(name: str, draws: int, window: tuple[str, str]) -> Callable[[Data], Task]:
    return lambda data: LiveCodeBench(name, data.get("livecodebench"), draws, window)


SUITE = Suite(
    {
        "livecodebench_v5": _task("livecodebench_v5", DRAWS, WINDOW),
        "livecodebench_v5_all": _task("livecodebench_v5_all", 1, ("", "9")),
    },
    default=("livecodebench_v5",),
    data=("livecodebench",),
)
