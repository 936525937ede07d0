"""Comparing mathematical answers under a deadline, in a process that can be killed and started again."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from longdecode.engine.errors import LongDecodeError, ScoreTimeoutError
from longdecode.evals import sandbox
from longdecode.evals.scoring import math_worker
from longdecode.evals.scoring.math_equivalence import Rule

DEADLINE_SECONDS = 10.0
"""Processor time of one comparison; the slowest right answer of the five data sets takes well under a second."""

WALL_FACTOR = 6.0
"""Clock time of one comparison, in units of the processor time it may take: room for a busy machine."""
START_WALL_SECONDS = 300.0
"""Clock time until a worker is ready."""
LIMITS = sandbox.Limits(cpu_seconds=1_000_000, memory_bytes=1 << 30, file_bytes=1 << 20, processes=8)
"""Limits of the worker; processor time is bounded by comparison, because one worker answers thousands."""
_READY = json.dumps("ready").encode()
_TRIES = 2
_CHUNK = 1 << 16
_SOURCE_ROOT = Path(__file__).parents[3]
"""The folder that holds ``longdecode``; the links of the rooms are part of the path."""


class CheckerError(LongDecodeError):
    """The process that compares answers cannot be started."""


class MathChecker:
    """Asks a worker process whether two answers are the same; a context manager, started at the first question.

    What a model wrote is read there alone: under the sandbox of ``evals.sandbox`` (no network, no files but the
    interpreter's) where this machine has one, else as an ordinary process with the same limits on memory and time.

    Args:
        deadline_seconds: processor time that one comparison may take. It is the worker's own, so that a busy machine
            does not turn answers into timeouts.
        wall_seconds: clock time after which a worker that does not answer, such as a stopped one, is replaced;
            ``WALL_FACTOR`` deadlines, a minute at least, where left out.
    """

    def __init__(self, deadline_seconds: float = DEADLINE_SECONDS, wall_seconds: float | None = None):
        self.deadline_seconds = deadline_seconds
        self.wall_seconds = wall_seconds or max(60.0, WALL_FACTOR * deadline_seconds)
        self._worker: subprocess.Popen[bytes] | None = None

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
        """Ask a worker; where it died or stood still through no fault of the answer, ask another one once more."""
        reason = ""
        for _ in range(_TRIES):
            worker = self._started()
            line = _exchange(worker, request.encode() + b"\n", time.monotonic() + self.wall_seconds)
            if line:
                return str(json.loads(line))
            stuck = line is None
            code = None if stuck else worker.wait()
            self.close()
            if code in (-signal.SIGPROF, 128 + signal.SIGPROF):
                return f"no verdict within {self.deadline_seconds:g} s of processor time"
            reason = f"no answer within {self.wall_seconds:g} s" if stuck else f"it ended with code {code}"
        return f"the comparing process failed twice: {reason}"

    def _started(self) -> subprocess.Popen[bytes]:
        if self._worker is None:
            # A file, not a pipe: nobody reads what the worker says until it is wanted.
            with contextlib.ExitStack() as stack:
                said = stack.enter_context(tempfile.TemporaryFile())
                command, descriptors, variables = _command(self.deadline_seconds, stack)
                self._worker = subprocess.Popen(
                    command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, bufsize=0,
                    pass_fds=descriptors,
                )  # fmt: skip
                if _exchange(self._worker, b"", time.monotonic() + START_WALL_SECONDS) != _READY:
                    self.close()
                    said.seek(0)
                    why = (said.read().decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1][-500:]
                    raise CheckerError(f"the process that compares answers does not start: {why}")
        return self._worker


def is_sandboxed() -> bool:
    """Return whether answers are read without network and files on this machine."""
    try:
        sandbox.require_sandbox()
    except sandbox.SandboxUnsupportedError:
        return False
    return True


def _command(
    deadline_seconds: float, stack: contextlib.ExitStack
) -> tuple[list[str], tuple[int, ...], Mapping[str, str]]:
    """Return the worker's command, the descriptors it inherits and its variables."""
    run = (
        f"import sys; sys.path.insert(0, {str(_SOURCE_ROOT)!r}); sys.argv[1:] = [{str(deadline_seconds)!r}]; "
        f"from {math_worker.__name__} import main; main()"
    )
    if not is_sandboxed():
        return [sys.executable, "-I", "-c", run], (), {**os.environ, **sandbox.environment()}
    readable = [_SOURCE_ROOT, *((_SOURCE_ROOT / "longdecode" / room).resolve() for room in ("evals", "engine"))]
    command, descriptors = stack.enter_context(sandbox.sandboxed(["-I", "-c", run], LIMITS, {}, readable))
    return command, descriptors, sandbox.environment()


def _exchange(worker: subprocess.Popen[bytes], request: bytes, deadline: float) -> bytes | None:
    """Send a request and return the line that answers it; empty where the worker ended, ``None`` past the deadline."""
    assert worker.stdin is not None and worker.stdout is not None
    feed, answer = worker.stdin.fileno(), worker.stdout.fileno()
    rest, line = memoryview(request), bytearray()
    os.set_blocking(feed, False)
    with selectors.DefaultSelector() as selector:
        selector.register(answer, selectors.EVENT_READ)
        if rest:
            selector.register(feed, selectors.EVENT_WRITE)
        while not line.endswith(b"\n"):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            for key, _ in ready:
                if key.fd == answer:
                    if not (chunk := os.read(answer, _CHUNK)):
                        return b""
                    line += chunk
                    continue
                try:
                    rest = rest[os.write(feed, rest[:_CHUNK]) :]
                except BrokenPipeError:
                    return b""
                if not rest:
                    selector.unregister(feed)
    return bytes(line[:-1])


@functools.cache
def shared_checker() -> MathChecker:
    """The process's one checker, closed at exit; the worker costs a second or two to start."""
    checker = MathChecker()
    atexit.register(checker.close)
    return checker
