"""Programs in Python, which must pass their tests in the sandbox: HumanEval, MBPP and LiveCodeBench."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from longdecode.evals.datasets.livecodebench import CodeProblem, read_problems
from longdecode.evals.datasets.reader import SOURCES, Row, read_rows
from longdecode.evals.sandbox import require_sandbox
from longdecode.evals.scoring.code_tests import ProgramOutcome, code_blocks, extract_code, run_checks, run_tests
from longdecode.evals.tasks.base import Data, ReasoningTask, Sample, Score, Suite

WINDOW = ("2024-08-01", "2025-02-01")
"""The part of release_v5 that DeepSeek-R1 and QwQ report: 279 problems."""
DRAWS = 4
NO_PROGRAM = ProgramOutcome(False, "no program", 0)
FUNCTION_TOKENS = 1024
"""Most tokens of a greedy answer."""
_BODY = re.compile(r"\s*^(?: {2,}|\t)\S", re.MULTILINE)
"""The beginning of a bare function body: an indented line."""
_UNFENCED = re.compile(
    r"^(?:(?:from|import|def|class|async def)\s|@).*\n?"
    r"(?:(?:[ \t].*|[ \t]*|[#@)\]}\"'].*|(?:from|import|def|class|async|if|for|while|try|with)\b.*"
    r"|\w+\s*[=(.\[].*)(?:\n|\Z))*",
    re.MULTILINE,
)
"""A program among sentences: from its first definition or import to the line before a sentence."""


@dataclass(frozen=True, slots=True)
class FunctionProblem:
    """One problem.

    Attributes:
        task_id: the set's.
        prompt: text for the model.
        names: functions and classes that the checks use, one of which a program must define.
        stub: head of the function, to be completed; empty where the program has to bring everything.
        checks: program that raises unless the function is right.
        reference: the set's own program, or the body of the stub.
    """

    task_id: str
    prompt: str
    names: tuple[str, ...]
    stub: str
    checks: str
    reference: str

    def program(self, completion: str) -> tuple[str, ...] | None:
        """Return the parts of the completion's program, to be run in one namespace; ``None`` where it holds none.

        The program is the first fenced block that defines what is asked for, else the first block, else the whole
        completion. One that defines it runs after the stub, whose imports and helpers it may use; one that does not is
        the stub's body.
        """
        names = "|".join(self.names)
        defines = re.compile(rf"^(?:(?:(?:async\s+)?def|class)\s+(?:{names})\b|(?:{names})\s*=[^=])", re.MULTILINE)
        blocks = [dedent(block) for block in code_blocks(completion)]
        unfenced = [] if blocks else [found[0] for found in _UNFENCED.finditer(completion)]
        code = next((block for block in [*blocks, *unfenced, completion] if defines.search(block)), None)
        if code is not None:
            return (f"{self.stub}\n    pass\n", code) if self.stub else (code,)
        body = blocks[0] if blocks else completion if _BODY.match(completion) else ""
        if not body.strip():
            return None
        return (f"{self.stub}\n{_indented(body)}\n",) if self.stub else (body,)


Reader = Callable[[Path | None], Sequence[FunctionProblem | CodeProblem]]
"""Reads the problems of a set from its folder or the hub."""


class CodeTask(ReasoningTask):
    """Problems answered by a program; right is one that passes every test.

    ``measures``: ``answered``, the share with a program; ``tests_passed`` before the first failure; ``timed_out`` and
    ``over_memory``, the shares that a limit ended.

    Args:
        read: reader of the problems.
        draws: generations of each problem.
        most_new_tokens: most tokens of a greedy answer; sampled reasoning, with all that the context leaves, without.
        data: ``code`` says where the sets are.
    """

    def __init__(self, read: Reader, draws: int, most_new_tokens: int | None, data: Data):
        super().__init__(data, draws, most_new_tokens)
        self.read = read

    def problems(self) -> list[tuple[str, Any]]:
        """Return every problem of the set; refuse before anything is generated where programs cannot be run.

        Raises:
            SandboxUnsupportedError: there is no sandbox here; the message says how to get one.
            DataUnavailableError: the set is not here; the message says how to fetch it.
        """
        require_sandbox()
        return [(problem.prompt, problem) for problem in self.read(self.data.get("code"))]

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        """Return 1 where the program passes every test, else 0."""
        verdict = mark(sample.meta, completion)
        measures = {
            "answered": float(verdict != NO_PROGRAM), "tests_passed": float(verdict.tests_passed),
            "timed_out": float(verdict.cause == "timeout"), "over_memory": float(verdict.cause == "memory"),
        }  # fmt: skip
        return Score(float(verdict.passed), (), measures)


def mark(problem: FunctionProblem | CodeProblem, completion: str) -> ProgramOutcome:
    """Run a completion's program on a problem's tests: the function asked for, or the program in the last closed block.

    Returns:
        The verdict; ``NO_PROGRAM`` where there is none to run.
    """
    if isinstance(problem, FunctionProblem):
        parts = problem.program(completion)
        return NO_PROGRAM if parts is None else run_checks(parts, problem.checks)
    code = extract_code(completion)
    return NO_PROGRAM if code is None else run_tests(code, problem.function, problem.tests())


def read_functions(name: str, source: Path | None) -> list[FunctionProblem]:
    """Return HumanEval's 164 problems, or MBPP's in order of their number: the 427 sanitised ones, or all 974.

    Source: Chen et al. 2021 (arXiv 2107.03374), github openai/human-eval; Austin et al. 2021 (arXiv 2108.07732), github
    google-research/google-research, mbpp, whose prompt shows all checks, as the paper's does. The prompts' words are
    this project's.

    Args:
        name: ``humaneval``, ``mbpp`` or ``mbpp_full``.
        source: a folder with ``humaneval/`` and ``mbpp/``, or ``hub``.

    Raises:
        DataUnavailableError: the set is not here or cannot be read; the message says how to fetch it.
    """
    rows = read_rows(SOURCES[name], source)
    if name == "humaneval":
        return [_humaneval(row) for row in rows]
    return sorted(map(_mbpp, rows), key=lambda problem: int(problem.task_id))


def _humaneval(row: Row) -> FunctionProblem:
    stub, name = row.text("prompt"), row.text("entry_point")
    if not name.isidentifier() or re.search(rf"\bdef\s+{name}\b", stub) is None:
        raise row.fault(f"has {name!r} as 'entry_point', which is no function of its 'prompt'")
    prompt = (
        "Complete this Python function. Answer with one code block that holds the whole function and the imports that "
        f"it needs.\n\n```python\n{stub.strip()}\n```\n"
    )
    checks = f"{row.text('test')}\n\ncheck({name})\n"
    return FunctionProblem(row.answer("task_id"), prompt, (name,), stub, checks, row.text("canonical_solution"))


def _mbpp(row: Row) -> FunctionProblem:
    reference, number = row.text("code"), row.answer("task_id")
    shown = "\n".join(row.texts("test_list"))
    task = (row.text("prompt", "") or row.text("text")).strip()
    prompt = (
        f"{task}\n\nWrite it in Python, in one code block, with the imports that it needs. These checks must "
        f"pass:\n\n```python\n{shown}\n```\n"
    )
    imports = row.texts("test_imports") if row.values.get("test_imports") else ()
    # Set-up code builds on the program's own classes, so that it comes after the program.
    checks = "\n".join([*imports, row.text("test_setup_code", ""), shown, ""])
    defined = re.findall(r"^(?:def|class)\s+(\w+)", reference, re.MULTILINE)
    names = tuple(name for name in dict.fromkeys(defined) if re.search(rf"\b{name}\b", checks))
    if not names or not number.isdecimal():
        raise row.fault(f"is problem {number!r}, which has no number or checks nothing that its reference defines")
    return FunctionProblem(number, prompt, names, "", checks, reference)


def _indented(body: str) -> str:
    """Indent a function's body by four columns, whether all of it or its first line alone lacks them."""
    first, _, rest = body.strip("\n").partition("\n")
    lines = [line for line in rest.split("\n") if line.strip()]
    continued = lines and all(line.startswith(("    ", "\t")) for line in lines) and not first.rstrip().endswith(":")
    return f"    {first}\n{rest}" if continued and not first[:1].isspace() else indent(dedent(body.strip("\n")), "    ")


_FUNCTIONS = {name: partial(read_functions, name) for name in ("humaneval", "mbpp", "mbpp_full")}
SUITES: Mapping[str, Suite] = {
    "code": Suite(
        {
            **{name: partial(CodeTask, read, 1, FUNCTION_TOKENS) for name, read in _FUNCTIONS.items()},
            "livecodebench_v5": partial(CodeTask, partial(read_problems, window=WINDOW), DRAWS, None),
            "livecodebench_v5_public": partial(
                CodeTask, partial(read_problems, window=WINDOW, public=True), 1, FUNCTION_TOKENS
            ),
            "livecodebench_v5_all": partial(CodeTask, read_problems, 1, None),
        },
        default=("humaneval", "mbpp", "livecodebench_v5"),
        data=("code",),
    )
}
