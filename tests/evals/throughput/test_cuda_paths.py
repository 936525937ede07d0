"""CUDA paths of the timing core, with torch.cuda replaced by stand-ins that keep its contract."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from longdecode.evals.throughput import timing

CUDA = torch.device("cuda", 0)


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A log of what the timing core asks of torch.cuda."""
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool):
            assert enable_timing

        def record(self, stream: object) -> None:
            log.append("event")

        def synchronize(self) -> None:
            log.append("wait")

        def elapsed_time(self, other: Event) -> float:
            return 1.5

    class Context:
        def __init__(self, *args: object):
            pass

        def __enter__(self) -> Context:
            return self

        def __exit__(self, *args: object) -> None: ...

        def wait_stream(self, other: object) -> None: ...

    monkeypatch.setattr(torch.cuda, "Event", Event)
    for name in ("Stream", "stream", "device", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Context)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append("spin"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: log.append("replay")))

    class Graph(Context):
        def __enter__(self) -> Context:
            log.append("capture")
            return self

        def __exit__(self, *args: object) -> None:
            log.append("captured")

    monkeypatch.setattr(torch.cuda, "graph", Graph)
    return log


def test_the_device_is_looked_at_while_it_works(fake_cuda: list[str]) -> None:
    clock = timing.clock_for(CUDA)
    assert clock(lambda: fake_cuda.append("work"), lambda: fake_cuda.append("look")) == 1500.0
    assert fake_cuda == ["synchronize", "spin", "event", "work", "event", "look", "wait"]


def test_work_is_warmed_up_and_captured_once(fake_cuda: list[str]) -> None:
    replay = timing.captured(lambda: fake_cuda.append("work"), CUDA)
    assert fake_cuda == ["work", "work", "synchronize", "capture", "work", "captured"]
    replay()
    assert fake_cuda[-1] == "replay"
