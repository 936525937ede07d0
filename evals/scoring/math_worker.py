"""The process that compares mathematical answers: one request a line, one verdict a line, an alarm on each.

Run by ``MathChecker`` only. The alarm is the kernel's and is left at its default action, which ends the process: no
comparison can outlast it, not even one that is deep in a computation with integers of a billion digits.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys

MEMORY_BYTES = 1 << 30
"""Address space of the worker: a tower of exponents asks for all there is. The packages take 0.3 GB of it."""
START_SECONDS = 60.0
"""Processor time that loading SymPy may take; one or two seconds as a rule."""


def main() -> None:
    """Answer requests from standard input until it is closed; the first argument is the deadline in seconds."""
    deadline = float(sys.argv[1])
    signal.setitimer(signal.ITIMER_PROF, START_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable(logging.CRITICAL)  # math-verify warns that its own timeouts are off
    from longdecode.evals.scoring.math_equivalence import Rule, equivalent

    equivalent("1", "1")  # SymPy and the grammar are loaded at the first comparison
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    _answer("ready")
    for line in sys.stdin:
        request = json.loads(line)
        rule = Rule(tuple(request["absolute"]), request["relative"], request["drop_units"])
        signal.setitimer(signal.ITIMER_PROF, deadline)
        try:
            verdict = "equal" if equivalent(request["gold"], request["answer"], rule) else "different"
        except MemoryError:
            verdict = "out of memory"
        except RecursionError:
            verdict = "nested too deeply"
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _answer(verdict)


def _answer(verdict: str) -> None:
    print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
