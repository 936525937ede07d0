"""``python -m longdecode.evals.throughput.tune_launches``: time launches of the kernels for blocks of rows on a GPU.

Every candidate is first compared with the naive op at a small shape, in processes that compile side by side, and once
more at the shape that is timed. Prints a line a candidate and writes ``tune_launches.csv``; the rules in
``kernels/*/launch.py`` are then changed by hand.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from longdecode.evals.throughput.step_block import captured
from longdecode.kernels.attention_weights import attention_weights
from longdecode.kernels.attention_weights import naive as weights_naive
from longdecode.kernels.decode_attention import decode_attention
from longdecode.kernels.decode_attention import launch as dense_rule
from longdecode.kernels.decode_attention import naive as dense_naive
from longdecode.kernels.linear import gated_linear
from longdecode.kernels.linear import launch as linear_rule
from longdecode.kernels.linear import naive as linear_naive
from longdecode.kernels.multiprocessors import resident
from longdecode.kernels.rope_append import naive as append_naive
from longdecode.kernels.rope_append import rope_append
from longdecode.kernels.silu_mul import silu_mul
from longdecode.kernels.sparse_decode_attention import launch as sparse_rule
from longdecode.kernels.sparse_decode_attention import naive as sparse_naive

DTYPE, HEADS, KV_HEADS, DIM, CONTEXT = torch.bfloat16, 32, 8, 128, 65_536
GROUP, PAGE, LISTED = HEADS // KV_HEADS, 16, 4096
SMALL = 1024
PROJECTIONS = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (14_336, 4096), "down": (4096, 14_336)}
CALLS, REPLAYS, COPIES = 8, 9, 4


@dataclass(frozen=True)
class Candidate:
    """One way to run an op on ``rows`` rows; ``launch`` is the rule's choice where None, ``torch`` its torch form."""

    op: str
    rows: int
    launch: Any = None
    shape: str = ""


def candidates() -> Iterator[Candidate]:
    """List what is timed, for each op and number of rows the rule's choice first."""
    device = torch.device("cuda")
    for rows in (1, 2, 8, 41, 121):
        yield Candidate("decode_attention", rows)
        folded = GROUP * rows
        shapes = [] if rows == 1 else [(64, 64, 4, 2, 0), (64, 64, 4, 3, 0), (64, 128, 4, 2, 0)]
        if rows in (2, 8):
            shapes += [(2 * GROUP * max(2, rows // 2), tokens, 4, 3, 0) for tokens in (64, 128)]
        if rows > 8:
            shapes += [(128, 64, 8, 2, 0), (128, 64, 8, 3, 0), (128, 128, 8, 2, 0), (256, 64, 16, 2, 0)]
        if rows == 41:
            shapes += [(128, 64, 8, 2, 64), (128, 64, 8, 3, 64), (128, 128, 8, 2, 64)]
        for (tile, tokens, warps, stages, extra), waves in product(shapes, (1, 2, 3)):
            fits = waves <= resident(tile + extra, tokens, stages, DIM, DTYPE) and warps * waves <= 16
            if not fits or (waves == 3 and rows < 41) or (extra and waves > 1):
                continue
            one = dense_rule.DecodeLaunch(tile, tokens, warps, stages, 1, fused_merge=False, extra_rows=extra)
            dense = dense_rule.spread(one, KV_HEADS, folded, CONTEXT, waves, device)
            yield Candidate("decode_attention", rows, dense)
            if rows <= 8:
                yield Candidate("decode_attention", rows, replace(dense, fused_merge=True))
    for rows in (1, 2, 8, 41):
        yield Candidate("sparse_decode_attention", rows)
        tiles = [(min(64, max(16, 1 << (GROUP * rows - 1).bit_length())), tokens, 3) for tokens in (16, 32, 64)]
        for (tile, tokens, stages), waves, fused in product(tiles if rows > 1 else [], (1, 2), (True, False)):
            each = sparse_rule.SparseLaunch(tile, tokens, 4, stages, 1, fused_merge=fused)
            sparse = sparse_rule.spread(each, KV_HEADS, GROUP * rows, LISTED, CONTEXT, waves, device)
            yield Candidate("sparse_decode_attention", rows, sparse)
    for rows in (1, 41, 4096):
        yield Candidate("rope_append", rows)
    for rows, reduce in product((1, 41), ("mean", "max")):
        yield Candidate("attention_weights", rows, shape=reduce)
    for name, rows in product(PROJECTIONS, (1, 2, 4, 8, 16, 41, 64, 121)):
        yield Candidate("linear", rows, shape=name)
        yield Candidate("linear", rows, "torch", name)
        if rows > linear_rule.MAX_ROWS:
            weights = 64 if name == "gate_up" else 128
            for tile, warps in ((64, 4), (64, 8), (128, 8)):
                launch = linear_rule.Launch("dot", weights, 64, warps, 4, 1, tile)
                yield Candidate("linear", rows, launch, name)


def inputs(candidate: Candidate, size: int, seed: int) -> dict[str, Any]:
    """Make random inputs on the device; ``size`` is the capacity of the cache."""
    torch.manual_seed(seed)
    rows = candidate.rows

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=DTYPE, device="cuda")

    if candidate.op == "linear":
        n, k = PROJECTIONS[candidate.shape]
        return {"x": normal(1, rows, k), "weight": normal(2 * n if candidate.shape == "gate_up" else n, k) / k**0.5}
    x: dict[str, Any] = {"q": 2 * normal(1, HEADS, rows, DIM), "k": normal(1, KV_HEADS, size, DIM)}
    x["kv_lengths"] = torch.tensor([size - 3], device="cuda")
    mask = torch.rand(rows, rows, device="cuda") < 0.5
    x["mask"] = (mask.tril() | torch.eye(rows, device="cuda", dtype=torch.bool)).contiguous()
    if candidate.op != "attention_weights":
        x["v"] = normal(1, KV_HEADS, size, DIM)
    if candidate.op == "sparse_decode_attention":
        entries = min(LISTED, size // 2) // PAGE
        order = torch.rand(1, KV_HEADS, size // PAGE, device="cuda").argsort(-1)
        x["indices"] = order[..., :entries].sort(-1).values.contiguous()
        x["counts"] = torch.full((1, KV_HEADS), entries, device="cuda")
        if rows > 1:
            x["kv_lengths"] = x["kv_lengths"][:, None] - torch.arange(rows, device="cuda").flip(0)
            x["row_mask"] = torch.rand(1, KV_HEADS, rows, entries, device="cuda") < 0.8
    if candidate.op == "rope_append":
        fused = normal(1, rows, HEADS + 2 * KV_HEADS, DIM).split((HEADS, KV_HEADS, KV_HEADS), dim=2)
        x["block"] = tuple(part.transpose(1, 2) for part in fused)
        turns = torch.rand(1, rows, DIM // 2, device="cuda").repeat(1, 1, 2)
        x["angles"] = turns.cos(), turns.sin()
        x["slots"] = torch.arange(rows, device="cuda")[None] + max(0, size - rows - 5)
    return x


def run(candidate: Candidate, x: dict[str, Any], naive: bool = False) -> Tensor:
    """Run an op on inputs, in its naive form or as the candidate says; return what is compared."""
    from longdecode.kernels.decode_attention.gpu import decode_attention_gpu
    from longdecode.kernels.linear.gpu import gated_linear_gpu, linear_gpu
    from longdecode.kernels.sparse_decode_attention.gpu import sparse_decode_attention_gpu

    how = {} if naive else {"launch": candidate.launch}
    if candidate.op == "decode_attention":
        dense: Callable[..., Any] = dense_naive.decode_attention if naive else decode_attention_gpu
        return dense(x["q"], x["k"], x["v"], x["kv_lengths"], mask=x["mask"], **how)[0]
    if candidate.op == "sparse_decode_attention":
        sparse: Callable[..., Any] = sparse_naive.sparse_decode_attention if naive else sparse_decode_attention_gpu
        plan = {"block_size": PAGE, "kv_lengths": x["kv_lengths"], "row_mask": x.get("row_mask")}
        return sparse(x["q"], x["k"], x["v"], x["indices"], x["counts"], **plan, **how)[0]
    if candidate.op == "rope_append":
        append: Callable[..., Any] = append_naive.rope_append if naive else rope_append
        return append(*x["block"], *x["angles"], x["k"], x["v"], x["slots"])
    if candidate.op == "attention_weights":
        weigh: Callable[..., Any] = weights_naive.attention_weights if naive else attention_weights
        return weigh(x["q"], x["k"], x["kv_lengths"], group=candidate.shape, mask=x["mask"], lse=x.get("lse"))
    gated = candidate.shape == "gate_up"
    if naive:
        return (linear_naive.gated_linear if gated else linear_naive.linear)(x["x"], x["weight"])
    if candidate.launch == "torch":
        product_of = F.linear(x["x"], x["weight"])
        return silu_mul(product_of) if gated else product_of
    if candidate.launch is None and gated:
        return gated_linear(x["x"], x["weight"])
    return (gated_linear_gpu if gated else linear_gpu)(x["x"], x["weight"], **how)


def check(candidate: Candidate, size: int = SMALL) -> str:
    """Return ``ok``, or how the candidate differs from the naive op or fails at a size."""
    try:
        with torch.no_grad():
            found = []
            for naive in (False, True):
                x = inputs(candidate, max(size, 2 * candidate.rows), seed=candidate.rows)
                out = run(candidate, x, naive).flatten()
                if candidate.op == "rope_append":
                    out = torch.cat((out, x["k"][:, :, x["slots"][0]].flatten(), x["v"][:, :, x["slots"][0]].flatten()))
                found.append(out.float())
            got, want = found
    except Exception as error:  # a candidate that cannot run is a row that says so
        return f"{type(error).__name__}: {str(error)[:120]}"
    gap = ((got - want).abs().max() / want.abs().max()).item()
    return "ok" if gap < 2e-2 else f"differs by {gap:.3g} of the largest value"


def time_us(candidate: Candidate) -> tuple[float, float, float]:
    """Return the median, least and largest time of a call in microseconds, cold inputs, inside a CUDA graph."""
    copies = COPIES if candidate.op == "linear" else 2
    sets = [inputs(candidate, max(CONTEXT, candidate.rows), seed) for seed in range(copies)]
    if candidate.op == "attention_weights":
        for x in sets:
            x["lse"] = decode_attention(x["q"], x["k"], x["k"], x["kv_lengths"], mask=x["mask"])[1]

    def work() -> None:
        for i in range(CALLS):
            run(candidate, sets[i % copies])

    with torch.no_grad():
        replay = captured(work, torch.device("cuda"))
    found = []
    for _ in range(REPLAYS + 1):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        stop.record()
        stop.synchronize()
        found.append(1e3 * start.elapsed_time(stop) / CALLS)
    return median(found[1:]), min(found[1:]), max(found[1:])


def main() -> int:
    """Check and time all candidates, print and write them; return 1 where one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("tune_launches.csv"))
    parser.add_argument("--ops", nargs="+", help="only these ops")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile and check")
    asked = parser.parse_args()
    listed = [c for c in candidates() if not asked.ops or c.op in asked.ops]
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        verdicts = list(pool.map(check, listed))
    failed = False
    with asked.output.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("op", "shape", "rows", "launch", "verdict", "median_us", "low_us", "high_us"))
        for candidate, verdict in zip(listed, verdicts, strict=True):
            if verdict == "ok":
                verdict = check(candidate, CONTEXT)
            times = time_us(candidate) if verdict == "ok" else (float("nan"),) * 3
            failed |= verdict != "ok"
            row = (candidate.op, candidate.shape, candidate.rows, str(candidate.launch or "rule"), verdict)
            writer.writerow((*row, *(f"{t:.2f}" for t in times)))
            print(*row, *(f"{t:.1f}" for t in times), sep="\t", flush=True)
            torch.cuda.empty_cache()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
