"""The front of loss and speed: joined on the same variant, budget and context, drawn over prompts and rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from longdecode.evals.analysis.cells import all_cells, scored_cells
from longdecode.evals.analysis.comparisons import pareto_table
from longdecode.evals.analysis.measures import memory_bounds
from longdecode.evals.records import Record, SpeedRecord, SpeedSample
from longdecode.evals.stats import Spread

Make = Callable[..., Record]


@pytest.fixture
def step(make_record: Make) -> Callable[..., SpeedRecord]:
    """Make the record of a decode step that is ``ratio`` times as fast as full attention's, over six rounds."""

    def make(variant: str, ratio: float, **changes: Any) -> SpeedRecord:
        shared = make_record().model_dump(include={"profile", "model", "params", "context", "seed", "provenance"})
        budget = {"budget": "full", "budget_tokens": None} if variant == "full" else {
            "budget": "256", "budget_tokens": 256,
        }  # fmt: skip
        samples = [SpeedSample(us=100.0 + i, reference_us=ratio * (100.0 + i)) for i in range(6)]
        fields = shared | budget | {
            "bench": "decode", "weights": "checkpoint", "method": variant, "variant": variant, "stage": "step",
            "batch": 1, "status": "ok", "samples": samples, "reference": "full", "bytes_min": 1000,
        }  # fmt: skip
        return SpeedRecord(**(fields | changes))

    return make


@pytest.fixture
def cells(make_record: Make) -> dict[Any, Any]:
    """60 prompts of one task: Quest loses none, TOVA four, H2O as many as TOVA and eight more."""
    lost = {"full": 0, "quest": 0, "tova": 4, "h2o": 12}
    records = [
        make_record(variant=v, method=v, sample_index=i, prompt_sha256=str(i), score=float(i >= lost[v]),
                    **({} if v == "full" else {"budget": "256", "budget_tokens": 256}))
        for v in lost for i in range(60)
    ]  # fmt: skip
    return dict(scored_cells(all_cells(records)))


def shares(table: pd.DataFrame) -> dict[str, float]:
    return dict(zip(table["variant"], table["front_share"], strict=True))


def test_loss_and_speed_of_one_variant_stand_in_one_row(cells: Any, step: Any) -> None:
    timed = [step("full", 1.0), step("quest", 1.5), step("tova", 2.0), step("h2o", 1.2)]
    table = pareto_table(cells, timed, Spread(0.95, 100, 0))
    row = table[table["variant"] == "tova"].iloc[0]
    assert (row["task"], row["n"], row["unit"], row["batch"]) == ("mini_longgen_45", 60, "points", 1)
    assert row["loss"] == pytest.approx(400 / 60) and row["times_full"] == pytest.approx(2.0)
    found = shares(table)
    assert found["tova"] == 1.0 and found["quest"] == pytest.approx(1.0, abs=0.05)  # a draw may hold no lost prompt
    assert found["h2o"] == pytest.approx(0.0, abs=0.02), "Quest loses less and is faster in every draw"


def test_a_slower_loser_is_beaten_by_full_attention(cells: Any, step: Any) -> None:
    found = shares(pareto_table(cells, [step("tova", 0.9)], Spread(0.95, 100, 0)))
    # Full beats it unless a draw holds none of the four prompts that it lost.
    assert found == {"tova": pytest.approx(0.0)}


def test_another_budget_context_or_parameter_is_no_time_of_the_variant(cells: Any, step: Any) -> None:
    others = [step("quest", 2.0, budget="512", budget_tokens=512), step("quest", 2.0, context=4096),
              step("quest", 2.0, params={"page": 32}), step("quest", 2.0, stage="prefill")]  # fmt: skip
    assert pareto_table(cells, others, Spread(0.95, 100, 0)).empty
    assert np.allclose(pareto_table(cells, [step("quest", 2.0)], Spread(0.95, 100, 0))["times_full"], 2.0)


def test_memory_traffic_bounds_a_speed(step: Any) -> None:
    timed = [step("full", 1.0, bytes_min=3000), step("quest", 1.4, bytes_min=2000), step("quest", 1.4, batch=8)]
    (row,) = memory_bounds(timed)
    assert (row["measure"], row["variant"], row["value"], row["batch"]) == ("memory_bound", "quest", 1.5, 1)
