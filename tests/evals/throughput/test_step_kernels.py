"""A kernel's part of a step: what it adds to the latest end so far."""

from __future__ import annotations

import pytest
import torch

from longdecode.evals.throughput.step_kernels import Span, main, parts_of, spans_of


def test_parts_add_up_to_the_span_and_early_starts_add_no_waiting() -> None:
    spans = [
        Span("norm", 10.0, 12.0),
        Span("linear", 11.0, 20.0),  # starts early, waits for norm
        Span("side", 13.0, 15.0),  # hidden beside it
        Span("norm", 22.0, 23.0),  # a gap of two before it
    ]
    parts = {part.kernel: part for part in parts_of(reversed(spans))}
    assert {name: (part.launches, part.added_us) for name, part in parts.items()} == {
        "linear": (1, 8.0), "norm": (2, 5.0), "side": (1, 0.0),
    }  # fmt: skip
    assert parts["linear"].own_us == 9.0 and next(iter(parts)) == "linear"


def test_one_kernel_at_two_grids_is_two_parts_and_the_host_is_none() -> None:
    events = [
        {"cat": "cpu_op", "name": "linear", "ts": 0, "dur": 9},
        {"cat": "kernel", "name": "linear", "ts": 5.5, "dur": 2.0, "args": {"grid": [192, 1, 1]}},
        {"cat": "kernel", "name": "linear", "ts": 8.0, "dur": 1.0, "args": {"grid": [128, 1, 1]}},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 9.0, "dur": 0.5, "args": {"bytes": 8}},
        {"ph": "M", "name": "process_name"},
    ]
    assert spans_of({"traceEvents": events}) == [
        Span("linear 192x1x1", 5.5, 7.5), Span("linear 128x1x1", 8.0, 9.0), Span("Memcpy DtoD", 9.0, 9.5),
    ]  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to look into")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "config/retro.yaml"]) == 1
    assert "torch sees none" in capsys.readouterr().err


@pytest.mark.gpu
def test_a_step_s_kernels_are_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "config/retro.yaml", "--model", "miniature", "--labels", "retro", "--contexts", "2048",
                 "--budget", "256"]) == 0  # fmt: skip
    said = capsys.readouterr().out
    assert "attend_window_kernel" in said and "append_window_kernel" in said
