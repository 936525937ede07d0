"""The schema of everything that is timed: a speed record is one thing timed at one size, all its samples kept."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from longdecode.evals.records import Provenance, Status

SCHEMA_VERSION = 1

Bench = Literal["ceiling", "kernel", "decode"]
Stage = Literal[
    "op", "step", "no_selection", "no_attention", "projections", "correction", "prefill", "setup", "forward_rows",
    "speculative_step", "draft", "verify", "keep",
]  # fmt: skip


class SpeedSample(BaseModel):
    """One time, beside the reference's time in the same round.

    A round runs A B B A: the reference, the subject twice, the reference again; ``us`` and ``reference_us`` are the
    means of their two runs. ``disturbed`` says what was wrong while it was taken (clocks dropped, another process).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    us: float
    reference_us: float | None = None
    disturbed: str | None = None


class SpeedRecord(BaseModel):
    """One subject at one size; one that could not run has a status, a reason and no samples."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = SCHEMA_VERSION
    profile: str
    bench: Bench
    model: str  # a shape (llama3-8b) or a checkpoint's key
    weights: Literal["none", "random", "checkpoint"]
    subject: str  # ceiling: what is read; kernel: the op; decode: the method's registered name
    label: str  # kernel: the implementation (longdecode, torch_flash, flashinfer, ...); decode: the method's label
    params: dict[str, Any]
    stage: Stage
    context: int
    batch: int
    budget: str  # as the config wrote it, or "full"
    budget_tokens: int | None
    seed: int
    status: Status
    reason: str | None = None
    samples: list[SpeedSample] = []
    reference: str | None = None  # label of what the pairs were taken with
    bytes_min: int | None = None  # bytes that must be read or written once
    expected_bytes: int | None = None  # computed: weights and KV cache that must be resident
    peak_bytes: int | None = None  # the allocator's peak
    launch: dict[str, Any] = {}  # launch settings chosen for this shape
    sm_clock_mhz: tuple[int, int] | None = None  # lowest and highest seen while timing
    temperature_c: int | None = None
    throttle: str | None = None  # the driver's reasons for lower clocks, in words
    provenance: Provenance
