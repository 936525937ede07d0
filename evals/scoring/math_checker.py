"""Comparing mathematical answers under a deadline, in a process that can be killed and started again."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from longdecode.engine.errors import LongDecodeError, ScoreTimeoutError
from longdecode.evals.scoring.math_equivalence import Rule

DEADLINE_SECONDS = 10.0
"""Processor time of one comparison; the slowest right answer of the five data sets takes well under a second."""

_READY = json.dumps("ready") + "\n"
_SOURCE_ROOT = Path(__file__).parents[3]
"""The folder that holds ``longdecode``; the links of the rooms are part of the path."""


class CheckerError(LongDecodeError):
    """The process that compares answers cannot be started."""


class MathChecker:
    """Asks a worker process whether two answers are the same; a context manager, started at the first question.

    Args:
        deadline_seconds: processor time that one comparison may take. It is the worker's own, so that a busy machine
            does not turn answers into timeouts.
    """

    def __init__(self, deadline_seconds: float = DEADLINE_SECONDS):
        self.deadline_seconds = deadline_seconds
        self._worker: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def equal(self, gold: str, answer: str, rule: Rule | None = None) -> bool:
        """Return true where an answer is the same as the gold one; see ``math_equivalence.equivalent``.

        Raises:
            ScoreTimeoutError: the comparison did not end within the deadline, or within the memory it may have. Nothing
                is known about the answer.
            CheckerError: the worker cannot be started.
        """
        rule = rule or Rule()
        request = {
            "gold": gold, "answer": answer, "absolute": rule.absolute, "relative": rule.relative,
            "drop_units": rule.drop_units,
        }  # fmt: skip
        verdict = self._ask(json.dumps(request))
        if verdict not in ("equal", "different"):
            shown = answer if len(answer) <= 80 else f"{answer[:77]}..."
            raise ScoreTimeoutError(f"comparing {shown!r} with {gold!r}: {verdict}")
        return verdict == "equal"

    def close(self) -> None:
        """End the worker; the next question starts another."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            worker.kill()
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                with contextlib.suppress(BrokenPipeError):  # a request that nobody will read
                    if pipe is not None:
                        pipe.close()

    def _ask(self, request: str) -> str:
        worker = self._started()
        assert worker.stdin is not None and worker.stdout is not None
        try:
            worker.stdin.write(request + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return str(json.loads(line))
        code = worker.wait()
        self.close()
        timed_out = f"no verdict within {self.deadline_seconds:g} s of processor time"
        return timed_out if code == -signal.SIGPROF else f"the comparing process ended with code {code}"

    def _started(self) -> subprocess.Popen[str]:
        if self._worker is None:
            path = os.pathsep.join(filter(None, (str(_SOURCE_ROOT), os.environ.get("PYTHONPATH"))))
            command = [sys.executable, "-P", "-m", "longdecode.evals.scoring.math_worker", str(self.deadline_seconds)]
            # A file, not a pipe: nobody reads what the worker says until it is wanted.
            with tempfile.TemporaryFile() as said:
                self._worker = subprocess.Popen(
                    command, env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=said, text=True,
                )  # fmt: skip
                assert self._worker.stdout is not None
                if self._worker.stdout.readline() != _READY:
                    self.close()
                    said.seek(0)
                    why = said.read().decode(errors="replace").strip()[-500:]
                    raise CheckerError(f"{' '.join(command)} does not start: {why}")
        return self._worker


@functools.cache
def shared_checker() -> MathChecker:
    """The process's one checker, closed at exit; the worker costs a second or two to start."""
    checker = MathChecker()
    atexit.register(checker.close)
    return checker
