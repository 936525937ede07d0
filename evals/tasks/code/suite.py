"""Programs in Python, which must pass their tests in the sandbox: the suite ``code``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longdecode.evals.datasets.livecodebench import CodeProblem, read_problems, read_public_problems
from longdecode.evals.sandbox import require_sandbox
from longdecode.evals.scoring.code_tests import Verdict, extract_code, run_checks, run_tests
from longdecode.evals.tasks.base import Data, Sample, Score, Suite, Task
from longdecode.evals.tasks.code.functions import FunctionProblem, humaneval, mbpp, mbpp_full
from longdecode.evals.tasks.reasoning import ReasoningTask

if TYPE_CHECKING:
    from longdecode.evals.tokenizing import TextTokenizer

WINDOW = ("2024-08-01", "2025-02-01")
"""The part of release_v5 that DeepSeek-R1 and QwQ report: 279 problems."""
DRAWS = 4
FUNCTION_TOKENS, CONTEST_TOKENS = 1024, 2048
"""Most tokens of a greedy answer: one function; a contest program with the words before it."""


class CodeTask(ReasoningTask):
    """Problems answered by a program; right is one that passes every test.

    ``measures``: ``answered``, the share with a program; ``tests_passed`` before the first failure; ``timed_out`` and
    ``over_memory``, the shares that a limit ended.

    Args:
        name: the task's.
        data: where the sets are.
        read: reader of the problems.
        mark: runs a completion's program; ``None`` where there is none.
        draws: generations of each problem.
        most_new_tokens: most tokens of a greedy answer; sampled reasoning, with all that the context leaves, without.
    """

    suite = "code"
    version = 1

    def __init__(
        self,
        name: str,
        data: Path | None,
        read: Callable[[Path | None], Sequence[Any]],
        mark: Callable[[Any, str], Verdict | None],
        draws: int = 1,
        most_new_tokens: int | None = None,
    ):
        super().__init__(name, data, draws, greedy=most_new_tokens is not None, most_new_tokens=most_new_tokens)
        self.read = read
        self.mark = mark

    def asked(self) -> list[tuple[str, Any]]:
        """Return every problem of the set."""
        return [(problem.prompt, problem) for problem in self.read(self.data)]

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
        verdict = self.mark(sample.meta, completion)
        measures = {
            "answered": float(verdict is not None),
            "tests_passed": float(verdict.tests_passed if verdict else 0),
            "timed_out": float(verdict is not None and verdict.cause == "timeout"),
            "over_memory": float(verdict is not None and verdict.cause == "memory"),
        }
        return Score(float(verdict is not None and verdict.passed), (), measures)


def mark_by_tests(problem: CodeProblem, completion: str) -> Verdict | None:
    """Run the program in the last closed block on a contest problem's tests."""
    code = extract_code(completion)
    return None if code is None else run_tests(code, problem.function, problem.tests())


def mark_by_checks(problem: FunctionProblem, completion: str) -> Verdict | None:
    """Run a completion's function under the problem's checks."""
    parts = problem.program(completion)
    return None if parts is None else run_checks(parts, problem.checks)


def _functions(name: str, read: Callable[[Path | None], Sequence[Any]]) -> Callable[[Data], Task]:
    return lambda data: CodeTask(name, data.get("code"), read, mark_by_checks, most_new_tokens=FUNCTION_TOKENS)


def _contests(name: str, draws: int, window: tuple[str, str] = ("", "9")) -> Callable[[Data], Task]:
    return lambda data: CodeTask(name, data.get("code"), lambda at: read_problems(at, *window), mark_by_tests, draws)


def _derived(name: str) -> Callable[[Data], Task]:
    return lambda data: CodeTask(
        name, data.get("code"), read_public_problems, mark_by_tests, most_new_tokens=CONTEST_TOKENS
    )


SUITE = Suite(
    {
        "humaneval": _functions("humaneval", humaneval),
        "mbpp": _functions("mbpp", mbpp),
        "mbpp_full": _functions("mbpp_full", mbpp_full),
        "livecodebench_v5": _contests("livecodebench_v5", DRAWS, WINDOW),
        "livecodebench_v5_all": _contests("livecodebench_v5_all", 1),
        "lcb_v5_public_derived": _derived("lcb_v5_public_derived"),
    },
    default=("humaneval", "mbpp", "livecodebench_v5"),
    data=("code",),
)
