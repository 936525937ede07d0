"""Read times at equal device memory: rows of a bench, the memory that sets a batch, and ratios of two labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd

from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.staleness import is_older
from longdecode.reporting.wording import DASH, number, short_tokens

EARLIER = "†"
"""Mark of a time that was measured before its code changed."""
_PLACE = ("model", "label", "context")
"""Fields of a record and columns of a row that are one timing to a reader."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Hold two rows of one context and the ratio of their throughputs, with its interval where they are a pair."""

    mine: pd.Series
    other: pd.Series
    value: float
    low: float
    high: float

    def between(self) -> list[str]:
        """Return context, both labels and their batches."""
        mine, other = self.mine, self.other
        batches = f"{mine['batch']} over {other['batch']}"
        earlier = mine["earlier"] or other["earlier"]
        return [context_text(mine["context"], earlier), str(mine["label"]), str(other["label"]), batches]


def bench_rows(
    inputs: PaperInputs, bench: str, more: Callable[[Mapping[str, Any]], dict[str, Any]], also: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the rows of a bench that have times, by context, with their parameters as columns.

    Args:
        inputs: the run.
        bench: a bench at equal device memory.
        more: parameters of a row to further columns.
        also: fields that tell two timings of one label and context apart, for the column ``earlier``.

    Returns:
        Columns of speed.csv and: ``memory_bytes`` of all sequences, ``device_bytes`` and ``host_bytes`` of one,
        ``host_gib``; ``fetched``, bytes a token from host memory, ``early`` of them on a guess; ``earlier``, true for
        a time that was measured before its code changed.
    """
    table = pd.DataFrame() if inputs.speed is None else inputs.speed.table
    rows = table[(table["bench"] == bench) & (table["status"] == "ok")] if len(table) else table
    if rows.empty:
        return pd.DataFrame()
    params = [json.loads(text) for text in rows["params"]]
    told = pd.DataFrame([{**_told(each), **more(each)} for each in params], index=rows.index)
    place = (*_PLACE, *also)
    earlier = {
        tuple(getattr(record, name) for name in place)
        for record in inputs.results.speed_records
        if record.bench == bench and is_older(record)
    }
    marks = [each in earlier for each in rows[list(place)].itertuples(index=False, name=None)]
    marked = pd.Series(marks, index=rows.index, name="earlier")
    return pd.concat([rows, told, marked], axis=1).sort_values("context", kind="stable")


def _told(params: Mapping[str, Any]) -> dict[str, Any]:
    early = params.get("prefetched_bytes", 0)
    return {
        "memory_bytes": params.get("memory_bytes", 0),
        "device_bytes": params.get("device_bytes_per_sequence", 0),
        "host_bytes": params.get("host_bytes_per_sequence", 0),
        "host_gib": params.get("host_gib", 0),
        "early": early,
        "fetched": params.get("fetched_bytes", 0) + early,
    }


def ratios(
    steps: pd.DataFrame, rivals: tuple[str, ...], best: tuple[str, ...], alike: Mapping[str, str] = MappingProxyType({})
) -> list[Ratio]:
    """Return the ratio of the fastest of ``best`` over the fastest of ``rivals`` at each context that has both.

    A label with a rival in ``alike`` stands only where that one was timed.
    """
    found = []
    for _, here in steps.groupby("context"):
        timed = set(here["label"])
        fair = [label for label in best if alike.get(label, label) in timed]
        ours, other = here[here["label"].isin(fair)], here[here["label"].isin(rivals)]
        if ours.empty or other.empty:
            continue
        mine, theirs = (rows.sort_values("median_us").iloc[0] for rows in (ours, other))
        value, low, high = (float(mine[name]) for name in ("ratio", "ratio_low", "ratio_high"))
        if theirs["label"] != "full":  # both were timed in pairs with full attention
            value, low, high = (
                bound / float(theirs[name])
                for bound, name in ((value, "ratio"), (low, "ratio_high"), (high, "ratio_low"))
            )
        found.append(Ratio(mine, theirs, value, low, high))
    return found


def set_by(row: pd.Series, neither: str = DASH) -> str:
    """Return the memory that one sequence more would not fit into, or what is said where it would fit."""
    more = int(row["batch"]) + 1
    short = [("device", row["device_bytes"] * more > row["memory_bytes"])]
    short += [("host", row["host_bytes"] * more > row["host_gib"] * 2**30)]
    return " and ".join(name for name, is_short in short if is_short) or neither


def step_texts(row: pd.Series) -> list[str]:
    """Return a step's time in ms, and tokens a second of all sequences."""
    return [number(row["median_us"] * row["batch"] / 1e3, 2), number(1e6 / row["median_us"], 0)]


def fetch_rate(row: pd.Series) -> str:
    """Return the GB/s that come from host memory over a whole step."""
    return number(row["fetched"] / row["median_us"] / 1e3, 1) if row["fetched"] else DASH


def context_text(tokens: Any, earlier: bool) -> str:
    """Return a context, marked where its time was measured before its code changed."""
    return f"{short_tokens(int(tokens))}{f' {EARLIER}' if earlier else ''}"


def hit_text(value: Any) -> str:
    """Return a hit rate, a dash where nothing is listed."""
    return DASH if pd.isna(value) else number(float(value), 3)
