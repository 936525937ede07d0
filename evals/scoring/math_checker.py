"""Compare two mathematical answers by math-verify, with tolerances and units where a data set has them.

A comparison may take for ever (``10^{10^{10^{10}}}``) or all memory there is: ask a ``MathChecker``, which runs
``serve`` in a process of its own, each comparison within limits of time and memory.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from longdecode.engine.errors import LongDecodeError, ScoreTimeoutError
from longdecode.evals import sandbox
from longdecode.evals.scoring.answer_text import final_answer, folded, plain

DEADLINE_SECONDS, WALL_SECONDS = 10.0, 60.0
"""Most processor and clock time of a comparison; the slowest right answer of five data sets takes under a second."""
LIMITS = sandbox.SandboxLimits(cpu_seconds=1_000_000, output_bytes=1 << 20, processes=8)
"""Limits of the worker; processor time is bounded by comparison, because one worker answers thousands."""
_SOURCE_ROOT = Path(__file__).parents[3]
"""The folder that holds ``longdecode``; the links of the rooms are part of the path."""
MEMORY_BYTES = 1 << 30
"""Address space of the worker: a tower of exponents asks for all there is. The packages take 0.3 GB of it."""
OFFICIAL_SLACK = 1.01
"""OlympiadBench's judge takes a difference of 1.01 times the stated precision for equal, so that rounding of the very
edge does not decide (eval/auto_scoring_judge.py in OpenBMB/OlympiadBench)."""

_SCIENTIFIC = re.compile(r"(?<![A-Za-z\\])(\d+(?:\.\d*)?|\.\d+)\s*[eE]\s*([+-]?\d+)(?![A-Za-z\d.])")
_UPRIGHT = re.compile(r"\\(?:mathrm|mathbf|mathit|mathsf|boldsymbol|operatorname|rm)\s*\{\s*([A-Za-z0-9]+)\s*\}")
_PYTHON_NAME = re.compile(r"\bnp\.([a-z]+)")
_BARE_POINT = re.compile(r"(?<=\d)\.(?=\s*/)")
_LONG_SUBSCRIPT = re.compile(r"_\{?\s*\\(odot|oplus|star|max|min)\s*\}?")
_NAME = re.compile(r"\\?[A-Za-z]+(?:_\\?\w+)?(?:\([\w,\\]+\))?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SEPARATOR = re.compile(r"[,;](?![^(\[{]*[)\]}])")
"""A comma or semicolon outside brackets; that of ``1{,}000`` is within them."""
_SPACE = r"(?:~|\\[,;:! ]|\s)*"
_DEGREES = rf"{_SPACE}\^?{_SPACE}\{{?{_SPACE}\\circ{_SPACE}\}}?"
_POWER_OF_TEN = rf"{_SPACE}\\(?:times|cdot){_SPACE}10{_SPACE}\^{_SPACE}(?:\{{[-+\d ]+\}}|\d)"
_UPRIGHT_UNIT = rf"{_SPACE}\\(?:mathrm|text|textrm|operatorname|rm)\s*\{{.*"
_WORD_UNIT = r"(?:~|\\[,;:! ]|\s)+(?:[A-Za-zµΩÅ]{1,12}|(?:[kcdm]?m|in|inches|ft|feet|yd|mi)\s*\^\s*\{?[23]\}?)"
_UNIT_AFTER_NUMBER = re.compile(
    rf"(?P<number>[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:{_POWER_OF_TEN})?)"
    rf"(?:(?:{_DEGREES})?{_UPRIGHT_UNIT}|{_DEGREES}|{_WORD_UNIT})",
    re.DOTALL,
)
"""A number and its unit: degrees, upright letters, or one plain word after a space; ``3x`` and ``3\\pi`` have none."""
_SEVERAL = re.compile(r"\d[^\d\\=]*(?:\band\b|[A-Za-z][^\d\\=]*[,;])[^\d\\=]*\d")
"""Two numbers with words between them, ``3 hours and 5 minutes``; math-verify reads the first."""


@dataclass(frozen=True, slots=True)
class AnswerRule:
    """Set how a data set compares answers.

    ``absolute`` is the largest difference that counts as equal, one for every part of the answer or one for all;
    ``relative`` the same as a share of the gold value. Both concern numbers only, and only numbers are compared with
    them. ``drop_units`` takes the unit off an answer whose gold is a bare number.
    """

    absolute: tuple[float, ...] = ()
    relative: float = 0.0
    drop_units: bool = False

    def tolerance(self, part: int, gold: float) -> float:
        """Return the largest difference to the gold value of a part that counts as equal."""
        stated = self.absolute[min(part, len(self.absolute) - 1)] if self.absolute else 0.0
        return max(stated * OFFICIAL_SLACK, self.relative * abs(gold))


def equivalent(gold: str, answer: str, rule: AnswerRule | None = None) -> bool:
    """Return true where ``answer`` equals ``gold``, both in LaTeX, with or without dollars and a box around them.

    Several values separated by commas are compared as a set. Where the rule has a tolerance and both sides are numbers,
    the numbers decide.

    Raises:
        MemoryError, RecursionError: the comparison ran out of something; nothing is known about the answer.

    Source: math-verify 0.9 for parsing and comparing; OlympiadBench's judge for tolerances.
    """
    rule = rule or AnswerRule()
    gold, answer = _plain(_undressed(gold)), _undressed(answer)
    if rule.drop_units and _number(gold) is not None:
        if _SEVERAL.search(plain(answer)):
            return False
        if found := _UNIT_AFTER_NUMBER.fullmatch(answer):
            answer = found["number"]
    answer = _plain(answer)
    if rule.absolute or rule.relative:
        golds, answers = _numbers(gold), _numbers(answer)
        if golds is not None and answers is not None:
            return _match(golds, answers, [rule.tolerance(place, gold) for place, gold in enumerate(golds)])
    return _verified(gold, answer) or _verified_values(gold, answer)


def _verified_values(gold: str, answer: str) -> bool:
    """The right-hand sides alone, where the left one is a name that math-verify may not read (``I_{max} = ...``)."""
    name, value = _named(gold)
    other_name, other_value = _named(answer)
    return bool(name) and other_name in ("", name) and _verified(value, other_value)


def _named(text: str) -> tuple[str, str]:
    """Split ``name = value`` into name and value, spaces aside; the name is empty for any other text."""
    left, sign, right = text.partition("=")
    name = re.sub(r"[\s{}]", "", left)
    is_name = bool(sign) and "=" not in right and _NAME.fullmatch(name)
    return (name, right.strip()) if is_name else ("", text)


def _verified(gold: str, answer: str) -> bool:
    """math-verify's verdict, its own timeouts off: they take a comparison that did not end for a wrong answer."""
    from math_verify import verify

    for left, right in product(_parsed(gold), _parsed(answer)):
        try:
            if verify(left, right, timeout_seconds=None, raise_on_error=True):
                return True
        except (MemoryError, RecursionError):
            raise
        except Exception:  # SymPy raises errors of every kind on what it cannot compare: not shown to be equal
            continue
    return False


def _parsed(text: str) -> list[Any]:
    from math_verify import parse
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

    targets = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return list(parse(f"\\boxed{{{text}}}", targets, parsing_timeout=None))


def _undressed(text: str) -> str:
    """Return the text in the box and between the dollars, without a full stop."""
    inner = (final_answer(text) or text).strip()
    if inner.startswith("$") and inner.endswith("$") and inner.count("$") == 2:
        inner = inner[1:-1].strip()
    return inner if inner.endswith("\\.") else inner.removesuffix(".").strip()


def _plain(text: str) -> str:
    """Subscripts, upright letters and what programmers write (``4e33``, ``-1./3``) as math-verify reads them."""
    text = _BARE_POINT.sub("", _PYTHON_NAME.sub(r"\\\1", folded(text)))
    plain = _LONG_SUBSCRIPT.sub(r"_{\1}", text)
    while (simpler := _UPRIGHT.sub(_letters, plain)) != plain:
        plain = simpler
    return _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", plain).strip()


def _letters(found: re.Match[str]) -> str:
    """A single upright letter is a name; a longer word is most likely a unit and stays upright."""
    return found[1] if len(found[1]) == 1 else found[0]


def _numbers(text: str) -> list[float] | None:
    """The values of a list of numbers, or ``None`` where a part is none."""
    parts = [text.replace(",", "")] if _THOUSANDS.fullmatch(text) else _SEPARATOR.split(text)
    values = [value for part in parts if (value := _number(part.strip().strip("$"))) is not None]
    return values if len(values) == len(parts) else None


def _number(text: str) -> float | None:
    """The value of a constant expression, ``None`` for anything else."""
    try:
        (first, *_) = (found for found in _parsed(text) if hasattr(found, "is_number"))
        value = first.doit().evalf(20) if first.is_number else None
        return float(value) if value is not None and value.is_real else None
    except (TypeError, ValueError, AttributeError):
        return None


def _match(golds: Sequence[float], answers: Sequence[float], tolerances: Sequence[float]) -> bool:
    """Return true where the lists can be paired off, every pair within the gold value's tolerance."""
    if not golds:
        return not answers
    return any(
        abs(golds[0] - answer) <= tolerances[0]
        and _match(golds[1:], [*answers[:place], *answers[place + 1 :]], tolerances[1:])
        for place, answer in enumerate(answers)
    )


def serve() -> None:
    """Answer questions from standard input until it is closed: a line of JSON each, a verdict back.

    The timers are the kernel's and end this process, even deep in a computation with integers of a billion digits.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)  # math-verify warns that its own timeouts are off
    equivalent("1", "1")  # SymPy and the grammar are loaded at the first comparison
    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer, rule, processor_seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, processor_seconds)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        try:
            verdict = "equal" if equivalent(gold, answer, AnswerRule(*rule)) else "different"
        except (MemoryError, RecursionError) as error:
            verdict = type(error).__name__
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0.0)
        print(verdict, flush=True)


class CheckerError(LongDecodeError):
    """The process that compares answers cannot be started."""


class MathChecker:
    """Asks a worker process whether two answers are the same; it starts at the first question and ends by ``close``.

    What a model wrote is read there alone: under the sandbox of ``evals.sandbox`` (no network, no files but the
    interpreter's) where this machine has one, else as an ordinary process with the same limits on memory and time.

    Args:
        deadline_seconds: processor time that one comparison may take. It is the comparison's own, so that a busy
            machine does not turn answers into timeouts.
    """

    def __init__(self, deadline_seconds: float = DEADLINE_SECONDS):
        self.deadline_seconds = deadline_seconds
        self._worker: subprocess.Popen[str] | None = None

    def equal(self, gold: str, answer: str, rule: AnswerRule | None = None) -> bool:
        """Return true where an answer is the same as the gold one; see ``equivalent``.

        Raises:
            ScoreTimeoutError: the comparison did not end within the deadline, or within the memory it may have. Nothing
                is known about the answer.
            CheckerError: the worker cannot be started.
        """
        request = json.dumps([gold, answer, astuple(rule or AnswerRule()), self.deadline_seconds])
        verdict = self._ask(request) or self._ask(request) or "the comparing process ended twice"
        if verdict not in ("equal", "different"):
            raise ScoreTimeoutError(f"comparing {answer[:80]!r} with {gold!r}: {verdict}")
        return verdict == "equal"

    def close(self) -> None:
        """End the worker; the next question starts another."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            worker.kill()
            with contextlib.suppress(BrokenPipeError):  # a request that nobody will read
                worker.communicate()

    def _ask(self, request: str) -> str | None:
        """Return the worker's verdict, ``None`` where it died through no fault of the answer, of the system's say."""
        worker = self._worker = self._worker or _started()
        assert worker.stdin is not None and worker.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(request, file=worker.stdin, flush=True)
        if verdict := worker.stdout.readline().strip():
            return verdict
        code = worker.wait()
        self.close()
        timed_out = abs(code) % 128 in (signal.SIGPROF, signal.SIGALRM)  # bubblewrap reports signal 27 as 155
        return f"no verdict within {self.deadline_seconds:g} s of processor time" if timed_out else None


def _started() -> subprocess.Popen[str]:
    run = f"import sys; sys.path.insert(0, {str(_SOURCE_ROOT)!r}); from {AnswerRule.__module__} import serve; serve()"
    readable = [_SOURCE_ROOT, *((_SOURCE_ROOT / "longdecode" / room).resolve() for room in ("evals", "engine"))]
    with contextlib.ExitStack() as stack:
        command, descriptors = [sys.executable, "-I", "-c", run], tuple[int, ...]()
        with contextlib.suppress(sandbox.SandboxUnsupportedError):  # then it is an ordinary process
            sandbox.require_sandbox()
            command, descriptors = stack.enter_context(sandbox.sandboxed(command[1:], LIMITS, {}, readable))
        worker = subprocess.Popen(
            command, env=sandbox.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            pass_fds=descriptors,
        )  # fmt: skip
    assert worker.stdout is not None
    if worker.stdout.readline() != "ready\n":
        worker.kill()
        worker.communicate()
        raise CheckerError("the process that compares answers does not start; its error is on stderr")
    return worker


@functools.cache
def shared_checker() -> MathChecker:
    """The process's one checker, closed at exit; the worker costs a second or two to start."""
    checker = MathChecker()
    atexit.register(checker.close)
    return checker
