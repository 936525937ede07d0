"""Measures beside scores: of long texts, of what selections share between steps and layers, and of draft heads.

Long texts are measured at the lengths that papers print: acceptance, speed over plain decoding, minutes, diversity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from longdecode.evals.records import Record
from longdecode.evals.run_config import REFERENCE_METHOD
from longdecode.evals.stats import Spread, bootstrap_interval, generator
from longdecode.evals.store import read_frame

DISTINCT = ("distinct_1", "distinct_2", "distinct_3", "distinct_4")
UNITS = {
    "alpha": "share", "beta": "share", "speedup": "times", "tokens_per_step": "tokens", "ms_per_token": "ms",
    "minutes": "minutes", **dict.fromkeys((*DISTINCT, "average_distinct", "repeated_8"), "share"),
    "loss_full": "nats/token",
}  # fmt: skip
_WHOLE = (*DISTINCT, "repeated_8", "loss_full")
_KEYS = ["model", "task", "context", "variant", "budget", "length", "measure", "at"]
_SHARES = {"gamma": "hit_rate", "gamma_free": "hit_rate_without_forced", "union": "union"}
_TODAY = {"label": "variant", "text": "task"}
"""Columns of earlier files by today's names."""
_TRACED = (
    "overlap_", "effective_budget", "loss_gap_minus_", "key_error_minus_", "value_error_minus_",
    "output_error_minus_", "output_final_error_minus_",
)  # fmt: skip
"""Beginnings of the measures of a trace that are of print, or a difference to the rival."""


def step_overlaps(path: Path, spread: Spread) -> Iterator[dict[str, Any]]:
    """Yield the share of a step's blocks that the step before read too, by variant, and its lead over another's.

    Means over layers and heads; the unit is the text. ``misses`` counts blocks a step by slots of a resident set.

    Args:
        path: a run's locality.csv; nothing where there is none.
        spread: confidence, bootstrap draws and seed.
    """
    if not path.is_file():
        return
    table = pd.read_csv(path).rename(columns=_TODAY).astype({"budget": str})
    names = [*_SHARES, *(name for name in table.columns if name.startswith("misses_"))]
    by_text = table.groupby(["variant", "document"])[names].mean()
    by_text[list(_SHARES)] *= 100
    for variant in table["variant"].unique():
        rows = table[table["variant"] == variant]
        row = {name: rows[name].iloc[0] for name in ("model", "variant", "task", "context", "budget")}
        row |= {"n": len(by_text.loc[variant]), "source": path.name}
        for name in names:
            measure, _, slots = name.partition("_") if name not in _SHARES else (_SHARES[name], "", "")
            found = _mean(by_text.loc[variant, name], spread, variant, name)
            unit = {"at": int(slots), "unit": "blocks"} if slots else {"unit": "percent"}
            yield row | found | unit | {"measure": measure}
        yield row | {"measure": "hit_rate_worst", "value": 100 * rows["worst"].min(), "unit": "percent"}
        for other in (name for name in table["variant"].unique() if name != variant):
            for name in ("gamma", "gamma_free"):
                lead = (by_text.loc[variant, name] - by_text.loc[other, name]).dropna()
                found = _mean(lead, spread, variant, other, name)
                yield row | found | {"measure": f"{_SHARES[name]}_lead", "over": other, "unit": "points"}


def layer_overlaps(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lowest and highest overlap with the layer below, within the layer whose heads differ most.

    Args:
        path: a run's overlap.csv; nothing where there is none.
    """
    if not path.is_file():
        return
    place = ["model", "task", "context", "k_tokens", "head_kind"]
    for key, rows in pd.read_csv(path).groupby(place, sort=False):
        heads = 100 * rows.groupby(["layer", "head"])["mean_overlap"].mean()
        layers = heads.groupby("layer").agg(lowest="min", highest="max")
        widest = layers.loc[(layers["highest"] - layers["lowest"]).idxmax()]
        row = dict(zip(("model", "task", "context", "at", "setting"), key, strict=True))
        for bound, value in widest.items():
            yield row | {
                "measure": f"layer_overlap_{bound}", "n": int(rows["n"].max()), "value": value, "unit": "percent",
                "source": path.name,
            }  # fmt: skip


def selection_traces(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield overlap of selections and effective budget by steps apart, as the run measured them.

    Args:
        folder: a run's retrospection; nothing where there is none.
    """
    for path in sorted(folder.glob("*.parquet")):
        table = read_frame(path).rename(columns=_TODAY | {"index": "at"})
        table = table[(table["layer"] < 0) & table["measure"].str.startswith(_TRACED)].copy()
        shares = table["measure"].str.startswith("overlap")
        table.loc[shares, ["value", "low", "high"]] *= 100
        table["unit"] = np.select([shares, table["measure"] == "effective_budget"], ["percent", "times"], "")
        found: list[dict[Any, Any]] = table.assign(source=f"{folder.name}/{path.name}").to_dict("records")
        yield from found


def head_losses(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the last training loss of each draft head, and how often its first guess is right beside a table of pairs.

    Args:
        folder: a run's heads, ``<model>/<kind>/<start>/``; nothing where there is none.
    """
    for path in sorted(folder.glob("*/*/*/accuracy.csv")):
        model, kind, start = path.parts[-4:-1]
        row = {"model": model, "variant": f"{kind}/{start}", "n": 1, "source": f"heads/{model}"}
        last = pd.read_csv(path.with_name("curve.csv")).iloc[-1]
        for name in (name for name in last.index if name.startswith("loss_") and name[5:].isdigit()):
            yield row | {"measure": "head_loss", "at": int(name[5:]), "value": float(last[name]), "unit": "nats"}
        for head in pd.read_csv(path).to_dict("records"):
            for measure, value in (("head_right", head["top1"]), ("pairs_right", head["pair_top1"])):
                yield row | {"measure": measure, "at": int(head["head"]), "value": 100 * value, "unit": "percent"}


def _mean(values: pd.Series, spread: Spread, *identity: object) -> dict[str, Any]:
    found = bootstrap_interval([values.to_numpy()], spread, generator(spread.seed, "overlap", *identity))
    return {"n": len(values), **found._asdict()}


def text_measures(jobs: Sequence[Sequence[Record]], spread: Spread) -> Iterator[dict[str, Any]]:
    """Yield the measures of each variant's texts by sampler, prompt length, whole length and place in the text.

    A text is paired with the one that full attention wrote after the same prompt in the same job; ``speedup`` is the
    ratio of their milliseconds a token up to that place, prefill left out. The unit is the prompt: one prompt has no
    interval. Of several texts of one variant after one prompt, equally long, the last job's counts. Texts that another
    method drafted (``method+rows``) are left out.

    Args:
        jobs: the records of each job.
        spread: confidence, bootstrap draws and seed.
    """
    observed = pd.DataFrame(_observations(jobs), columns=[*_KEYS, "prompt", "value"])
    latest = observed.groupby([*_KEYS, "prompt"], sort=False)["value"].last()
    for key, found in latest.groupby(_KEYS, sort=False):
        mean = bootstrap_interval([np.asarray(found)], spread, generator(spread.seed, "texts", *key))
        row: dict[str, Any] = dict(zip(_KEYS, key, strict=True))
        yield row | mean._asdict() | {"n": len(found), "unit": UNITS[row["measure"]], "source": "texts"}


def _observations(jobs: Sequence[Sequence[Record]]) -> Iterator[tuple[Any, ...]]:
    """Yield a row a text and measure."""
    for records in jobs:
        written = [r for r in records if r.status == "ok" and "+" not in r.variant]
        fulls = {_prompt(r): r.measures for r in written if r.method == REFERENCE_METHOD}
        for r in written:
            cell = r.model, r.task, r.context, r.variant, r.budget, int(r.measures["tokens"])
            for measure, at, value in _of_text(r.measures, fulls.get(_prompt(r))):
                yield *cell, measure, at, r.sample_index, value


def _prompt(record: Record) -> tuple[Any, ...]:
    return record.model, record.task, record.context, record.sample_index


def _of_text(seen: Mapping[str, float], full: Mapping[str, float] | None) -> Iterator[tuple[str, int, float]]:
    """Yield measure, tokens written and value of one text."""
    whole = int(seen["tokens"])
    yield from ((name, whole, seen[name]) for name in _WHOLE if name in seen)
    if all(name in seen for name in DISTINCT):
        yield "average_distinct", whole, fmean(seen[name] for name in DISTINCT)
    for at in sorted(int(name.split("_")[1]) for name in seen if name.startswith("at_") and name.endswith("_steps")):
        tokens, steps, ms = (seen[f"at_{at}_{name}"] for name in ("tokens", "steps", "ms"))
        if seen.get("depth"):
            yield "alpha", at, (tokens - 1 - steps) / (seen["depth"] * steps)
            yield "beta", at, seen[f"at_{at}_ngram_tokens"] / (seen["depth"] * steps)
        yield "tokens_per_step", at, (tokens - 1) / steps
        yield "minutes", at, ms / 60_000
        yield "ms_per_token", at, ms / (tokens - 1)
        if full is not None and f"at_{at}_ms" in full:
            plain = full[f"at_{at}_ms"] / (full[f"at_{at}_tokens"] - 1)
            yield "speedup", at, plain * (tokens - 1) / ms
