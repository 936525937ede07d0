"""Made-up times of a device with a roof: bytes over a read rate, fixed costs a layer, noise, holes of several kinds.

Run by path from conftest.py, as tests are no package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

RATE = 4.6e6  # bytes a microsecond
LAYERS, KV_BYTES, WEIGHT_BYTES = 32, 4096, 15.0e9  # of Llama-3-8B: bytes of a token's keys and values in one layer
CONTEXTS, BATCHES, BUDGETS = (4096, 16384, 32768, 131072, 524288), (1, 4, 16), ("1024", "4096", "0.1")
MEMORY = 140e9
DEVICE, REVISION = "NVIDIA H200", "0123456789abcdef0123456789abcdef01234567"
METHODS = {"full": 0, "quest": 2, "tidal": 4, "streaming": 0, "oracle_budget": 0, "hf_full": 0}
COLUMNS = (
    "bench model weights subject label params stage context batch budget budget_tokens status reason n disturbed "
    "median_us p5_us p95_us reference ratio ratio_low ratio_high bytes_min floor_us fraction gb_per_s tokens_per_s "
    "expected_bytes peak_bytes launch sm_clock_low_mhz sm_clock_high_mhz device revision"
).split()


def write_speed(folder: Path, seed: int = 7) -> pd.DataFrame:
    """Write speed.csv, growth.csv, breakeven.csv and breakdown.csv to a run's folder; returns the first."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame([*_ceilings(), *_kernels(rng), *_steps(rng)], columns=COLUMNS)
    table.to_csv(folder / "speed.csv", index=False, float_format="%.9g")
    _growth(table).to_csv(folder / "growth.csv", index=False, float_format="%.9g")
    _breakeven().to_csv(folder / "breakeven.csv", index=False)
    _breakdown(table).to_csv(folder / "breakdown.csv", index=False, float_format="%.9g")
    return table


def _row(us: float, least: float, rng: np.random.Generator, **more: Any) -> dict[str, Any]:
    median = us * (1 + rng.normal(0, 0.002))
    row = {
        "params": "{}", "status": "ok", "n": 40, "disturbed": int(rng.random() < 0.03) * 2, "median_us": median,
        "p5_us": median * (1 - 0.004 * rng.random()), "p95_us": median * (1 + 0.012 * rng.random()), "bytes_min": least,
        "floor_us": least / RATE, "fraction": least / RATE / median, "gb_per_s": least / median / 1e3, "launch": "{}",
        "sm_clock_low_mhz": 1965, "sm_clock_high_mhz": 1980, "device": DEVICE, "revision": REVISION,
    }  # fmt: skip
    return row | more


def _hole(status: str, reason: str, **more: Any) -> dict[str, Any]:
    base = {"params": "{}", "n": 0, "disturbed": 0, "device": DEVICE, "revision": REVISION, "launch": "{}"}
    return base | {"status": status, "reason": reason} | more


def _pair(mine: float, theirs: float, reference: str, rng: np.random.Generator) -> dict[str, Any]:
    ratio = theirs / mine * (1 + rng.normal(0, 0.001))
    return {"reference": reference, "ratio": ratio, "ratio_low": ratio * 0.996, "ratio_high": ratio * 1.004}


def _ceilings() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    base = {"bench": "ceiling", "model": "llama3-8b", "weights": "none", "subject": "read_bandwidth", "stage": "op"}
    for label, rate, context in (
        ("torch_sum", 4.22e6, 0),
        ("torch_flash", RATE, 131072),
        ("longdecode", 4.58e6, 131072),
    ):
        place = {"label": label, "context": context, "batch": 4 if context else 1, "budget": "full"}
        yield _row(2.1e9 / rate, 2.1e9, rng, **base, **place)


def _kernels(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    peers = {
        "decode_attention": {"torch_flash": 1.01, "flashinfer": 1.06},
        "sparse_decode_attention": {"flashinfer": 1.2},
        "sparse_decode_attention_tokens": {"flashinfer": 1.3},
        "page_score": {}, "topk_select": {"torch_topk": 5.0, "flashinfer": 1.4}, "selection": {},
    }  # fmt: skip
    for op, rivals in peers.items():
        for context in CONTEXTS[1:]:
            for batch in (1, 4):
                for budget in ["full"] if op in ("decode_attention", "page_score") else ["1024", "4096"]:
                    yield from _kernel(op, rivals, context, batch, budget, rng)
    for batch in (1, 4):
        yield from _kernel("linear_down", {"cublas": 1.1}, 0, batch, "full", rng)


def _kernel(
    op: str, rivals: dict[str, float], context: int, batch: int, budget: str, rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
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
        "bench": "kernel", "model": "llama3-8b", "weights": "none", "subject": op, "stage": "op", "context": context,
        "batch": batch, "budget": budget, "budget_tokens": None if budget == "full" else tokens,
    }  # fmt: skip
    more = base | {"params": json.dumps(params)}
    first = next(iter(rivals), None)
    paired = {} if first is None else _pair(own, own * rivals[first], first, rng)
    launch = json.dumps({"splits": 16, "num_warps": 4})
    yield _row(own, least, rng, **more | {"label": "longdecode", "launch": launch} | paired)
    for label, factor in rivals.items():
        if label == "flashinfer" and context == 524288:
            yield _hole("unsupported", "RuntimeError: k=32768 is over its limit of 2048", **base, label=label)
        else:
            yield _row(own * factor, least, rng, **more, label=label, **_pair(own * factor, own, "longdecode", rng))


def _steps(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    for context in CONTEXTS:
        for batch in BATCHES:
            for label, dense in METHODS.items():
                if label == "hf_full" and (batch > 1 or context > 131072):
                    continue
                for budget in ("full",) if "full" in label else BUDGETS:
                    yield from _cell(label, dense, context, batch, budget, rng)
    yield from _mini(rng)


def _cell(
    label: str, dense: int, context: int, batch: int, budget: str, rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    tokens = context if budget == "full" else int(budget) if budget.isdigit() else int(float(budget) * context)
    base = {
        "bench": "decode", "model": "llama3-8b", "weights": "random", "subject": label, "label": label,
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
    paired = {} if not fits else _pair(us, full, "full", rng)
    whole = {"expected_bytes": int(resident), "peak_bytes": int(resident * 1.02 + 3e8)}
    yield _row(us, least, rng, **base, **paired, **whole, tokens_per_s=batch / us * 1e6)
    if budget in ("full", "4096") and label != "hf_full":
        if parts["selection"]:
            yield _row(us - parts["selection"], least - meta, rng, **base | {"stage": "no_selection"})
        if label == "full":
            for stage, time in (("no_attention", parts["weights"] + parts["rest"]), ("projections", parts["weights"])):
                alone = base | {"subject": stage, "label": stage, "stage": stage}
                yield _row(time, WEIGHT_BYTES, rng, **alone, **_pair(time, us, "full", rng))
    if budget in ("full", "4096") and batch == 1 and context <= 131072 and label in ("full", "quest", "tidal"):
        if label == "full":
            yield _row(context * 30 * (1 + context / 262144), least, rng, **base | {"stage": "prefill"})
        yield _row(300 + context * 0.002 * (label == "quest"), least, rng, **base | {"stage": "setup"})


def _mini(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    base = {"bench": "decode", "model": "miniature", "weights": "checkpoint", "batch": 1, "stage": "step"}
    for context in (2048, 16384):
        full, quest = 210 + context * 0.004, 290 + context * 0.0005
        place = base | {"context": context}
        yield _row(full, 17e6 + context * 6144, rng, **place, subject="full", label="full", budget="full")
        more = {"subject": "quest", "budget": "1024", "budget_tokens": 1024, **_pair(quest, full, "full", rng)}
        yield _row(quest, 17e6 + 1024 * 6144, rng, **place, label="quest", **more)
        script = more | {"params": '{"variant": "accuracy_script"}', "label": "quest_script"}
        yield _hole("failed_gate", "replay differs from eager by 0.3 at step 2", **place | script)


def _growth(table: pd.DataFrame) -> pd.DataFrame:
    found = []
    steps = table[(table["bench"] == "decode") & (table["stage"] == "step") & (table["status"] == "ok")]
    for axis, held, unit in (("context", "batch", 1024), ("batch", "context", 1)):
        for (model, subject, label, budget, fixed), rows in steps.groupby(
            ["model", "subject", "label", "budget", held]
        ):
            if len(rows) < 3:
                continue
            x, y = rows[axis].to_numpy(float) / unit, rows["median_us"].to_numpy(float)
            slope, intercept = np.polyfit(x, y, 1)
            left = y - slope * x - intercept
            found.append(
                {"bench": "decode", "model": model, "subject": subject, "label": label, "stage": "step"}
                | {"budget": budget, "axis": axis, "fixed": fixed, "points": len(rows), "slope_us": slope}
                | {"slope_low": slope * 0.97, "slope_high": slope * 1.03, "intercept_us": intercept}
                | {"r2": 1 - float((left**2).sum() / ((y - y.mean()) ** 2).sum())}
            )
    return pd.DataFrame(found)


def _breakeven() -> pd.DataFrame:
    rows = [
        ("quest", "4096", "context", 1, 32768, "from"), ("quest", "4096", "batch", 4096, np.nan, "never"),
        ("streaming", "4096", "context", 1, np.nan, "always"), ("tidal", "1024", "context", 16, np.nan, "unknown"),
        ("quest", "4096", "batch", 16384, 4, "from"),
    ]  # fmt: skip
    names = ["label", "budget", "axis", "fixed", "value", "verdict"]
    return pd.DataFrame([{"model": "llama3-8b", **dict(zip(names, row, strict=True))} for row in rows])


def _breakdown(table: pd.DataFrame) -> pd.DataFrame:
    rows = table[(table["bench"] == "decode") & (table["model"] == "llama3-8b") & (table["status"] == "ok")]
    alone = {
        (r["stage"], r["context"], r["batch"]): r["median_us"] for _, r in rows.iterrows() if r["label"] == r["stage"]
    }
    found = []
    for (label, budget, context, batch), mine in rows.groupby(["label", "budget", "context", "batch"], sort=False):
        us = dict(zip(mine["stage"], mine["median_us"], strict=True))
        bare = alone.get(("no_attention", context, batch))
        if bare is None or "step" not in us or label == "hf_full":
            continue
        weights, without = alone["projections", context, batch], us.get("no_selection", us["step"])
        parts = {
            "weights": weights, "selection": us["step"] - without, "attention": without - bare, "rest": bare - weights,
        }  # fmt: skip
        place = {"model": "llama3-8b", "label": label, "budget": budget, "context": context, "batch": batch}
        found += [{**place, "part": part, "us": value} for part, value in parts.items()]
    return pd.DataFrame(found)
