"""Recommendations of pages: only what is proven is a pick; what intervals do not decide is called undecided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from longdecode.reporting.runs import joined, read_run
from longdecode.reporting.tradeoff import choose, fastest, front, smallest_budgets
from site_pages import Maker

ROW: dict[str, Any] = {
    "run": "r", "model": "m", "context": 4096, "batch": 8, "suite": "s", "task": "s", "variant": "v", "title": "V",
    "family": "selection", "budget_tokens": 512, "speed": 1.5, "loss": 0.5, "loss_low": -0.5, "loss_high": 1.5,
    "margin": 2.0, "verdict": "within", "n": 300, "unit": "points",
}  # fmt: skip


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame([ROW | row for row in rows])


def test_the_fastest_of_those_within_is_the_pick() -> None:
    found = choose(table({}, {"variant": "w", "speed": 1.8}, {"variant": "x", "speed": 3.0, "verdict": "worse"}))
    assert (found.state, found.first.variant) == ("proven", "w")


def test_a_variant_that_intervals_do_not_decide_is_never_the_pick() -> None:
    unclear = {"verdict": "cannot tell", "loss": 3.0, "loss_low": -9.0, "loss_high": 15.0, "n": 16}
    wide = {"variant": "w", "speed": 2.5} | unclear
    assert choose(table({}, wide)).first.variant == "v"
    alone = choose(table(wide))
    assert (alone.state, alone.first.variant, alone.prompts) == ("open", "w", (16, 16))


def test_one_task_that_is_worse_bars_a_variant() -> None:
    found = choose(table({}, {"suite": "t", "task": "t", "verdict": "worse", "loss": 9.0, "loss_low": 5.0}))
    assert found.state == "none" and found.rows.empty


def test_a_variant_without_a_score_on_some_task_is_no_pick() -> None:
    other = {"variant": "w", "speed": 1.2}
    found = choose(table({"speed": 2.0}, other, other | {"suite": "t", "task": "t"}))
    assert (found.state, found.first.variant) == ("proven", "w")


def test_tasks_that_say_nothing_have_no_say() -> None:
    found = choose(table({}, {"suite": "t", "task": "t", "verdict": "", "loss": 50.0}))
    assert found.state == "proven" and list(found.rows.suite) == ["s"]


def test_of_undecided_ones_the_smallest_loss_leads_and_faster_ones_follow() -> None:
    unclear = {"verdict": "cannot tell", "loss_low": -4.0, "loss_high": 12.0, "n": 32}
    found = choose(table(unclear | {"loss": 4.0, "speed": 1.9}, unclear | {"variant": "w", "loss": 1.0, "speed": 1.2},
                         unclear | {"variant": "x", "loss": 5.0, "speed": 1.3}))  # fmt: skip
    assert (found.state, found.first.variant) == ("open", "w")
    assert [part.variant.iloc[0] for part in found.others] == ["v"]


def test_an_interval_above_the_margin_is_no_candidate() -> None:
    found = choose(table({"verdict": "cannot tell", "loss": 10.0, "loss_low": 2.5, "loss_high": 19.0, "n": 64}))
    assert found.state == "none"


@pytest.mark.parametrize("change", [{"speed": 0.9}, {"family": "reference"}])
def test_what_is_not_faster_or_a_reference_is_no_pick(change: dict[str, Any]) -> None:
    assert choose(table(change)).state == "none"


def test_the_fastest_variant_is_shown_where_it_loses_most() -> None:
    rows = table(
        {"speed": 3.0}, {"speed": 3.0, "suite": "t", "task": "t", "loss": 40.0}, {"variant": "w", "loss": 90.0}
    )
    found = fastest(rows)
    assert found is not None and (found.variant, found.loss) == ("v", 40.0) and fastest(table({"speed": 0.5})) is None


def test_the_front_has_what_none_beats_in_both() -> None:
    rows = table({"variant": "a", "speed": 1.2, "loss": 0.0}, {"variant": "b", "speed": 2.0, "loss": 5.0},
                 {"variant": "c", "speed": 1.5, "loss": 9.0}, {"variant": "d", "speed": 0.8, "loss": -1.0},
        {"variant": "e", "speed": 1.1, "loss": 3.0})  # fmt: skip
    assert list(front(rows).variant) == ["a", "b"]


def test_the_smallest_budget_is_proven_open_or_none(folder: Maker) -> None:
    some = [("quest", "256", "worse"), ("quest", "512", "within"), ("quest", "999", "within"), ("duo", "512", "within")]
    some += [("tova_a", "512", "worse"), ("h2o", "256", "worse"), ("h2o", "512", "cannot tell")]
    budgets = [*some, ("quest_a", "9", "within")]
    run = read_run(folder(
        [{"a": v, "budget": b, "verdict": verdict} for v, b, verdict in budgets],
        [{"variant": v, "method": v.partition("_")[0], "budget": b, "budget_tokens": int(b),
          "params": '{"share": 0.15}' if v == "duo" else "{}"} for v, b, _ in budgets], [],
    ))  # fmt: skip
    found = smallest_budgets(run).set_index("variant")
    assert dict(found.state) == {"quest": "holds", "tova_a": "fails", "h2o": "open"}
    assert found.budget_tokens["quest"] == 512


def test_quality_and_speed_of_one_row_are_of_one_budget(small: Path) -> None:
    rows = joined(read_run(small)).set_index("variant")
    assert rows[["speed", "loss"]].T.to_dict("list") == {"quest": [1.5, 1.0], "snapkv": [2.5, 30.0]}
    speed, changes = pd.read_csv(small / "speed.csv"), ({"budget_tokens": 513}, {"params": '{"share": 0.15}'})
    for change in changes:  # another budget; one that grows
        speed.assign(**change).to_csv(small / "speed.csv", index=False)
        assert joined(read_run(small)).empty
