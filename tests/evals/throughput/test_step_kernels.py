"""A kernel's part of a step: what it adds to the latest end so far."""

from __future__ import annotations

import pytest
import torch

from longdecode.evals.throughput.step_kernels import Span, main, parts_of


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
