"""Read what Snakemake prints while it runs: jobs and cells done, time left, and what went wrong.

It is the command's alone, and stands here as ``terminal`` does: this room words all that a run shows, on its way as at
its end, and ``longdecode.running`` starts processes.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

FINISHED = re.compile(r"^Finished jobid: \d+ \(Rule: (\w+)\)")
STEPS = re.compile(r"^(\d+) of (\d+) steps")
PLANNED = re.compile(r"^(\w+) +(\d+)$")
SAID = re.compile(r"^(?!CalledProcessError|WorkflowError:$)\w+(Error|Exception)\b")
"""Lines that say what went wrong. The two left out say that a job failed, whose own error stands above them."""
UNSAID = re.compile(r"Exception:$|^WorkflowError in rule .*:$|^MissingInputException(?!.* affected files: )")
REFUSED = re.compile(r" n=0 (\w+: .+)")
"""End of the line of a cell without a record."""


@dataclass
class Told:
    """Read what Snakemake prints: jobs and cells done, and what went wrong.

    Args:
        cells: by rule, the cells that one job of it scores.
    """

    cells: Mapping[str, float]
    planned: dict[str, int] = field(default_factory=dict)
    steps: str = "0/0"
    scored: float = 0
    rule: str = ""
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=5))
    refused: deque[str] = field(default_factory=lambda: deque(maxlen=3))
    began: float = field(default_factory=time.monotonic)

    def read(self, line: str) -> str | None:
        """Take in a line; return one to show where a job ended."""
        if found := FINISHED.match(line):
            self.rule = found[1]
            self.scored += self.cells.get(found[1], 0)
        elif found := STEPS.match(line):
            self.steps = f"{found[1]}/{found[2]}"
            return self.line()
        elif found := PLANNED.match(line):
            self.planned[found[1]] = int(found[2])
        elif (found := REFUSED.search(line)) and found[1] not in self.refused:
            self.refused.append(found[1])
        elif line.startswith("Nothing to be done"):
            return "nothing to do: all is up to date"
        elif self.errors and UNSAID.search(self.errors[-1]):  # Snakemake says the rest on the next line
            said = f"{self.errors.pop()} {line.strip()}"
            if not line.startswith("CalledProcessError"):
                self.errors.append(said)
        elif SAID.match(line) and line not in self.errors:
            self.errors.append(line)
        return None

    @property
    def total(self) -> float:
        """Cells of the jobs that are to run; those that earlier runs scored do not count."""
        return sum(self.cells.get(rule, 0) * jobs for rule, jobs in self.planned.items())

    def line(self) -> str:
        """Say the job that ended, cells done, time taken, and time left by the cells scored so far."""
        cells = f"  cells {self.scored:,.0f}/{self.total:,.0f}" if self.total else ""
        rest = self.total - self.scored
        left = f"  about {clock(self.seconds * rest / self.scored)} left" if self.scored and rest else ""
        return f"[{self.steps}] {self.rule:<24}{clock(self.seconds)}{cells}{left}"

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began


def clock(seconds: float) -> str:
    """Return seconds as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
