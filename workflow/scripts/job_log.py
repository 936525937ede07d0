"""Set up each job's process: threads, a log that is also shown, our own errors without a traceback."""

from __future__ import annotations

import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

from snakemake.iocontainers import Snakemake

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class _Tee:
    """A text stream that writes to two."""

    def __init__(self, shown: TextIO, kept: TextIO):
        self.shown = shown
        self.kept = kept

    def write(self, text: str) -> int:
        with suppress(OSError):  # a full disk must not hide the error that says so
            self.kept.write(text)
        return self.shown.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self.kept.flush()
        self.shown.flush()

    def isatty(self) -> bool:
        return False


def waiting_for_others(work: Callable[[], object]) -> None:
    """Do a job's work once no other process fills its outputs.

    A job may outlive a workflow that was killed; what it writes is taken over when it ends.
    """
    from longdecode.engine.file_lock import LockHeldError

    said = False
    while True:
        try:
            work()
            return
        except LockHeldError as error:
            if not said:
                print(f"{error}; waiting for it to end", file=sys.stderr)
            said = True
            time.sleep(1)


def _enter_outputs(snakemake: Snakemake) -> None:
    """Enter the evidence that a job wrote in its run's manifest."""
    from longdecode.evals import manifest

    root = Path("results") / snakemake.config["profile"]
    evidence = [
        path for path in map(Path, snakemake.output) if path.suffix in manifest.SUFFIXES and root in path.parents
    ]
    if evidence:
        manifest.seal(root, evidence)


def _opened(log: Path) -> TextIO:
    """Open a job's log; where the disk refuses, say so and go on without one."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("w", encoding="utf-8", buffering=1)
    except OSError as error:
        print(f"{log} could not be written: {error.strerror}", file=sys.stderr)
        return io.StringIO()


@contextmanager
def logged(snakemake: Snakemake) -> Iterator[None]:
    """Run a job's body; import torch only inside, so that it takes the thread count set here.

    Raises:
        SystemExit: the body failed; the reason stands in the log and on standard error.
    """
    threads = str(snakemake.resources.get("torch_threads", snakemake.threads))
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, threads))
    with (
        _opened(Path(snakemake.log[0])) as kept,
        redirect_stdout(_Tee(sys.stdout, kept)),
        redirect_stderr(_Tee(sys.stderr, kept)),
    ):
        from longdecode.engine.errors import LongDecodeError

        try:
            yield
            _enter_outputs(snakemake)
        except LongDecodeError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            raise SystemExit(1) from None
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None
