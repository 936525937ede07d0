"""The one schema of everything that is measured: a record is one sample of one cell."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 2

Status = Literal["ok", "oom", "unsupported", "timeout", "failed_gate", "data_unavailable"]


class Provenance(BaseModel):
    """Where a number comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    revision: str
    dirty: bool
    code_hash: str
    model_hash: str
    data_hash: str
    device: str
    dtype: str
    versions: dict[str, str]
    sm_clock_mhz: int | None = None
    started_at: str


class Record(BaseModel):
    """One sample of one cell; one that could not run is one record with ``sample_index`` -1, a status and a reason.

    A sample whose completion could not be marked in time keeps its number and all that was generated, with status
    ``timeout``, a reason and no score.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = SCHEMA_VERSION
    profile: str
    model: str
    method: str
    label: str  # method name plus variant, as tables print it
    params: dict[str, Any]
    suite: str
    task: str
    task_version: int
    metric: str
    unit: str
    higher_is_better: bool
    data_source: Literal["generated", "real"]
    budget: str  # as the config wrote it: "0.1", "1024", or "full"
    budget_tokens: int | None
    context: int
    batch: int
    seed: int
    sample_index: int
    status: Status
    reason: str | None = None
    prompt_sha256: str | None = None
    output_ids: list[int] | None = None
    output_text: str | None = None
    score: float | None = None
    parts: list[float] | None = None
    read_tokens_mean: float | None = None  # tokens read per KV head and step, mean over all layers
    read_tokens_sparse: float | None = None  # the same over the layers that the budget governs
    kv_bytes_per_step: float | None = None  # traffic model: keys and values
    metadata_bytes_per_step: float | None = None  # traffic model: what the selector reads
    finish_reason: str | None = None
    truncated: bool | None = None  # cut off before its end-of-sequence token; None where a task does not wait for one
    prefill_ms: float | None = None
    decode_ms: float | None = None
    decode_steps: int | None = None
    provenance: Provenance
