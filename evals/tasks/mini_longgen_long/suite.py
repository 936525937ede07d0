"""Longer answers of ``mini_longgen``; a suite apart, so that its records keep their code hash."""

from __future__ import annotations

from longdecode.evals.tasks.base import Suite
from longdecode.evals.tasks.mini_longgen.suite import MiniLonggen


class MiniLonggenLong(MiniLonggen):
    """``mini_longgen`` with nearly every record of the episode asked for."""

    suite = "mini_longgen_long"


SUITE = Suite({"mini_longgen_90": lambda data: MiniLonggenLong(90)}, question="prompt")
