"""Compute tokens per step and time per token of speculation as functions of the acceptance rate."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

ACCEPTANCES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
COLUMNS = (
    "model", "label", "budget", "context", "batch", "drafts", "draft_us", "verify_us", "keep_us", "step_us",
    "acceptance", "tokens_per_step", "us_per_token", "ratio", "breakeven_acceptance",
)  # fmt: skip
_PLACE = ["model", "label", "budget", "context", "batch"]
_STAGES = ("draft", "verify", "keep", "speculative_step")


def expected_tokens(acceptance: float, drafts: int) -> float:
    """Return the tokens that a step emits on average: the accepted drafts before the first refusal, and one more.

    ``1 + a + a^2 + ... + a^drafts``, each draft accepted with probability ``a`` whatever came before.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), equation 1.
    """
    return sum(acceptance**count for count in range(drafts + 1))


def breakeven(step_us: float, full_us: float, drafts: int) -> float:
    """Return the acceptance from which a step is faster than plain decoding; NaN where none is."""
    if step_us >= full_us * (drafts + 1):
        return float("nan")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if full_us * expected_tokens(middle, drafts) >= step_us else (middle, high)
    return high


def speculation_table(speed: pd.DataFrame) -> pd.DataFrame:
    """Tabulate time a token and ratio over full attention at several acceptances, from measured stages.

    Times are taken through their pairs: full's median over the ratio.
    """
    timed = speed[(speed["bench"] == "decode") & (speed["n"] > 0) & speed["ratio"].notna()]
    full = {
        tuple(row[name] for name in ("model", "context", "batch")): float(row["median_us"])
        for _, row in timed[(timed["label"] == "full") & (timed["stage"] == "step")].iterrows()
    }
    rows: list[dict[str, Any]] = []
    for key, found in timed[timed["stage"].isin(_STAGES)].groupby(_PLACE, sort=False):
        place = dict(zip(_PLACE, key, strict=True))
        base = full.get((place["model"], place["context"], place["batch"]))
        times = {row["stage"]: base / float(row["ratio"]) for _, row in found.iterrows()} if base else {}
        if base is None or "speculative_step" not in times:
            continue
        step, drafts = times["speculative_step"], int(json.loads(found["params"].iloc[0])["draft_tokens"])
        for acceptance in ACCEPTANCES:
            tokens = expected_tokens(acceptance, drafts)
            rows.append(
                place
                | {"drafts": drafts, "step_us": step, "acceptance": acceptance, "tokens_per_step": tokens}
                | {f"{stage}_us": times.get(stage) for stage in ("draft", "verify", "keep")}
                | {"us_per_token": step / tokens, "ratio": base * tokens / step}
                | {"breakeven_acceptance": breakeven(step, base, drafts)}
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))
