"""Read what selections share: between steps, between layers and along a text; and the losses of draft heads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from longdecode.evals.analysis.intervals import Floats, percentile_bootstrap
from longdecode.evals.stats import generator
from longdecode.evals.store import read_frame
from longdecode.evals.summary import Spread

_SHARES = {"gamma": "hit_rate", "gamma_free": "hit_rate_without_forced", "union": "union"}
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
    table = pd.read_csv(path)
    names = [*_SHARES, *(name for name in table.columns if name.startswith("misses_"))]
    means = {label: rows.groupby("document")[names].mean() for label, rows in table.groupby("label", sort=False)}
    first = {label: rows.iloc[0] for label, rows in table.groupby("label", sort=False)}
    for label, by_text in means.items():
        row = _place(first[label])
        for name in names:
            if by_text[name].notna().all():
                kind, scale, at = _named(name)
                found = _mean(scale * by_text[name].to_numpy(), spread, (label, name))
                yield row | found | {"measure": kind, "at": at, "unit": "percent" if at is None else "blocks"}
        worst = table.loc[table["label"] == label, "worst"].min()
        yield row | {"measure": "hit_rate_worst", "value": 100 * worst, "unit": "percent", "n": len(by_text)}
        for other, theirs in means.items():
            for name in ("gamma", "gamma_free") if other != label else ():
                lead = 100 * (by_text[name] - theirs[name]).dropna().to_numpy()
                found = _mean(lead, spread, (label, other, name))
                yield row | found | {"measure": f"{_SHARES[name]}_lead", "over": other, "unit": "points"}


def layer_overlaps(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lowest and highest overlap with the layer below, within the layer whose heads differ most.

    Args:
        path: a run's overlap.csv; nothing where there is none.
    """
    if not path.is_file():
        return
    table = pd.read_csv(path)
    for place, rows in table.groupby(["model", "task", "context", "k_tokens", "head_kind"], sort=False):
        heads = rows.groupby(["layer", "head"])["mean_overlap"].mean()
        layers = [values for _, values in heads.groupby("layer")]
        values = max(layers, key=lambda values: float(values.max() - values.min()))
        model, task, context, k_tokens, kind = place
        for bound, value in (("lowest", values.min()), ("highest", values.max())):
            yield {
                "measure": f"layer_overlap_{bound}", "model": model, "task": task, "context": context,
                "setting": kind, "at": k_tokens, "n": int(rows["n"].max()), "value": 100 * float(value),
                "unit": "percent", "source": path.name,
            }  # fmt: skip


def selection_traces(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield overlap of selections and effective budget by steps apart, as the run measured them.

    Args:
        folder: a run's retrospection; nothing where there is none.
    """
    for path in sorted(folder.glob("*.parquet")):
        table = read_frame(path)
        for row in table[(table["layer"] < 0) & table["measure"].str.startswith(_TRACED)].to_dict("records"):
            share = str(row["measure"]).startswith("overlap")
            scale = 100.0 if share else 1.0
            yield {
                "measure": row["measure"], "model": row["model"], "variant": row["label"], "task": row["task"],
                "context": row["context"], "budget": row["budget"], "at": row["index"], "n": row["n"],
                **{name: scale * row[name] for name in ("value", "low", "high")},
                "unit": "percent" if share else "", "source": f"{folder.name}/{path.name}",
            }  # fmt: skip


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


def _place(first: pd.Series) -> dict[str, Any]:
    return {
        "model": first["model"], "variant": first["label"], "task": first["text"], "context": first["context"],
        "budget": str(first["budget"]), "source": "locality.csv",
    }  # fmt: skip


def _named(column: str) -> tuple[str, float, int | None]:
    """Return the measure, scale and slots of a column."""
    return (_SHARES[column], 100.0, None) if column in _SHARES else ("misses", 1.0, int(column.removeprefix("misses_")))


def _mean(values: Floats, spread: Spread, identity: tuple[object, ...]) -> dict[str, Any]:
    rng = generator(spread.seed, "overlap", *identity)
    found = percentile_bootstrap([np.asarray(values)], spread.confidence, spread.resamples, rng)
    return {"n": len(values), "value": found.value, "low": found.low, "high": found.high}
