"""Tell which samples are of one problem, so that intervals resample them together."""

from __future__ import annotations

import functools
from typing import Any

from longdecode.engine.errors import ConfigError
from longdecode.evals.records import Record
from longdecode.evals.tasks.registry import get_task


def problem_of(record: Record) -> tuple[Any, ...]:
    """Identify a sample's problem within its task and context.

    Samples of a task that draws a problem several times, or cuts several windows of one text, share the number that
    ``samples_per_problem`` gives them. Elsewhere those with one prompt do, or each is its own where none was kept.
    """
    if (draws := samples_per_problem(record.task)) > 1:
        return record.task, record.sample_index // draws
    return record.task, record.prompt_sha256 or (record.seed, record.sample_index)


@functools.cache
def samples_per_problem(task: str) -> int:
    """Return the samples of a problem; 1 for a task that no suite has any more."""
    try:
        return get_task(task).samples_per_problem
    except ConfigError:
        return 1
