"""Made-up times of a device with a roof: bytes over a read rate, fixed costs a layer, noise, holes of several kinds.

Run by path from conftest.py, as tests are no package.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from longdecode.evals.records import Provenance, SpeedRecord, SpeedSample
from longdecode.evals.store import write_records, write_table
from longdecode.evals.throughput.summary import speed_table

RATE = 4.6e6  # bytes a microsecond
LAYERS, KV_BYTES, WEIGHT_BYTES = 32, 4096, 15.0e9  # of Llama-3-8B: bytes of a token's keys and values in one layer
CONTEXTS, BATCHES, BUDGETS = (4096, 16384, 32768, 131072, 524288), (1, 4, 16), ("1024", "4096", "0.1")
MEMORY = 140e9
DEVICE, REVISION = "NVIDIA H200", "0123456789abcdef0123456789abcdef01234567"
METHODS = {"full": 0, "quest": 2, "tidal": 4, "streaming": 0, "free_selection": 0, "hf_full": 0}
SAMPLES = 10
PROVENANCE = Provenance(
    revision=REVISION, dirty=False, code_hash="c" * 64, model_hash="m" * 64, data_hash="none", device=DEVICE,
    dtype="bfloat16", versions={"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0"}, sm_clock_mhz=None,
    started_at="2026-03-09T10:00:00+00:00",
)  # fmt: skip


def write_speed(folder: Path, seed: int = 7, labels: Collection[str] | None = None) -> pd.DataFrame:
    """Write a run's speed records and, by the code that does it, the four tables made from them; returns speed.csv.

    Args:
        labels: whose decoding is timed; all when left out, of which a page takes four seconds.
    """
    rng = np.random.default_rng(seed)
    records = [_record(row, rng) for row in (*_ceilings(), *_kernels(), *_steps())]
    records = [r for r in records if labels is None or r.bench != "decode" or r.variant in labels]
    for job in ("kernels", "llama3-8b", "miniature"):
        mine = [r for r in records if job == (r.model if r.bench == "decode" else "kernels")]
        write_records(folder / "speed" / f"{job}.parquet", mine, SpeedRecord)
    table = speed_table(records, 0.95, 200)
    write_table(folder / "speed.csv", table)
    return pd.read_csv(folder / "speed.csv")


def _record(row: dict[str, Any], rng: np.random.Generator) -> SpeedRecord:
    us, ratio, disturbed = row.pop("us", None), row.pop("ratio", None), rng.random() < 0.03
    samples = []
    for number in range(0 if us is None else SAMPLES):
        mine = us * (1 + 0.003 * rng.random())
        theirs = None if ratio is None else mine * ratio * (1 + rng.normal(0, 0.001))
        wrong = "SM clock 1500 of 1980 MHz" if disturbed and number < 2 else None
        samples.append(SpeedSample(us=mine, reference_us=theirs, disturbed=wrong))
    row = {"budget_tokens": None} | row
    return SpeedRecord(profile="synthetic", seed=0, provenance=PROVENANCE, samples=samples, **row)


def _row(us: float, least: float, **more: Any) -> dict[str, Any]:
    return {"us": us, "bytes_min": int(least), "status": "ok", "params": {}, "sm_clock_mhz": (1965, 1980), **more}


def _hole(status: str, reason: str, **more: Any) -> dict[str, Any]:
    return {"params": {}, **more, "status": status, "reason": reason}


def _pair(mine: float, theirs: float, reference: str) -> dict[str, Any]:
    return {"reference": reference, "ratio": theirs / mine}


def _ceilings() -> Iterator[dict[str, Any]]:
    base = {"bench": "ceiling", "model": "llama3-8b", "weights": "none", "method": "read_bandwidth", "stage": "op"}
    probes = (("torch_sum", 4.22e6, 0), ("torch_flash", RATE, 131072), ("longdecode", 4.58e6, 131072))
    for label, rate, context in probes:
        place = {"variant": label, "context": context, "batch": 4 if context else 1, "budget": "full"}
        yield _row(2.1e9 / rate, 2.1e9, **base, **place)


def _kernels() -> Iterator[dict[str, Any]]:
    peers = {
        "decode_attention": {"torch_cudnn": 1.0, "torch_flash": 1.01, "flashinfer": 1.06},
        "sparse_decode_attention": {"flashinfer": 1.2},
        "sparse_decode_attention_tokens": {"flashinfer": 1.3},
        "page_score": {}, "topk_select": {"torch_topk": 5.0, "flashinfer": 1.4}, "selection": {},
    }  # fmt: skip
    for op, rivals in peers.items():
        for context in CONTEXTS[1:]:
            for batch in (1, 4):
                for budget in ["full"] if op in ("decode_attention", "page_score") else ["1024", "4096"]:
                    yield from _kernel(op, rivals, context, batch, budget)
    for batch in (1, 4):
        yield from _kernel("linear_down", {"cublas": 1.1}, 0, batch, "full")


def _kernel(op: str, rivals: dict[str, float], context: int, batch: int, budget: str) -> Iterator[dict[str, Any]]:
    tokens = context if budget == "full" else int(budget)
    pages, fixed = context / 16, {"topk_select": 7.0, "selection": 9.0}.get(op, 3.0)
    least = {"page_score": pages * KV_BYTES, "selection": pages * KV_BYTES, "topk_select": pages * 32.0}.get(
        op, tokens * KV_BYTES
    )
    least = 117.4e6 if op == "linear_down" else least * batch
    own = least / RATE * 1.05 + fixed
    params = (
        {"block": 16} if op == "sparse_decode_attention" else {"rows": 4096, "columns": 14336} if not context else {}
    )
    params |= {"sets": int(200e6 / least) + 1, "cold": op != "topk_select"}
    base = {
        "bench": "kernel", "model": "llama3-8b", "weights": "none", "method": op, "stage": "op", "context": context,
        "batch": batch, "budget": budget, "budget_tokens": None if budget == "full" else tokens,
    }  # fmt: skip
    more = base | {"params": params}
    first = next(iter(rivals), None)
    paired = {} if first is None else _pair(own, own * rivals[first], first)
    launch = {"splits": 16, "num_warps": 4}
    yield _row(own, least, **more | {"variant": "longdecode", "launch": launch} | paired)
    for label, factor in rivals.items():
        if label == "flashinfer" and context == 524288:
            yield _hole("unsupported", "RuntimeError: k=32768 is over its limit of 2048", **base, variant=label)
        else:
            yield _row(own * factor, least, **more, variant=label, **_pair(own * factor, own, "longdecode"))


def _steps() -> Iterator[dict[str, Any]]:
    for context in CONTEXTS:
        for batch in BATCHES:
            for label, dense in METHODS.items():
                if label == "hf_full" and (batch > 1 or context > 131072):
                    continue
                for budget in ("full",) if "full" in label else BUDGETS:
                    yield from _cell(label, dense, context, batch, budget)
    yield from _mini()


def _cell(label: str, dense: int, context: int, batch: int, budget: str) -> Iterator[dict[str, Any]]:
    tokens = context if budget == "full" else int(budget) if budget.isdigit() else int(float(budget) * context)
    base = {
        "bench": "decode", "model": "llama3-8b", "weights": "random", "method": label, "variant": label,
        "context": context, "batch": batch, "budget": budget, "budget_tokens": None if budget == "full" else tokens,
        "stage": "step",
    }  # fmt: skip
    resident = WEIGHT_BYTES + (tokens if label == "streaming" else context) * KV_BYTES * LAYERS * batch
    if resident > MEMORY:
        reason = f"weights and cache need {resident / 1e9:.1f} GB; 140.0 GB are free"
        yield _hole("oom", reason, **base, expected_bytes=int(resident))
        return
    if label == "tidal" and tokens > context / 2:
        yield _hole("unsupported", f"tidal: budget {tokens} is more than half the context", **base)
        return
    read = min(tokens, context)
    attention = KV_BYTES * batch * (dense * context + (LAYERS - dense) * read)
    meta = KV_BYTES * batch * {"quest": 30 * context / 16, "tidal": 2 * context / 2}.get(label, 0)
    least = WEIGHT_BYTES + attention + meta
    parts = {
        "weights": WEIGHT_BYTES / RATE * 1.08,
        "selection": meta / RATE * 1.1 + {"quest": 9.0 * 30, "tidal": 20.0}.get(label, 0.0),
        "attention": attention / RATE * 1.04 + LAYERS * 4.0,
        "rest": LAYERS * 12.0 + 40 * batch,
    }
    us = sum(parts.values()) if label != "hf_full" else 28e3 + context * 0.6
    full_bytes = KV_BYTES * batch * LAYERS * context
    full = parts["weights"] + parts["rest"] + full_bytes / RATE * 1.04 + LAYERS * 4.0
    fits = WEIGHT_BYTES + full_bytes <= MEMORY  # without Full beside it there is no pair
    paired = {} if not fits else _pair(us, full, "full")
    whole = {"expected_bytes": int(resident), "peak_bytes": int(resident * 1.02 + 3e8)}
    yield _row(us, least, **base, **paired, **whole)
    if budget in ("full", "4096") and label != "hf_full":
        if parts["selection"]:
            given = us - parts["selection"]
            yield _row(
                given, least - meta, **base | {"stage": "no_selection"}, **(paired and _pair(given, full, "full"))
            )
        if label == "full":
            for stage, time in (("no_attention", parts["weights"] + parts["rest"]), ("projections", parts["weights"])):
                alone = base | {"method": stage, "variant": stage, "stage": stage}
                yield _row(time, WEIGHT_BYTES, **alone, **_pair(time, us, "full"))
    if budget in ("full", "4096") and batch == 1 and context <= 131072 and label in ("full", "quest", "tidal"):
        if label == "full":
            yield _row(context * 30 * (1 + context / 262144), least, **base | {"stage": "prefill"})
        yield _row(300 + context * 0.002 * (label == "quest"), least, **base | {"stage": "setup"})


def _mini() -> Iterator[dict[str, Any]]:
    base = {"bench": "decode", "model": "miniature", "weights": "checkpoint", "batch": 1, "stage": "step"}
    for context in (2048, 16384):
        full, quest = 210 + context * 0.004, 290 + context * 0.0005
        place = base | {"context": context}
        yield _row(full, 17e6 + context * 6144, **place, method="full", variant="full", budget="full")
        more = {"method": "quest", "budget": "1024", "budget_tokens": 1024, **_pair(quest, full, "full")}
        yield _row(quest, 17e6 + 1024 * 6144, **place, variant="quest", **more)
        script = more | {"params": {"variant": "accuracy_script"}, "variant": "quest_script"}
        yield _hole("failed_gate", "replay differs from eager by 0.3 at step 2", **place | script)
