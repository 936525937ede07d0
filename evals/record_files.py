"""Names of a run's files of records: one a model, variant and suite, and a context where jobs are that small."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from longdecode.evals.run_config import RunConfig


class RecordFile(NamedTuple):
    """Identify one file of records; ``context`` is ``None`` where it holds all contexts of the suite."""

    model: str
    variant: str
    suite: str
    context: int | None = None

    def path(self, folder: Path) -> Path:
        """Return the parquet file below the folder of records."""
        part = "" if self.context is None else f".{self.context}"
        return folder / self.model / self.variant / f"{self.suite}{part}.parquet"


def record_files(run: RunConfig) -> list[RecordFile]:
    """Return every file of records that a run has."""
    return [
        RecordFile(model, variant, suite, context)
        for model in run.models
        for suite, spec in run.suites.items()
        for variant in run.methods
        if suite in run.suites_of(variant)
        for context in (spec.contexts if run.jobs != "suite" else (None,))
    ]
