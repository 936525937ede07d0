"""The tuning protocol of a run: the ``tuning`` key of a configuration, and the records that tuning leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from longdecode.engine.errors import ConfigError
from longdecode.evals import config_values as typed
from longdecode.evals.tasks.registry import suite_tasks

TUNING_SUITE = "tuning"
TuningTask = Annotated[typed.Text, typed.known("tuning task", lambda: suite_tasks(TUNING_SUITE))]


@dataclass(frozen=True, slots=True)
class TuningSpec:
    """Effort and prompts of tuning, alike for every method, and by model the record whose values the run takes.

    ``settings`` is the most settings that are tried for a method: its knobs are swept one after the other. A task that
    Full solves less of than ``full_min`` chooses nothing.
    """

    records: Annotated[
        Mapping[typed.Name, Annotated[typed.Text, Field(description="The model's tuning record.")]], typed.OrNull()
    ] = field(default_factory=dict)
    settings: ClassVar[int] = 12
    seed: ClassVar[int] = 1_000_003
    full_min: ClassVar[float] = 0.3

    samples: typed.Count = 16
    contexts: typed.Sizes = (1536,)
    tasks: Annotated[tuple[TuningTask, ...], typed.Distinct, typed.OrNull(tuple)] = ()
    budget: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.1


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Trial(_Stored):
    """One setting of a method: the knobs' values, the mean score over the tasks that count, and each task's."""

    setting: dict[str, Any]
    value: float | None
    by_task: dict[str, float]
    status: str = "ok"


class Tuned(_Stored):
    """A method's curve and choice: ``fixed`` are the parameters that were not tuned, ``seconds`` the time it took."""

    fixed: dict[str, Any]
    chosen: dict[str, Any]
    trials: tuple[Trial, ...]
    seconds: float


class TuningRecord(_Stored):
    """All that was tuned on one model, with what it was tuned on; ``prompts`` are the SHA-256 of every prompt."""

    format: int = Field(default=1, ge=1, le=1)
    model: str
    model_hash: str
    revision: str
    device: str
    seed: int
    budget: float
    contexts: tuple[int, ...]
    samples: int
    settings: int
    full: dict[str, float]
    left_out: tuple[str, ...]
    methods: dict[str, Tuned]
    prompts: tuple[str, ...]

    @model_validator(mode="after")
    def _is_earned(self) -> TuningRecord:
        """Refuse a choice that no trial made, or that took more trials than every method was allowed."""
        for name, tuned in self.methods.items():
            scored = [(trial.value, trial.setting) for trial in tuned.trials if trial.value is not None]
            best = [setting for value, setting in scored if value == max(value for value, _ in scored)]
            if tuned.chosen not in best:
                raise ValueError(f"methods.{name}.chosen: {tuned.chosen} is no best trial")
            if len(tuned.trials) > self.settings:
                raise ValueError(f"methods.{name}.trials: {len(tuned.trials)}, over settings = {self.settings}")
        return self


def read_tuning(path: Path | str) -> TuningRecord:
    """Read and check a tuning record.

    Raises:
        ConfigError: it is missing, is not JSON, or does not fit the schema.
    """
    path = Path(path)
    try:
        return TuningRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such tuning record; `snakemake tune` with this configuration makes it") from None
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{path}: {faults}") from error


def write_tuning(path: Path, record: TuningRecord) -> None:
    """Write a tuning record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
