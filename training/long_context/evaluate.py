"""Check what the lengthened model can do with Full attention: ``python -m longdecode.training.long_context.evaluate --model DIR``.

Loss by position on unseen books, passkeys by depth, RULER's needles, the project's look-ups in words; each beside its
target, with samples of its own seed. It says whether the instrument is good, not how any method compares.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from longdecode.engine.errors import UnsupportedCellError
from longdecode.evals.tasks.base import Sample, Task
from longdecode.evals.tasks.mini_longgen.suite import MiniLonggen
from longdecode.evals.tasks.mini_recall.suite import MiniRecall
from longdecode.evals.tasks.passkey.suite import DEPTHS, Passkey
from longdecode.evals.tasks.ruler.suite import Ruler
from longdecode.evals.tokenizing import TextTokenizer, eos_ids, load_tokenizer
from longdecode.training.long_context.books import load_ids

SEED = 7_011
"""No suite and no training uses it."""
BATCH_TOKENS = 1 << 19
LOSS_TOKENS = 100_000
EDGES = (0, 1024, 4096, 8192, 16384, 32768, 65536, LOSS_TOKENS)
_K = 1024


@dataclass(frozen=True, slots=True)
class Check:
    """One task at one context: how many samples, and the mean score wanted."""

    task: str
    context: int
    samples: int
    target: float | None


CHECKS = (
    *(Check(f"passkey_depth_{depth}", context * _K, 20, 0.95) for context in (8, 32, 64) for depth in DEPTHS),
    *(Check("ruler_niah_single_1", context * _K, 40, 0.95) for context in (16, 32, 64)),
    Check("ruler_niah_multikey_2", 16 * _K, 60, 0.60),
    Check("ruler_niah_multikey_2", 32 * _K, 60, 0.60),
    Check("ruler_niah_multikey_2", 64 * _K, 40, None),
    Check("mini_recall_single", 32 * _K, 40, 0.95),
    Check("mini_recall_multikey", 32 * _K, 40, 0.95),
    Check("mini_recall_two_hop", 16 * _K, 40, 0.80),
    Check("mini_longgen_45", 16 * _K, 20, 0.80),
    Check("mini_recall_multikey", 64 * _K, 20, None),
)


def task_of(name: str) -> Task:
    """Return the task of one of the checks."""
    if name.startswith("passkey_depth_"):
        return Passkey(int(name.rpartition("_")[2]))
    if name.startswith("ruler_"):
        return Ruler(name.removeprefix("ruler_"), None)
    if name.startswith("mini_longgen_"):
        return MiniLonggen(int(name.rpartition("_")[2]))
    variants: dict[str, Any] = {f"mini_recall_{variant}": variant for variant in ("single", "multikey", "two_hop")}
    return MiniRecall(variants[name])


Prepared = tuple[Sample, tuple[int, ...], tuple[int, ...]]
"""A sample with the token ids of its prompt and of its forced text."""


def prepared(check: Check, folder: Path) -> list[Prepared]:
    """Return a check's samples with the token ids of prompt and forced text."""
    tokenizer = load_tokenizer(folder)
    samples = task_of(check.task).samples(check.context, check.samples, SEED, tokenizer)
    return [(s, tokenizer.prompt_ids(s.prompt), tokenizer.encode(s.forced)) for s in samples]


def run_checks(checks: Sequence[Check], folder: Path, device: str, workers: int) -> Iterator[dict[str, Any]]:
    """Run the checks on the engine, the smallest context first; samples are made by other processes meanwhile."""
    from longdecode.training.long_context.running import full_generator

    ordered = sorted(checks, key=lambda check: check.context)
    tokenizer, ends = load_tokenizer(folder), eos_ids(folder)
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        coming = [pool.submit(prepared, check, folder) for check in ordered]
        generator = full_generator(folder, device, dtype)
        for check, future in zip(ordered, coming, strict=True):
            rows, started = future.result(), time.monotonic()
            scores = list(_scores(check, rows, generator, tokenizer, ends))
            mean = sum(scores) / len(scores)
            met = None if check.target is None else mean >= check.target
            seconds = time.monotonic() - started
            print(
                f"{check.task} {check.context}: {mean:.3f}, target {check.target}, n {len(scores)}, {seconds:.0f} s",
                flush=True,
            )
            yield asdict(check) | {"mean": round(mean, 4), "met": met, "scores": scores}


def _scores(
    check: Check, rows: Sequence[Prepared], generator: Any, tokenizer: TextTokenizer, ends: frozenset[int]
) -> Iterator[float]:
    """Answer and mark a check's samples, as many at a time as ``BATCH_TOKENS`` holds; print the first answer."""
    from longdecode.training.long_context.running import Request, answer

    task = task_of(check.task)
    stops = (ends if task.stop_at_eos else frozenset()) | frozenset(
        tokenizer.encode("\n") if rows[0][0].stop == "\n" else ()
    )
    size = max(1, BATCH_TOKENS // check.context)
    for first in range(0, len(rows), size):
        batch = rows[first : first + size]
        requests = [Request(prompt, sample.max_new_tokens, forced, stops) for sample, prompt, forced in batch]
        for number, ((sample, _, _), done) in enumerate(zip(batch, answer(generator, requests), strict=True)):
            text = tokenizer.decode(done.output_ids)
            if first + number == 0:
                print(f"  expected {sample.meta!r:.80}, got {text!r:.120}", flush=True)
            yield task.score(sample, text, ()).value


@torch.no_grad()
def loss_by_position(folder: Path, books: Path, device: str, tokens: int) -> dict[str, Any]:
    """Return the mean loss of unseen books by position, over the books that are as long; transformers runs them."""
    from transformers import AutoModelForCausalLM

    from longdecode.training.long_context.train import token_losses

    long_enough = {name: ids for name, ids in load_ids(books, "unseen").items() if len(ids) > tokens}
    if not long_enough:
        raise UnsupportedCellError(f"{books}: no unseen book has {tokens} tokens")
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device).eval()
    rows = []
    for ids in long_enough.values():
        start = min(2000, len(ids) - tokens - 1)
        rows.append(token_losses(model, torch.from_numpy(ids[start : start + tokens + 1]).to(device), 4096).cpu())
    losses = torch.stack(rows)
    bins = {
        f"{low}-{min(high, tokens)}": round(losses[:, low:high].mean().item(), 4)
        for low, high in pairwise(EDGES)
        if low < tokens
    }
    print(f"loss by position on {', '.join(long_enough)}: {bins}", flush=True)
    return {"books": list(long_enough), "bins": bins}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; write all results to one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the lengthened model")
    parser.add_argument(
        "--books", type=Path, default=None, help="npz of longdecode.training.long_context.books; none: no losses"
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--shrink", type=int, default=1, help="divide contexts and samples, for a trial on a CPU")
    parser.add_argument("--only", default="", help="run the checks whose name holds this")
    parser.add_argument("--contexts", type=int, nargs="+", help="run the checks at these contexts (default: all)")
    options = parser.parse_args(arguments)
    checks = [
        Check(c.task, c.context // options.shrink, max(1, c.samples // options.shrink), c.target)
        for c in CHECKS
        if options.only in c.task and (options.contexts is None or c.context in options.contexts)
    ]
    found: dict[str, Any] = {"model": str(options.model), "seed": SEED}
    if options.books is not None:
        tokens = LOSS_TOKENS // options.shrink
        found["loss"] = loss_by_position(options.model, options.books, options.device, tokens)
        if options.device.startswith("cuda"):
            torch.cuda.empty_cache()
    found["checks"] = []
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for result in run_checks(checks, options.model, options.device, options.workers):
        found["checks"].append(result)
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    missed = [f"{row['task']} {row['context']}" for row in found["checks"] if row["met"] is False]
    print(f"missed: {', '.join(missed) or 'none'}", file=sys.stderr)


if __name__ == "__main__":
    main()
