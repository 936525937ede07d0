"""The one schema of everything measured: a quality record is one sample of one cell, a speed record one timed cell."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.evals.budgets import Budget
from longdecode.evals.tasks.registry import get_task

Status = Literal["ok", "oom", "unsupported", "timeout", "failed_gate", "data_unavailable"]
BenchName = Literal["ceiling", "kernel", "decode", "offload", "own_choices"]
TimedStage = Literal[
    "op", "step", "no_selection", "no_attention", "projections", "correction", "prefill", "setup", "forward_rows",
    "speculative_step", "draft", "verify", "keep", "resident", "refetch", "eager", "transfer",
]  # fmt: skip
WeightsKind = Literal["none", "random", "checkpoint"]
Key = tuple[str | int | None, ...]
_Index = Annotated[int, Field(strict=True, ge=-1)]
_Size = Annotated[int, Field(strict=True, ge=1)]
_Number = Annotated[float, Field(strict=True)]
_ROUNDING = 1e-9
"""A share that is a mean of shares may exceed 1 by this."""

KEPT_OUTPUTS = 32
"""Samples of a cell whose outputs are stored."""
OP_SIZES = {"kernel": "full_heads kv_lengths", "offload": "hit_rate", "decode": "rows", "own_choices": "prompts"}
"""By bench, the parameters of a record that are sizes: they tell timings of one op or variant apart."""
OLDER_NAMES = {"label": "variant", "subject": "method"}
"""Fields of the schema version before the latest that have another name today."""


def op_sizes(bench: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes beside context, batch and budget: of some kernels, rows of a pass, hit rate of selections."""
    return {name: params[name] for name in OP_SIZES.get(bench, "").split() if params.get(name) is not None}


def op_sizes_text(bench: str, params: Mapping[str, Any]) -> str | None:
    """Write ``op_sizes`` as tables have it, ``name=value``; ``None`` where there are none."""
    return " ".join(f"{name}={value}" for name, value in op_sizes(bench, params).items()) or None


class Stored(BaseModel):
    """A closed, frozen model whose numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Fingerprint(NamedTuple):
    """Hashes of what a cell depends on; a record whose own differs is run again.

    ``settings`` covers the cell's settings, device and dtype; ``code`` the engine, the kernels, the method and the
    suite or bench; ``model`` the files that change a prompt or an answer; ``data`` the data sets and the files that
    parameters name.
    """

    settings: str
    code: str
    model: str
    data: str


class Provenance(Stored):
    """Revision, hashes, device and versions behind a number."""

    revision: str
    dirty: bool
    settings_hash: str | None = None
    code_hash: str
    model_hash: str
    data_hash: str
    device: str
    dtype: str
    versions: dict[str, str]
    sm_clock_mhz: int | None = None
    started_at: str

    @property
    def fingerprint(self) -> Fingerprint | None:
        """Hashes of what the number depends on; ``None`` of a number that was measured before there were any."""
        if self.settings_hash is None:
            return None
        return Fingerprint(self.settings_hash, self.code_hash, self.model_hash, self.data_hash)

    @property
    def short_revision(self) -> str:
        """The revision as tables have it: its first 12 digits, and that the tree was dirty."""
        return self.revision[:12] + ("+dirty" if self.dirty else "")


class BaseRecord(Stored):
    """Fields common to all records.

    ``measures`` is open: a suite or bench adds a number under a name of its own. A record carries a result exactly
    where its status is ``ok``.
    """

    schema_version: int
    profile: str
    model: str
    method: str  # the algorithm's registered name; of a kernel, the op; of a ceiling, what is read
    variant: str  # the method with its parameters, the row of tables; of a kernel, the implementation
    params: dict[str, Any]
    context: int
    batch: int
    budget: str  # as the config wrote it: "0.1", "1024", or "full"
    budget_tokens: int | None
    seed: int
    status: Status
    reason: str | None = None
    measures: dict[str, float] = {}
    provenance: Provenance

    @property
    def key(self) -> Key:
        """The cell of this record among those of its job."""
        raise NotImplementedError

    @property
    def index(self) -> int:
        """Number of the sample within its cell; -1 for a record that closes the cell with a status."""
        return 0 if self.has_result else -1

    @property
    def has_result(self) -> bool:
        """True where the record holds what its cell was run for."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _result_iff_ok(self) -> Self:
        if self.has_result != (self.status == "ok"):
            raise ValueError(f"status {self.status!r} {'with' if self.has_result else 'without'} a result")
        return self


@dataclass(frozen=True, slots=True)
class QualityCell:
    """One variant on one task at one context and budget, for the model and suite of a job."""

    variant: str
    task: str
    context: int
    budget: Budget

    @property
    def key(self) -> Key:
        """The ``key`` of this cell's records."""
        return self.variant, self.task, self.context, self.budget.text


class Record(BaseRecord):
    """One scored sample; a cell that could not run is one record with ``sample_index`` -1, a status and a reason.

    A sample whose completion could not be scored in time keeps its number and output, with status ``timeout``. Tokens
    and text of an output are kept for the first ``KEPT_OUTPUTS`` samples of a cell, its hash for all.

    ``question`` is the protocol (``evals.tasks.base``); records of earlier versions, and of tasks without a question,
    have none.

    ``measures`` of a sample: ``kv_tokens_read`` (per KV head and step, mean over all layers), ``kv_tokens_read_sparse``
    (the same over the KV heads that the budget governs), ``kv_bytes_per_step`` and ``metadata_bytes_per_step`` (traffic
    model), ``decode_steps``, ``prefill_ms``, ``decode_ms``; ``truncated`` (0 or 1: cut off before its end-of-sequence
    token) where the task waits for one; ``heads_over_half`` and ``heads_wanted`` where head roles were learned.
    """

    schema_version: int = 4
    context: _Size
    batch: _Size
    budget: Annotated[str, Field(pattern="^(full|[0-9]+|(bytes=)?[0-9.]+(e-[0-9]+)?)$")]
    suite: str
    task: str
    task_version: int
    question: Literal["decoded", "prompt"] | None = None
    metric: str
    unit: str
    higher_is_better: bool
    data_source: Literal["generated", "real"]
    sample_index: _Index
    prompt_sha256: str | None = None
    output_sha256: str | None = None
    output_ids: list[int] | None = None
    output_text: str | None = None
    score: _Number | None = None
    parts: list[_Number] | None = None
    finish_reason: str | None = None

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        if self.score is not None and self.unit == "fraction" and not -_ROUNDING <= self.score <= 1 + _ROUNDING:
            raise ValueError(f"score {self.score} is no fraction")
        if self.sample_index >= 0 and self.status not in ("ok", "timeout"):
            raise ValueError(f"sample {self.sample_index} with status {self.status!r}, which closes a cell")
        return self

    @property
    def key(self) -> Key:
        """Variant, task, context and budget."""
        return self.variant, self.task, self.context, self.budget

    @property
    def index(self) -> int:
        """``sample_index``."""
        return self.sample_index

    @property
    def problem(self) -> tuple[Any, ...]:
        """Identify the sample's problem within its task and context, so that intervals resample its draws together.

        Samples of a task that draws a problem several times, or cuts several windows of one text, share the number that
        ``samples_per_problem`` gives them. Elsewhere those with one prompt do, or each is its own where none was kept.
        """
        if (draws := samples_per_problem(self.suite, self.task)) > 1:
            return self.task, self.sample_index // draws
        return self.task, self.prompt_sha256 or (self.seed, self.sample_index)

    @property
    def has_result(self) -> bool:
        """True for a scored sample."""
        return self.score is not None and self.sample_index >= 0


class SpeedSample(Stored):
    """One time, beside the reference's time in the same round.

    A round runs A B B A: the reference, the variant twice, the reference again; ``us`` and ``reference_us`` are the
    means of their two runs. ``disturbed`` names what was wrong meanwhile (clocks dropped, another process).
    """

    us: float
    reference_us: float | None = None
    disturbed: str | None = None


class SpeedRecord(BaseRecord):
    """One variant timed at one size; one that could not run has a status, a reason and no samples."""

    schema_version: int = 3
    bench: BenchName
    weights: WeightsKind
    stage: TimedStage
    samples: list[SpeedSample] = []
    reference: str | None = None  # variant of what the pairs were taken with
    bytes_min: int | None = None  # bytes that must be read or written once
    expected_bytes: int | None = None  # computed: weights and KV cache that must be resident
    peak_bytes: int | None = None  # most that the allocator held since the generation began
    launch: dict[str, Any] = {}  # launch settings chosen for this shape
    sm_clock_mhz: tuple[int, int] | None = None  # lowest and highest seen while timing
    temperature_c: int | None = None
    throttle: str | None = None  # the driver's reasons for lower clocks, in words

    @property
    def key(self) -> Key:
        """Bench, method, variant, stage, context, batch, budget, and the op's own sizes."""
        return speed_key(self, self.budget)

    @property
    def clean(self) -> list[SpeedSample]:
        """Samples that nothing disturbed."""
        return [sample for sample in self.samples if sample.disturbed is None]

    @property
    def has_result(self) -> bool:
        """True where there is a time."""
        return bool(self.samples)


def speed_key(cell: Any, budget: str) -> Key:
    """Return the ``key`` of a timed cell or of its record."""
    sizes = op_sizes(cell.bench, cell.params).values()
    return cell.bench, cell.method, cell.variant, cell.stage, cell.context, cell.batch, budget, *sizes


@functools.cache
def samples_per_problem(suite: str, task: str) -> int:
    """Return the samples of a problem; 1 for a task that its suite does not have any more."""
    try:
        return get_task(task, suite=suite).samples_per_problem
    except ConfigError:
        return 1


def hash_output(ids: Sequence[int] | None) -> str | None:
    """Hash the tokens of an output; ``None`` where they were not kept."""
    return None if ids is None else hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


R = TypeVar("R", bound=BaseRecord)


class RecordSchemaError(LongDecodeError):
    """A stored record's schema version is another one, or its fields do not fit it."""


def load_record(fields: Mapping[str, Any], source: str, kind: type[R]) -> R:
    """Check one stored record.

    Args:
        fields: the record as stored, ``schema_version`` included.
        source: file and place, for the error message.
        kind: ``Record`` or ``SpeedRecord``.

    Raises:
        RecordSchemaError: the version is not that of the schema, or the fields are not.
    """
    version, latest = fields.get("schema_version"), kind.model_fields["schema_version"].default
    if version == latest - 1 and "label" in fields:
        fields = {OLDER_NAMES.get(name, name): value for name, value in fields.items()} | {"schema_version": latest}
    elif version != latest:
        raise RecordSchemaError(f"{source}: {kind.__name__} of schema_version {version}; this code reads {latest}")
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "record"
        raise RecordSchemaError(f"{source}: field {where}: {first['msg']}") from error
