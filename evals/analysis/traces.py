"""Read what selections share: between steps, between layers and along a text; and the losses of draft heads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from longdecode.evals.stats import Spread, bootstrap_interval, generator
from longdecode.evals.store import read_frame

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
