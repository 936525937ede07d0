"""Compare mathematical answers in a process of its own, each within limits of time and memory."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import signal
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Self

from longdecode.engine.errors import LongDecodeError, ScoreTimeoutError
from longdecode.evals import sandbox
from longdecode.evals.scoring.math_equivalence import Rule

DEADLINE_SECONDS = 10.0
"""Processor time of one comparison; the slowest right answer of the five data sets takes well under a second."""
LIMITS = sandbox.Limits(cpu_seconds=1_000_000, output_bytes=1 << 20, processes=8)
"""Limits of the worker; processor time is bounded by comparison, because one worker answers thousands."""
_SOURCE_ROOT = Path(__file__).parents[3]
"""The folder that holds ``longdecode``; the links of the rooms are part of the path."""


class CheckerError(LongDecodeError):
    """The process that compares answers cannot be started."""


class MathChecker:
    """Asks a worker process whether two answers are the same; a context manager, started at the first question.

    What a model wrote is read there alone: under the sandbox of ``evals.sandbox`` (no network, no files but the
    interpreter's) where this machine has one, else as an ordinary process with the same limits on memory and time.

    Args:
        deadline_seconds: processor time that one comparison may take. It is the comparison's own, so that a busy
            machine does not turn answers into timeouts.
        wall_seconds: clock time after which a comparison is ended all the same.
    """

    def __init__(self, deadline_seconds: float = DEADLINE_SECONDS, wall_seconds: float = 60.0):
        self.deadline_seconds, self.wall_seconds = deadline_seconds, max(wall_seconds, deadline_seconds)
        self._worker: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def equal(self, gold: str, answer: str, rule: Rule | None = None) -> bool:
        """Return true where an answer is the same as the gold one; see ``math_equivalence.equivalent``.

        Raises:
            ScoreTimeoutError: the comparison did not end within the deadline, or within the memory it may have. Nothing
                is known about the answer.
            CheckerError: the worker cannot be started.
        """
        request = json.dumps([gold, answer, astuple(rule or Rule()), self.deadline_seconds, self.wall_seconds])
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


def is_sandboxed() -> bool:
    """Return whether answers are read without network and files on this machine."""
    try:
        sandbox.require_sandbox()
    except sandbox.SandboxUnsupportedError:
        return False
    return True


def _started() -> subprocess.Popen[str]:
    run = f"import sys; sys.path.insert(0, {str(_SOURCE_ROOT)!r}); from {Rule.__module__} import serve; serve()"
    readable = [_SOURCE_ROOT, *((_SOURCE_ROOT / "longdecode" / room).resolve() for room in ("evals", "engine"))]
    with contextlib.ExitStack() as stack:
        command, descriptors = [sys.executable, "-I", "-c", run], tuple[int, ...]()
        if is_sandboxed():
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
