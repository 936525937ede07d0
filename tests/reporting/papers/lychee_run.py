"""A made-up run with everything that the page of LycheeDecode shows: scores, trainings, overlap and times.

Run by path from conftest.py, as tests are no package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from longdecode.evals import curves, summary
from longdecode.evals.records import Provenance, Record, SpeedRecord, SpeedSample
from longdecode.evals.storage import write_records, write_table
from longdecode.evals.throughput.derived import baselines_table, breakdown_table, breakeven_table, growth_table
from longdecode.evals.throughput.summary import correction_table, speed_table
from longdecode.methods.head_roles import RoleFile, write_role_file

LAYERS, HEADS, RETRIEVAL = 6, 4, 8
TRAININGS = {
    "kuma0": ("hardkuma", "mini_passkey", 0), "kuma1": ("hardkuma", "mini_passkey", 1),
    "kuma_hop": ("hardkuma", "mini_two_hop", 0), "concrete": ("hard_concrete", "mini_passkey", 0),
    "direct": ("direct", "mini_passkey", 0),
}  # fmt: skip
PART = {"suites": ["mini_recall", "mini_longgen"], "budgets": [0.1]}
ABLATION = {
    f"lychee_{name}": {"method": "lychee", "params": {"roles": f"somewhere/{name}.json", "retrieval_heads": RETRIEVAL}}
    for name in TRAININGS
} | {
    f"lychee_random{seed}": {
        "method": "lychee", "params": {"roles": "random", "roles_seed": seed, "retrieval_heads": RETRIEVAL}
    }
    for seed in (0, 1)
}  # fmt: skip
STRATEGIES: dict[str, dict[str, Any]] = {
    "lychee_token": {"mode": "token"}, "lychee_ratio": {"mode": "token", "strategy": "ratio"},
    "lychee_top_p": {"mode": "token", "strategy": "top_p"},
    "lychee_top_p_bare": {"mode": "token", "strategy": "top_p", "sink_tokens": 0, "recent_tokens": 0},
}  # fmt: skip
BASE = {"roles": "somewhere/kuma0.json", "retrieval_heads": RETRIEVAL}
CONFIG: dict[str, Any] = {
    "profile": "papers",
    "models": {
        "miniature": {"path": "nowhere/weights"},
        "llama": {"path": "gradientai/Llama-3-8B-Instruct-Gradient-1048k"},
    },
    "methods": {"full": {}, "quest": {}, "tidal": {}, "lychee": {"params": BASE}}
    | {label: spec | PART for label, spec in ABLATION.items()}
    | {
        label: {"method": "lychee", "params": BASE | more, "suites": ["mini_longgen"]}
        for label, more in STRATEGIES.items()
    },
    "budgets": [0.05, 0.1, 0.3],
    "suites": {
        "mini_recall": {"contexts": [8192], "samples": 12},
        "mini_longgen": {"contexts": [2048, 8192], "samples": 12},
        "longbench": {"contexts": [8192], "samples": 12},
    },
    "confidence": 0.95,
    "bootstrap_resamples": 200,
}  # fmt: skip
TASKS = {
    "mini_recall": {"mini_recall_single": 1, "mini_recall_two_hop": 2},
    "mini_longgen": {"mini_longgen_15": 15},
    "longbench": {"longbench_qasper": 0, "longbench_hotpotqa": 0},
}
DENSE = {"full": 1.0, "tidal": 1 / 3, "quest": 1 / 6, "lychee": RETRIEVAL / (LAYERS * HEADS)}
PROVENANCE = Provenance(
    revision="0123456789abcdef0123456789abcdef01234567", dirty=False, code_hash="c" * 64, model_hash="m" * 64,
    data_hash="d" * 64, device="NVIDIA H200", dtype="bfloat16", versions={"torch": "2.13.0"}, sm_clock_mhz=1980,
    started_at="2026-03-09T10:00:00+00:00",
)  # fmt: skip
SPREAD = summary.Spread(0.95, 200, 0)
DEVICE_RATE = 4.6e6


def write_run(folder: Path, parts: tuple[str, ...] = ("scores", "trainings", "overlap", "speed")) -> Path:
    """Write a results folder with some of its parts; with neither scores nor speed no report can be made of it."""
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False), encoding="utf-8")
    if "scores" in parts:
        _scores(folder)
    if "trainings" in parts:
        for name, (kind, data, seed) in TRAININGS.items():
            _training(folder / "identification" / "miniature" / name, kind, data, seed)
    if "overlap" in parts:
        _overlap().to_csv(folder / "overlap.csv", index=False)
    if "speed" in parts:
        write_speed(folder)
    return folder


def _scores(folder: Path) -> None:
    everything: list[Record] = []
    for label, spec in CONFIG["methods"].items():
        for suite in spec.get("suites", CONFIG["suites"]):
            model = "llama" if suite == "longbench" else "miniature"
            budgets = [None] if label == "full" else spec.get("budgets", CONFIG["budgets"])
            if suite == "longbench":
                budgets = [None] if label == "full" else [4096]
            rng = np.random.default_rng([len(label), len(suite), sum(map(ord, label))])
            records = [
                record
                for context in CONFIG["suites"][suite]["contexts"]
                for task in TASKS[suite]
                for budget in budgets
                for record in _cell(label, spec, model, suite, task, context, budget, rng)
            ]
            write_records(folder / "records" / model / label / f"{suite}.parquet", records, Record)
            everything += records
    write_table(folder / "summary.csv", summary.summarise(everything, SPREAD))
    write_table(folder / "along_generation.parquet", curves.along_generation(everything, 0.95))
    write_table(folder / "loss_by_position.parquet", curves.loss_by_position(everything, 0.95))


def _cell(
    label: str, spec: dict[str, Any], model: str, suite: str, task: str, context: int, budget: float | None,
    rng: np.random.Generator,
) -> Iterator[Record]:  # fmt: skip
    share = 1.0 if budget is None else budget / context if budget > 1 else budget
    chance = _chance(label, share, context)
    kind = spec.get("method", label)
    sparse = 0.6 * share if "top_p" in label else share
    read = DENSE[kind] + (1 - DENSE[kind]) * sparse
    for index in range(CONFIG["suites"][suite]["samples"]):
        if suite == "longbench":
            parts, score = None, float(np.clip(0.2 + 0.1 * chance + rng.normal(0, 0.1), 0, 1))
        else:
            parts = [float(rng.random() < chance) for _ in range(TASKS[suite][task])]
            score = float(np.mean(parts))
        yield Record(
            profile="papers", model=model, method=kind, label=label, params=spec.get("params", {}), suite=suite,
            task=task, task_version=1, metric="accuracy", unit="fraction", higher_is_better=True,
            data_source="real" if suite == "longbench" else "generated",
            budget="full" if budget is None else str(budget),
            budget_tokens=None if budget is None else math.ceil(share * context), context=context, batch=4, seed=0,
            sample_index=index, status="ok", prompt_sha256=f"{task}-{context}-{index}", score=score, parts=parts,
            provenance=PROVENANCE, measures={
                "kv_tokens_read": read * context, "kv_tokens_read_sparse": sparse * context,
                "kv_bytes_per_step": read * context, "metadata_bytes_per_step": 0.0,
            },
        )  # fmt: skip


def _chance(label: str, share: float, context: int) -> float:
    if label == "full":
        return 0.995
    need = {"quest": 0.03, "tidal": 0.05}.get(label, 0.02) * (context / 4096) ** 0.4
    need *= 8.0 if "random" in label else 2.0 if label == "lychee_direct" or "top_p" in label else 1.0
    return 0.995 / (1 + math.exp(-2.5 * math.log(share / need)))


def _training(folder: Path, kind: str, data: str, seed: int) -> None:
    """Gates that leave the middle at a pace of their kind; heads with the highest final gate are chosen."""
    rng = np.random.default_rng([seed, len(kind), len(data)])
    folder.mkdir(parents=True)
    steps, pace = np.arange(0, 301, 10), {"hardkuma": 60.0, "hard_concrete": 90.0, "direct": 400.0}[kind]
    taste = np.add.outer(np.linspace(1, -1, LAYERS), np.array([0.6, -0.2, 0.1, -0.5])) + rng.normal(
        0, 0.4, (LAYERS, HEADS)
    )
    cut = np.sort(taste[1:].ravel())[-(RETRIEVAL - HEADS)]
    gates = {int(step): 1 / (1 + np.exp(-(taste - cut + 0.05) * 12 * (1 - math.exp(-step / pace)))) for step in steps}
    rows = []
    for step, score in gates.items():
        undecided = float(((score > 0.1) & (score < 0.9)).mean())
        distance = 0.5 * math.exp(-step / 150) + 0.02 + 0.004 * rng.random()
        rows.append((step, distance, distance, 0.0, 2.0 + step / 300, float(score.mean()), float(score.sum()),
                     int((score > 0.5).sum()), undecided, 0.1 * step))  # fmt: skip
    names = "step loss distill constraint lagrange density expected_heads retrieval_heads gates_undecided seconds"
    pd.DataFrame(rows, columns=names.split()).to_csv(folder / "curve.csv", index=False)
    pd.DataFrame(
        [
            (step, layer, head, float(score[layer, head]))
            for step, score in list(gates.items())[::2]
            for layer in range(LAYERS)
            for head in range(HEADS)
        ],
        columns=["step", "layer", "kv_head", "score"],
    ).to_csv(folder / "gates.csv", index=False)
    last = gates[int(steps[-1])]
    roles = [[1] * HEADS, *([int(taste[layer, head] >= cut) for head in range(HEADS)] for layer in range(1, LAYERS))]
    settings = {"objective": "l1" if kind == "direct" else "paper", "inherit": "chain", "selection": "causal"}
    run = {"kind": kind, "data": data, "seed": seed, "model": "miniature", "settings": settings}
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    write_role_file(
        folder / "roles.json",
        RoleFile(
            model="miniature", layers=LAYERS, kv_heads=HEADS, kind=kind, scores=last.tolist(), roles=roles, run=run
        ),
    )


def _overlap() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        [
            ("miniature", "mini_longgen_15", 8192, k, layer, kind, head, float(rng.beta(1.2, 0.8)), 64)
            for k in (64, 512)
            for kind, heads in (("kv", HEADS), ("query", 2 * HEADS))
            for layer in range(1, LAYERS)
            for head in range(heads)
        ],
        columns=["model", "task", "context", "k_tokens", "layer", "head_kind", "head", "mean_overlap", "n"],
    )


def write_speed(folder: Path) -> None:
    """Times of the hybrid kernel and of decode steps, with the tables that a run makes of them."""
    rng = np.random.default_rng(11)
    records = [_timed(row, rng) for row in (_ceiling(), *_kernels(), *_steps())]
    for job, benches in (("kernels", ("ceiling", "kernel")), ("llama3-8b", ("decode",))):
        write_records(folder / "speed" / f"{job}.parquet", [r for r in records if r.bench in benches], SpeedRecord)
    table = speed_table(records, 0.95, 200)
    write_table(folder / "speed.csv", table)
    write_table(folder / "growth.csv", growth_table(table, 0.95))
    write_table(folder / "breakeven.csv", breakeven_table(table))
    write_table(folder / "breakdown.csv", breakdown_table(table))
    correction = correction_table(table)
    write_table(folder / "correction.csv", correction)
    write_table(folder / "over_baselines.csv", baselines_table(table, correction))


def _timed(row: dict[str, Any], rng: np.random.Generator) -> SpeedRecord:
    us, ratio = row.pop("us"), row.pop("ratio", None)
    samples = []
    for _ in range(6):
        mine = us * (1 + 0.003 * rng.random())
        samples.append(
            SpeedSample(us=mine, reference_us=None if ratio is None else mine * ratio * (1 + rng.normal(0, 0.001)))
        )
    more = {"params": {}, "budget_tokens": None, "status": "ok", "sm_clock_mhz": (1965, 1980)} | row
    return SpeedRecord(profile="papers", seed=0, provenance=PROVENANCE, samples=samples, **more)


def _ceiling() -> dict[str, Any]:
    return {
        "bench": "ceiling", "model": "llama3-8b", "weights": "none", "subject": "read_bandwidth", "label": "torch_sum",
        "stage": "op", "context": 0, "batch": 1, "budget": "full", "us": 2.1e9 / DEVICE_RATE, "bytes_min": int(2.1e9),
    }  # fmt: skip


def _kernels() -> Iterator[dict[str, Any]]:
    for subject in ("hybrid_attention", "hybrid_attention_scored", "hybrid_attention_random"):
        for context in (16384, 131072):
            for batch in (1, 8):
                for full in (0, 1, 2, 4, 8):
                    if full == 0 and subject.endswith("scored"):
                        continue
                    dense = context * batch * 8 * 512
                    least = dense * (full / 8 + (1 - full / 8) * 0.1)
                    ours, flash = least / DEVICE_RATE * 1.08 + 6, dense / DEVICE_RATE * 1.02 + 4
                    base = {
                        "bench": "kernel", "model": "llama3-8b", "weights": "none", "subject": subject, "stage": "op",
                        "context": context, "batch": batch, "budget": "0.1", "budget_tokens": context // 10,
                        "params": {"full_heads": full, "block": 64, "sets": 3, "cold": True},
                    }  # fmt: skip
                    yield base | {"label": "longdecode", "us": ours, "ratio": flash / ours, "reference": "torch_flash",
                                  "bytes_min": int(least)}  # fmt: skip
                    yield base | {"label": "torch_flash", "us": flash, "ratio": ours / flash, "reference": "longdecode",
                                  "bytes_min": int(dense)}  # fmt: skip


def _steps() -> Iterator[dict[str, Any]]:
    weights, layer = 15.0e9, 4096
    for context in (4096, 32768, 131072):
        for batch in (1, 4):

            def attention(dense: float, batch: int = batch, context: int = context) -> float:
                return layer * 32 * batch * (dense * context + (1 - dense) * 4096) / DEVICE_RATE

            fixed = weights / DEVICE_RATE * 1.1 + 400
            full = fixed + attention(1.0)
            times = {
                "full": full, "lychee": fixed + attention(1 / 8) + 60, "lychee_cc": fixed + attention(1 / 8) + 60,
                "tidal": fixed + attention(1 / 8) + 200, "quest": fixed + attention(1 / 12) + 300,
                "hf_full": full * 1.4 + context * 0.2, "hf_full_static": full * 1.2 + 500,
            }  # fmt: skip
            for label, us in times.items():
                if label.startswith("hf") and batch > 1:
                    continue
                params = {"correction": "rewrite", "correction_period": 32} if label.endswith("_cc") else {}
                dense = label in ("full", "hf_full", "hf_full_static")
                base = {
                    "bench": "decode", "model": "llama3-8b", "weights": "random", "params": params, "label": label,
                    "subject": "hf_full" if label.startswith("hf") else label.removesuffix("_cc"), "context": context,
                    "batch": batch, "budget": "full" if dense else "4096", "budget_tokens": None if dense else 4096,
                    "bytes_min": int(us * DEVICE_RATE * 0.9), "reference": "full",
                }  # fmt: skip
                yield base | {"stage": "step", "us": us, "ratio": full / us}
                if params:
                    yield base | {"stage": "correction", "us": 1.1 * full, "ratio": 1 / 1.1}
