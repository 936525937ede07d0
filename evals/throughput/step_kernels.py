"""``python -m longdecode.evals.throughput.step_kernels``: list the kernels of decode steps and the time each adds.

A look inside a step, not a measurement: nothing is compared, gated or recorded. Needs a CUDA device and no lease.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import resolve_device, resolve_dtype
from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.evals.run_config import load_run_config
from longdecode.evals.throughput.decode_cells import Labels
from longdecode.evals.throughput.models import load_model
from longdecode.evals.throughput.step_block import fill_cache, step_block

REPLAYS = 3
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True)
class Span:
    """One launch on the device, microseconds from any start; a kernel's name is followed by its grid."""

    kernel: str
    start_us: float
    end_us: float


@dataclass(slots=True)
class Part:
    """A kernel's launches and the time they add, and their mean time from start to end."""

    kernel: str
    launches: int = 0
    added_us: float = 0.0
    own_us: float = 0.0


def parts_of(spans: Iterable[Span]) -> list[Part]:
    """Return each kernel's part of the time, the largest first.

    A launch adds the time by which it moves the latest end so far, the gap before it included: what starts early and
    waits (programmatic dependent launch) adds what it still takes once the others have ended. Sums give the span.
    """
    parts: dict[str, Part] = {}
    front: float | None = None
    for span in sorted(spans, key=lambda span: (span.start_us, span.end_us)):
        part = parts.setdefault(span.kernel, Part(span.kernel))
        part.launches += 1
        part.own_us += span.end_us - span.start_us
        front = span.start_us if front is None else front
        part.added_us += max(0.0, span.end_us - front)
        front = max(front, span.end_us)
    return sorted(parts.values(), key=lambda part: -part.added_us)


def spans_of(trace: Mapping[str, Any]) -> list[Span]:
    """Return what ran on the device according to a trace in Chrome's format, as ``torch.profiler`` exports it."""
    spans = []
    for event in trace["traceEvents"]:
        if event.get("cat") in _ON_DEVICE:
            grid = "x".join(str(size) for size in event.get("args", {}).get("grid", ()))
            name = event["name"].removeprefix("void ")[:60]
            spans.append(Span(f"{name} {grid}".rstrip(), event["ts"], event["ts"] + event["dur"]))
    return spans


def profiled(decoder: Decoder, method: AttentionMethod, label: str, context: int, batch: int) -> list[list[Span]]:
    """Return the launches of a few replays of a step at ``context`` tokens, a list a replay.

    Raises:
        ConfigError: the profiler sees no kernel.
    """
    shape = decoder.cache_shape(batch, context, 1)
    cache = method.make_cache(shape) or decoder.new_cache(batch, context)
    fill_cache(cache, context - 1, seed=0)
    block = step_block(decoder, cache, method, label, context, 1)
    replays = []
    for _ in range(REPLAYS + 1):
        block.reset()
        torch.cuda.synchronize(decoder.device)
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            block.run()
            torch.cuda.synchronize(decoder.device)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            seen.export_chrome_trace(str(file))
            replays.append(spans_of(json.loads(file.read_text(encoding="utf-8"))))
    if not replays[-1]:
        raise ConfigError("the profiler saw no kernel: are device counters open to this user?")
    return replays[1:]


def table(label: str, context: int, batch: int, replays: Sequence[Sequence[Span]], rows: int) -> str:
    """Return the replay of the shortest span as text: kernels, launches, microseconds added a step and each."""
    replay = min(replays, key=lambda spans: max(s.end_us for s in spans) - min(s.start_us for s in spans))
    parts = parts_of(replay)
    total = sum(part.added_us for part in parts)
    lines = [f"{label} context={context} batch={batch}: {total:,.0f} us, {len(replay)} launches"]
    lines.append(f"{'added us':>10}{'launches':>10}{'us each':>9}{'start-end':>11}  kernel and grid")
    for part in parts[:rows]:
        each, own = part.added_us / part.launches, part.own_us / part.launches
        lines.append(f"{part.added_us:10.1f}{part.launches:10d}{each:9.2f}{own:11.2f}  {part.kernel}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each label, context and batch; return 1 where a step cannot run."""
    parser = argparse.ArgumentParser(prog="python -m longdecode.evals.throughput.step_kernels", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("config/h200.yaml"), help="where labels and models stand")
    parser.add_argument("--model", default="llama3-8b", help="a shape or a key of the configuration's models")
    parser.add_argument("--labels", nargs="+", default=["full"])
    parser.add_argument("--contexts", nargs="+", type=int, default=[32_768])
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    parser.add_argument("--budget", type=int, default=4096, help="tokens, of labels that take a budget")
    parser.add_argument("--rows", type=int, default=24, help="kernels listed")
    asked = parser.parse_args(arguments)
    try:
        run = load_run_config(asked.config)
        device = resolve_device("auto")
        if device.type != "cuda":
            raise ConfigError("step_kernels lists the kernels of a CUDA device; torch sees none")
        model = load_model(run, asked.model, device, resolve_dtype(run.dtype, device), max(asked.contexts))
        labels = Labels(run, asked.model)
        for context, batch, label in ((c, b, n) for c in asked.contexts for b in asked.batches for n in asked.labels):
            method = labels.build(label, asked.budget if labels.takes_budget(label) else None, model.config)
            replays = profiled(model.decoder, method, label, context, batch)
            print(table(label, context, batch, replays, asked.rows), flush=True)
            torch.cuda.empty_cache()
    except LongDecodeError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
