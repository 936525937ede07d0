"""Comparisons and the front of loss and speed against hand enumeration: pairing, families of Holm, failed tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

from longdecode.analysis import comparisons
from longdecode.analysis.cells import CellError, all_cells, require_alike, scored_cells
from longdecode.analysis.comparisons import COLUMNS, comparisons_table, over_trainings, pareto_table
from longdecode.analysis.declaration import PairRequest
from longdecode.analysis.measures import memory_bounds, window_traffic
from longdecode.evals.records import Record, SpeedRecord, SpeedSample
from longdecode.evals.stats import Spread, bootstrap_interval, holm

SPREAD = Spread(0.95, 500, 0)
Make = Callable[..., Record]


@pytest.fixture
def cell(make_record: Make) -> Callable[..., list[Record]]:
    """Make the records of a cell, one a score; prompts are those of the same task and number."""

    def make(scores: list[float], variant: str = "full", read: float = 1000.0, **changes: Any) -> list[Record]:
        task = changes.setdefault("task", "mini_recall_multikey")
        changes.setdefault("budget", "full" if variant == "full" else "256")
        changes.setdefault("method", variant)
        return [
            make_record(variant=variant, sample_index=i, score=score, measures={"kv_tokens_read": read},
                        prompt_sha256=f"{task}-{i}", **changes)
            for i, score in enumerate(scores)
        ]  # fmt: skip

    return make


def compare(
    records: list[Record], requests: Sequence[PairRequest] = (), pools: Mapping[str, Sequence[str]] | None = None
) -> pd.DataFrame:
    return comparisons_table(scored_cells(all_cells(records)), requests, pools or {}, SPREAD)


def only(table: pd.DataFrame, **where: Any) -> pd.Series:
    for name, value in where.items():
        table = table[table[name] == value]
    assert len(table) == 1, table
    return table.iloc[0]


def test_differences_are_paired_and_in_points(cell: Callable[..., list[Record]]) -> None:
    full, quest = [1.0] * 30 + [0.0] * 10, [1.0] * 18 + [0.0] * 22
    table = compare([*cell(full), *cell(quest, "quest")])
    row = only(table)
    assert tuple(table.columns) == COLUMNS
    assert (row["a"], row["b"], row["n"], row["unit"], row["margin"]) == ("quest", "full", 40, "points", 2.0)
    assert (row["a_value"], row["b_value"], row["difference"]) == (45.0, 75.0, -30.0)
    assert row["low"] < -30 < row["high"] < 0
    assert (row["verdict"], row["status"], row["better"]) == ("worse", "ok", "higher")


def test_samples_that_one_side_lacks_are_left_out(cell: Callable[..., list[Record]]) -> None:
    table = compare([*cell([1.0] * 20), *cell([0.0] * 12, "quest")])
    assert (only(table)["n"], only(table)["difference"]) == (12, -100.0)


def test_another_prompt_under_one_number_is_refused(cell: Callable[..., list[Record]]) -> None:
    other = [r.model_copy(update={"prompt_sha256": "x"}) for r in cell([1.0], "quest")]
    with pytest.raises(CellError, match="another prompt on each side"):
        compare([*cell([1.0]), *other])


def test_samples_of_one_prompt_are_one_unit(cell: Callable[..., list[Record]]) -> None:
    same = {"prompt_sha256": "one"}
    row = only(compare([r.model_copy(update=same) for r in [*cell([1.0] * 4), *cell([0.0, 1.0, 0.0, 1.0], "quest")]]))
    assert (row["n"], row["difference"], row["verdict"]) == (1, -50.0, "cannot tell")


def test_holm_is_over_the_variants_of_a_table(cell: Callable[..., list[Record]]) -> None:
    rng = np.random.default_rng(5)
    records = cell([1.0] * 60)
    for variant in ("quest", "tova", "h2o"):
        records += cell([float(x) for x in rng.random(60) < 0.9], variant)
    records += cell([0.0] * 60, "quest", budget="512")
    table = compare(records)
    family = table[table["budget"] == "256"]
    assert family["p_holm"].tolist() == pytest.approx(holm(family["p"].tolist()))
    assert only(table, budget="512")["p_holm"] == only(table, budget="512")["p"]


def test_papers_pairs_stand_beside_those_with_full(cell: Callable[..., list[Record]]) -> None:
    records = [*cell([1.0] * 12), *cell([0.5] * 12, "quest"), *cell([0.75] * 12, "retro")]
    records += cell([0.25] * 12, "quest", model="fork")
    asked = [PairRequest(a=("retro",), b="quest"), PairRequest(a=("retro",), b="quest", b_model="fork")]
    table = compare(records, asked)
    found = table[table["b"] == "quest"].set_index("b_model")["difference"].to_dict()
    assert found.pop("fork") == 50.0 and list(found.values()) == [25.0]


def test_a_task_that_full_cannot_do_is_in_no_verdict_and_no_mean(cell: Callable[..., list[Record]]) -> None:
    records = []
    for task, share in (("mini_recall_multikey", 80), ("mini_recall_two_hop", 12), ("passkey_depth_0", 72)):
        full, window = [1.0] * share + [0.0] * (80 - share), [0.0] * 72 + [1.0] * 8
        for variant, scores, read in (
            ("full", full, 1000.0),
            ("streaming", window, 100.0),
            ("quest", full[::-1], 100.0),
        ):
            records += cell(scores, variant, read, task=task, suite="mini_recall")
    table = compare(records)
    failed = only(table, a="quest", task="mini_recall_two_hop")
    assert failed["status"] == "baseline_fails" and pd.isna(failed["verdict"]) and np.isnan(failed["p_holm"])
    kept = table[(table["a"] == "quest") & table["task"].isin(["mini_recall_multikey", "passkey_depth_0"])]
    mean = only(table, a="quest", task="all")
    assert mean["n"] == 160 and mean["difference"] == pytest.approx(kept["difference"].mean())


def test_a_task_that_fits_the_window_is_short_and_one_below_half_has_a_low_ceiling(
    cell: Callable[..., list[Record]],
) -> None:
    low = [1.0] * 12 + [0.0] * 28
    assert only(compare([*cell(low), *cell([0.0] * 40, "streaming", 950.0)]))["status"] == "short"
    assert only(compare([*cell(low), *cell([0.0] * 40, "streaming", 100.0)]))["status"] == "low_ceiling"


def test_of_a_loss_higher_is_worse(cell: Callable[..., list[Record]]) -> None:
    rng = np.random.default_rng(2)
    loss = rng.normal(2.0, 0.3, 30)
    as_loss: dict[str, Any] = {"unit": "nats/token", "higher_is_better": False, "metric": "loss"}
    records = cell(loss.tolist(), **as_loss) + cell((loss + 0.1).tolist(), "quest", **as_loss)
    row = only(compare(records))
    assert row["difference"] == pytest.approx(0.1) and (row["verdict"], row["margin"]) == ("worse", 0.02)


def test_a_pool_is_the_mean_over_its_tasks(cell: Callable[..., list[Record]]) -> None:
    records = []
    for task, value in (("mini_longgen_15", 0.5), ("mini_longgen_45", 0.9)):
        records += cell([1.0] * 12, task=task, suite="mini_longgen")
        records += cell([value] * 12, "quest", task=task, suite="mini_longgen")
    table = compare(records, [], {"both": ["mini_longgen_15", "mini_longgen_45"]})
    assert only(table, task="both")["difference"] == pytest.approx(-30.0)


def test_a_variant_that_lacks_a_task_has_no_mean(cell: Callable[..., list[Record]]) -> None:
    records = cell([0.5] * 12, "quest", task="mini_longgen_15", suite="mini_longgen")
    for task in ("mini_longgen_15", "mini_longgen_45"):
        records += cell([1.0] * 12, task=task, suite="mini_longgen")
        records += cell([0.25] * 12, "tova", task=task, suite="mini_longgen")
    found = compare(records)
    assert set(found.loc[found["task"] == "all", "a"]) == {"tova"}


def test_forks_of_one_training_each_tell_nothing(cell: Callable[..., list[Record]]) -> None:
    records = cell([0.0] * 60, "nosa", model="fork-nosa") + cell([1.0] * 60, model="fork-full")
    row = only(compare(records, [PairRequest(a=("nosa",), b="full", b_model="fork-full")]))
    assert (row["status"], row["verdict"], row["difference"]) == ("one_training", "cannot tell", -100.0)


FULLS, FORKS = "full0 + full1", "nosa0 + nosa1"


def forks(cell: Callable[..., list[Record]], *right: tuple[str, str, int], of: int = 200) -> list[Record]:
    """Records of 200 prompts on each model, ``(variant, model, right answers)``."""
    return [r for variant, model, n in right for r in cell([1.0] * n + [0.0] * (of - n), variant, model=model)]


def test_two_trainings_of_each_side_are_pooled_and_their_spread_is_in_the_interval(
    cell: Callable[..., list[Record]],
) -> None:
    asked = [PairRequest(a=("nosa",), a_model=FORKS, b="full", b_model=FULLS)]
    near = forks(cell, ("full", "full0", 160), ("full", "full1", 160), ("nosa", "nosa0", 75), ("nosa", "nosa1", 85))
    row = only(compare(near, asked), model=FORKS)
    assert (row["status"], row["n"], row["a_value"], row["difference"]) == ("ok", 200, 40.0, -40.0)
    # One side's means are 37.5 and 42.5: Student's t of one degree of freedom; prompts alone give 7 points each way.
    assert (row["low"], row["high"]) == pytest.approx((-40 - 12.706 * 2.5, -40 + 12.706 * 2.5), abs=0.01)
    assert row["p"] == pytest.approx(2 * student.sf(16, 1)) and row["verdict"] == "worse"
    far = forks(cell, ("full", "full0", 160), ("full", "full1", 160), ("nosa", "nosa0", 60), ("nosa", "nosa1", 100))
    row = only(compare(far, asked), model=FORKS)
    assert row["difference"] == -40.0 and row["high"] > 0 and row["verdict"] == "cannot tell"


def test_on_the_same_forks_prompts_alone_count_and_a_checkpoint_has_no_spread(
    cell: Callable[..., list[Record]],
) -> None:
    full = [("full", "full0", 160), ("full", "full1", 120), ("full", "base", 170)]
    records = forks(cell, *full, ("quest", "full0", 130), ("quest", "full1", 90))
    table = compare(records, [PairRequest(a=("full",), a_model=FULLS, b="full", b_model="base")])
    same = only(table, a="quest", model=FULLS)
    assert same["difference"] == pytest.approx(-15.0) and -22 < same["low"] < same["high"] < -8
    checkpoint = only(table, a="full")
    assert checkpoint["difference"] == -15.0 and checkpoint["high"] == pytest.approx(-15 + 12.706 * 10, rel=1e-3)


def test_one_training_has_no_mean_other_prompts_are_refused_and_a_mean_names_those_that_ran(
    cell: Callable[..., list[Record]],
) -> None:
    asked = [PairRequest(a=("nosa",), a_model=FORKS, b="full", b_model=FULLS)]
    records = forks(cell, ("full", "full0", 9), ("full", "full1", 9), ("nosa", "nosa0", 9), of=12)
    assert compare(records, asked).empty
    other = [r.model_copy(update={"prompt_sha256": "x"}) for r in forks(cell, ("nosa", "nosa1", 9), of=12)]
    with pytest.raises(CellError, match=r"nosa0/nosa and nosa1/nosa.*another prompt"):
        compare(records + other, asked)
    three = [PairRequest(a=("nosa",), a_model=f"{FORKS} + nosa2", b="full", b_model=f"{FULLS} + full2")]
    row = only(compare(records + forks(cell, ("nosa", "nosa1", 3), of=12), three), model=FORKS)
    assert (row["b_model"], row["a_value"], row["difference"]) == (FULLS, 50.0, -25.0)


@pytest.mark.parametrize("spreads", [(0, 0), (0.5, 0.5), (1, 1), (3, 3), (1, 0), (3, 0.3)], ids=str)
@pytest.mark.parametrize("trainings", [2, 3])
def test_an_interval_over_trainings_covers_no_difference(spreads: tuple[float, float], trainings: int) -> None:
    """Spreads are in standard errors over 60 prompts of a difference of two trainings; 0.93 of 400 at least."""
    rng, prompts, held = np.random.default_rng(3), 60, 0
    for _ in range(400):
        hard = rng.normal(0, 1, prompts)
        ours, theirs = (
            hard + rng.normal(0, spread * (2 / prompts) ** 0.5, (trainings, 1)) + rng.normal(0, 1, (trainings, prompts))
            for spread in spreads
        )
        gaps = ours.mean(axis=0) - theirs.mean(axis=0)
        found = bootstrap_interval([gaps], Spread(0.95, 300, 0), rng)
        found, _ = over_trainings(found, [ours.mean(axis=1), theirs.mean(axis=1)], 0.95)
        held += found.low <= 0 <= found.high
    assert held >= 372


def test_other_weights_under_one_name_are_refused(cell: Callable[..., list[Record]]) -> None:
    full, quest = cell([1.0, 1.0]), cell([1.0, 1.0], "quest")
    require_alike([*full, *quest])
    origin = quest[0].provenance.model_copy(update={"model_hash": "other"})
    changed = [r.model_copy(update={"provenance": origin}) for r in quest]
    with pytest.raises(CellError, match=r"tiny/quest.* weights"):
        require_alike([*full, *changed])


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
    # Full beats it unless a draw holds none of the four prompts that it lost.
    assert shares(pareto_table(cells, [step("tova", 0.9)], Spread(0.95, 100, 0))) == {"tova": pytest.approx(0.0)}


def test_another_budget_context_or_parameter_is_no_time_of_the_variant(cells: Any, step: Any) -> None:
    others = [step("quest", 2.0, budget="512", budget_tokens=512), step("quest", 2.0, context=4096),
              step("quest", 2.0, params={"page": 32}), step("quest", 2.0, stage="prefill")]  # fmt: skip
    assert pareto_table(cells, others, Spread(0.95, 100, 0)).empty
    shape = step("quest", 3.0, model="llama3-8b", weights="random", params={"page": 32})
    table = pareto_table(cells, [step("quest", 2.0), shape], Spread(0.95, 100, 0)).set_index("steps_of")
    assert np.allclose(table["times_full"], [2.0, 3.0]) and table.index[1] == "llama3-8b"


def test_ranks_and_printed_orders(cell: Callable[..., list[Record]], tmp_path: Path) -> None:
    """Quest and TOVA lose one prompt each, of different tasks; H2O loses half of one task and more of the other."""
    lost = {"full": (0, 0), "quest": (0, 1), "tova": (1, 0), "h2o": (30, 40)}
    tasks = ("mini_recall_multikey", "mini_recall_single")
    cells = scored_cells(all_cells([
        r for variant, by_task in lost.items() for task, n in zip(tasks, by_task, strict=True)
        for r in cell([0.0] * n + [1.0] * (60 - n), variant, task=task, suite="mini_recall")
    ]))  # fmt: skip
    ranks = comparisons.ranks_table(cells, SPREAD).set_index("variant")
    assert ranks[["rank_low", "rank_high", "worst_low", "worst_high"]].T.to_dict("list") == {
        "quest": [1, 2, 1, 2], "tova": [1, 2, 1, 2], "h2o": [3, 3, 3, 3]
    }  # fmt: skip
    assert ranks.worst_task.to_dict() == {"quest": tasks[1], "tova": tasks[0], "h2o": tasks[1]}
    printed = {"suite": "mini_recall", "printed": {"h2o": "9", "quest": "8", "tova": "7"}}
    place, path = {"context": next(iter(cells)).context, "budget": "256"}, tmp_path / "orders.yaml"
    path.write_text(json.dumps({"run": "p", **place, "sources": {"x": printed}}))
    orders = comparisons.orders_table(path, cells, "p", SPREAD)
    assert orders.outcome.tolist() == ["reversed", "reversed", "cannot tell"] and orders.n.tolist() == [120] * 3
    assert orders.a_loss.iloc[0] == pytest.approx(100 * 70 / 120)
    assert comparisons.orders_table(path, cells, "q", SPREAD).empty, "another run answers"


def test_memory_traffic_bounds_a_speed(step: Any) -> None:
    timed = [step("full", 1.0, bytes_min=3000), step("quest", 1.4, bytes_min=2000), step("quest", 1.4, batch=8)]
    (row,) = memory_bounds(timed)
    assert (row["measure"], row["variant"], row["value"], row["batch"]) == ("memory_bound", "quest", 1.5, 1)


def test_a_windows_traffic_is_counted_as_in_print(step: Any) -> None:
    (row,) = window_traffic([step("retro", 1.4, model="llama3-8b", params={"share": 0.15, "window": 4})])
    quest, past = 2 * 8 * (0.15 * 4096 + 4096 / 16) + 2 * 32, 3 * 32 + 2 * 8
    assert row["value"] == pytest.approx(100 * 3 * past / quest) and row["variant"] == "retro"
