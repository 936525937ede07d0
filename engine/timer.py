"""Wall time of device work in milliseconds."""

from __future__ import annotations

import time
from types import TracebackType

import torch


class Timer:
    """Time a ``with`` block; on CUDA by events on the current stream, waiting for the device once, at the end.

    ``ms`` holds the result after the block and is NaN before.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.ms = float("nan")

    def __enter__(self) -> Timer:
        if self.device.type == "cuda":
            self._start = torch.cuda.Event(enable_timing=True)
            self._start.record(torch.cuda.current_stream(self.device))
        else:
            self._start_s = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        if self.device.type == "cuda":
            stop = torch.cuda.Event(enable_timing=True)
            stop.record(torch.cuda.current_stream(self.device))
            stop.synchronize()
            self.ms = self._start.elapsed_time(stop)
        else:
            self.ms = (time.perf_counter() - self._start_s) * 1e3
