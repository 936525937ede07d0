"""Run a model's program against tests, in the sandbox: expected outputs never enter it.

Source: github LiveCodeBench/LiveCodeBench, lcb_runner/evaluation/testing_util.py, for what counts as equal, the names
that a program may use without importing them, and the six seconds of a test. Deviations: each test runs in a process of
its own, as a main program; the seconds are of processor time; tuples within a result equal lists.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from longdecode.evals.datasets.livecodebench import CodeTest
from longdecode.evals.sandbox import SandboxLimits, SandboxResult, run_python

LIMITS = SandboxLimits(wall_seconds=40.0, memory_bytes=4 << 30, output_bytes=64 << 20)
MOST_AT_ONCE = 8
"""Most tests of a program that run side by side, on half of the processors."""
_SOLUTION = "/solution.py"
_NAMES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json"
    " builtins typing"
).split()
_PRELUDE = "".join(f"from {name} import *\n" for name in _NAMES) + f"import {', '.join(_NAMES)}\n"
_RUN = f"""
import __main__
exec({_PRELUDE!r}, __main__.__dict__)
__main__.__dict__["sys"].setrecursionlimit(50000)
exec(compile(open({_SOLUTION!r}, encoding="utf-8").read(), {_SOLUTION!r}, "exec"), __main__.__dict__)
"""
# What a program prints goes to its standard error: what stands on standard output is the driver's alone.
_QUIET = """
import json as _json, os as _os, sys as _sys, types as _types
_out = _os.dup(1)
_os.dup2(2, 1)
"""
_CALL = """
_owner = __main__.Solution() if hasattr(__main__, "Solution") else __main__
_result = getattr(_owner, {name!r})(*[_json.loads(line) for line in _sys.stdin.read().split("\\n")])
_os.fdopen(_out, "w").write(_json.dumps(_result))
"""
_CHECKS = """
_token = _sys.stdin.readline()
_module = _sys.modules["solution"] = _types.ModuleType("solution")
for _file in {files!r}:
    exec(compile(open(_file, encoding="utf-8").read(), _file, "exec"), _module.__dict__)
_os.write(_out, _token.encode())
"""
_BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[^\n`]*\n(?P<code>.*?)(?:^(?: {0,3}|(?P=indent))(?P=fence)|\Z)",
    re.DOTALL | re.MULTILINE,
)
"""A fence that stands deeper than its opening one, in a docstring, closes nothing."""


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """The end of a program's marking: whether it passed, and the cause of the first failure (``wrong`` or a status)."""

    passed: bool
    cause: str | None
    tests_passed: int


def extract_code(completion: str) -> str | None:
    """Return the last fenced block of a completion, or ``None`` where there is none that is closed."""
    lines = completion.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) >= 2 else None


def code_blocks(completion: str) -> list[str]:
    """Return all fenced blocks of a completion; the last may be open to the completion's end."""
    return [block["code"] for block in _BLOCK.finditer(completion)]


def run_checks(parts: Sequence[str], checks: str, limits: SandboxLimits = LIMITS) -> ProgramOutcome:
    """Run a program and then checks of it in one namespace, as HumanEval and MBPP do; one test in all.

    A program that ends before its checks have run fails, whatever its exit code: the last statement alone writes the
    token that the driver was given.

    Args:
        parts: texts that make the program, each compiled by itself.
        checks: program that raises where the function is wrong.
        limits: of all of it.

    Raises:
        SandboxUnsupportedError: there is no sandbox here.
    """
    files = {f"/part{i}.py": text.encode(errors="replace") for i, text in enumerate((*parts, checks))}
    token = f"{secrets.token_hex(16)}\n".encode()
    outcome = run_python(_QUIET + _CHECKS.format(files=list(files)), token, limits, files)
    cause = _cause(outcome, outcome.stdout == token)
    return ProgramOutcome(cause is None, cause, int(cause is None))


def run_tests(
    code: str, function: str | None, tests: Sequence[CodeTest], limits: SandboxLimits = LIMITS
) -> ProgramOutcome:
    """Run a program on tests until it fails one, a few at a time where there are processors; the verdict is the same.

    Args:
        code: the program.
        function: name of the function, or method of ``Solution``, that is called with a test's JSON lines; ``None``
            for a program that reads standard input.
        tests: in the order that they run.
        limits: of each test.

    Raises:
        SandboxUnsupportedError: there is no sandbox here.
    """
    driver = _RUN if function is None else _QUIET + _RUN + _CALL.format(name=function)
    files = {_SOLUTION: code.encode(errors="replace")}
    same = same_output if function is None else same_result

    def failure(test: CodeTest) -> str | None:
        outcome = run_python(driver, test.given.encode(), limits, files)
        return _cause(outcome, same(outcome.stdout.decode(errors="replace"), test.expected))

    at_once = max(1, min(MOST_AT_ONCE, len(os.sched_getaffinity(0)) // 2))
    passed = 0
    with ThreadPoolExecutor(at_once) as pool:
        for start in range(0, len(tests), at_once):
            for cause in pool.map(failure, tests[start : start + at_once]):
                if cause is not None:
                    return ProgramOutcome(False, cause, passed)
                passed += 1
    return ProgramOutcome(passed > 0, None if passed else "no tests", passed)


def _cause(outcome: SandboxResult, right: bool) -> str | None:
    return outcome.status if outcome.status != "ok" else None if right else "wrong"


def same_result(given: str, expected: str) -> bool:
    """Return whether a function's result, as JSON, equals the expected one."""
    try:
        return bool(json.loads(given) == json.loads(expected))
    except (ValueError, RecursionError):
        return False


def same_output(given: str, expected: str) -> bool:
    """Return whether printed lines are equal, blanks around them aside, as text or else as decimal numbers."""
    ours, theirs = ([line.strip() for line in text.strip().split("\n")] for text in (given, expected))
    if len(ours) != len(theirs):
        return False
    return all(a == b or _numbers(a) == _numbers(b) is not None for a, b in zip(ours, theirs, strict=True))


def _numbers(line: str) -> list[Decimal] | None:
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None
