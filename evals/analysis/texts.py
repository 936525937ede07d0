"""Measure long texts at the lengths that papers print: acceptance, speed over plain decoding, minutes, diversity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from longdecode.evals.records import Record
from longdecode.evals.run_config import REFERENCE_METHOD
from longdecode.evals.stats import Spread, bootstrap_interval, generator

DISTINCT = ("distinct_1", "distinct_2", "distinct_3", "distinct_4")
UNITS = {
    "alpha": "share", "beta": "share", "speedup": "times", "tokens_per_step": "tokens", "ms_per_token": "ms",
    "minutes": "minutes", **dict.fromkeys((*DISTINCT, "average_distinct", "repeated_8"), "share"),
    "loss_full": "nats/token",
}  # fmt: skip
_WHOLE = (*DISTINCT, "repeated_8", "loss_full")
_KEYS = ["model", "task", "context", "variant", "budget", "length", "measure", "at"]


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
