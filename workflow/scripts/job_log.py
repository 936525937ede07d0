"""Set up each job's process: threads, a log that is also shown, our own errors without a traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
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
        self.kept.write(text)
        return self.shown.write(text)

    def flush(self) -> None:
        self.kept.flush()
        self.shown.flush()

    def isatty(self) -> bool:
        return False


@contextmanager
def logged(snakemake: Snakemake) -> Iterator[None]:
    """Run a job's body; import torch only inside, so that it takes the thread count set here.

    Raises:
        SystemExit: the body failed; the reason stands in the log and on standard error.
    """
    threads = str(snakemake.resources.get("torch_threads", snakemake.threads))
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, threads))
    log = Path(snakemake.log[0])
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("w", encoding="utf-8", buffering=1) as kept,
        redirect_stdout(_Tee(sys.stdout, kept)),
        redirect_stderr(_Tee(sys.stderr, kept)),
    ):
        from longdecode.engine.errors import LongDecodeError

        try:
            yield
        except LongDecodeError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            raise SystemExit(1) from None
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None
