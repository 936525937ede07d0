"""Speed records and monitors made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from longdecode.engine.device import Reading
from longdecode.evals.records import Provenance, SpeedRecord, SpeedSample

PROVENANCE = Provenance(
    revision="r", dirty=False, code_hash="c", model_hash="m", data_hash="d", device="gpu", dtype="bfloat16",
    versions={"torch": "2"}, started_at="2026-01-01T00:00:00+00:00",
)  # fmt: skip


@dataclass
class FakeMonitor:
    """A device whose clocks, processes and load follow a script; the last entry of each repeats."""

    clocks: list[int] = field(default_factory=lambda: [1980])
    memory_clocks: list[int] = field(default_factory=lambda: [3201])
    reasons: list[frozenset[str]] = field(default_factory=lambda: [frozenset()])
    processes: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])
    load: list[int] = field(default_factory=lambda: [0])

    def read(self) -> Reading:
        return Reading(_next(self.clocks), _next(self.memory_clocks), 40, _next(self.reasons))

    def others(self) -> frozenset[int]:
        return _next(self.processes)

    def busy_percent(self) -> int:
        return _next(self.load)


def _next(script: list[Any]) -> Any:
    return script.pop(0) if len(script) > 1 else script[0]


@pytest.fixture
def fake_monitor() -> type[FakeMonitor]:
    """The class of scripted monitors."""
    return FakeMonitor


@pytest.fixture
def speed_record() -> Callable[..., SpeedRecord]:
    """Maker of whole records of a decode step; ``times`` and ``references`` become samples."""
    fields: dict[str, Any] = {
        "profile": "p", "bench": "decode", "model": "m", "weights": "random", "method": "quest", "variant": "quest",
        "params": {}, "stage": "step", "context": 1024, "batch": 1, "budget": "64", "budget_tokens": 64, "seed": 0,
        "status": "ok", "provenance": PROVENANCE,
    }  # fmt: skip

    def make(
        times: Sequence[float] = (), references: Sequence[float] | None = None, disturbed: Sequence[int] = (),
        **other: Any,
    ) -> SpeedRecord:  # fmt: skip
        beside = references or [None] * len(times)
        marks = ["clock" if index in disturbed else None for index in range(len(times))]
        rows = zip(times, beside, marks, strict=True)
        samples = [SpeedSample(us=us, reference_us=reference, disturbed=mark) for us, reference, mark in rows]
        return SpeedRecord(**(fields | {"samples": samples, "reference": "full" if references else None} | other))

    return make
