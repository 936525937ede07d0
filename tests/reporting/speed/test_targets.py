"""Targets met, missed, not measured; rows that fit and rows that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from longdecode.reporting.speed import targets
from longdecode.reporting.speed.measured import Speed, farthest, load_speed
from longdecode.reporting.speed.targets import TargetError, judge

EMPTY = pd.DataFrame()


def table(*rows: dict[str, Any]) -> Speed:
    base = {
        "bench": "decode", "model": "m", "label": "quest", "stage": "step", "context": 1024, "batch": 1, "status": "ok",
        "median_us": 4000.0, "p5_us": 3900.0, "p95_us": 4200.0, "ratio": 1.6, "ratio_low": 1.5, "ratio_high": 1.7,
        "reference": "full", "budget": "full",
    }  # fmt: skip
    return Speed(pd.DataFrame([base | row for row in rows]), EMPTY, EMPTY, EMPTY, ())


def verdict(tmp_path: Path, speed: Speed, **entry: Any) -> targets.Verdict:
    base = {"what": "w", "where": {"model": "m", "label": "quest"}, "target": "<= 5", "stretch": "<= 3", "unit": "ms"}
    path = tmp_path / "targets.yaml"
    path.write_text(yaml.safe_dump([base | entry]), encoding="utf-8")
    (found,) = judge(speed, path)
    return found


@pytest.mark.parametrize(("us", "level"), [(2900.0, "stretch"), (4000.0, "met"), (5000.0, "met"), (5001.0, "missed")])
def test_a_time_is_held_against_its_targets(tmp_path: Path, us: float, level: str) -> None:
    assert verdict(tmp_path, table({"median_us": us})).level == level


def test_a_time_is_shown_with_unit_and_spread(tmp_path: Path) -> None:
    found = verdict(tmp_path, table({}))
    assert (found.measured, found.bounds, found.target, found.stretch) == (
        "4.00 ms",
        "[3.90, 4.20]",
        "≤ 5 ms",
        "≤ 3 ms",
    )


@pytest.mark.parametrize(("ratio", "level"), [(1.7, "stretch"), (1.5, "met"), (1.49, "missed")])
def test_a_speedup_counts_upwards(tmp_path: Path, ratio: float, level: str) -> None:
    found = verdict(tmp_path, table({"ratio": ratio}), column="ratio", target=">= 1.5", stretch=">= 1.65", unit="x")
    assert (found.level, found.bounds) == (level, "[1.50, 1.70]")


@pytest.mark.parametrize(("ratio", "shown"), [(2.7954, "2.795×"), (2.8, "2.80×"), (2.7996, "2.7996×"), (2.71, "2.71×")])
def test_a_value_never_rounds_over_a_limit(tmp_path: Path, ratio: float, shown: str) -> None:
    speed = table({"ratio": ratio})
    found = verdict(tmp_path, speed, column="ratio", target=">= 2.4", stretch=">= 2.8", unit="x")
    assert (found.measured, found.level) == (shown, "stretch" if ratio >= 2.8 else "met")


def test_of_many_batches_those_are_drawn_that_reach_the_longest_contexts() -> None:
    sizes = [(1, 4096), (1, 524288), (4, 4096), (4, 131072), (8, 32768), (16, 4096), (16, 32768)]
    rows = pd.DataFrame(sizes, columns=["batch", "context"])
    assert (
        farthest(rows, 3) == [1, 4, 8] and farthest(rows[rows["batch"] > 1], 1) == [4] and farthest(rows, 9)[-1] == 16
    )
    assert farthest(rows[:0], 3) == []


def test_growth_is_a_difference_of_two_rows(tmp_path: Path) -> None:
    speed = table({"context": 4096, "median_us": 4600.0}, {"context": 1024, "median_us": 4000.0})
    where = {"model": "m", "label": "quest", "context": 4096}
    found = verdict(tmp_path, speed, where=where, minus={"context": 1024}, target="<= 0.7", stretch="<= 0.5")
    assert (found.measured, found.level) == ("0.60 ms", "met")


def test_differences_and_quotients_have_the_widest_bounds(tmp_path: Path) -> None:
    speed = table({}, {"label": "retro", "median_us": 5000.0, "p5_us": 4950.0, "p95_us": 5100.0})
    where = {"model": "m", "label": "retro"}
    more = verdict(tmp_path, speed, where=where, minus={"label": "quest"}, target="<= 1.5", stretch=None)
    assert (more.measured, more.bounds) == ("1.00 ms", "[0.75, 1.20]")
    over = verdict(tmp_path, speed, where=where, over={"label": "quest"}, target="<= 1.2", stretch=None, unit="x")
    assert (over.measured, over.bounds, over.level) == ("1.25×", "[1.18, 1.31]", "missed")


def test_a_ratio_may_be_turned_round_and_multiplied(tmp_path: Path) -> None:
    wanted = {"column": "ratio", "unit": "x", "stretch": None}
    found = verdict(tmp_path, table({}), inverse=True, target="<= 0.63", **wanted)
    assert (found.measured, found.bounds, found.level) == ("0.62×", "[0.59, 0.67]", "met")
    found = verdict(tmp_path, table({}), times=4.2, target=">= 6.8", **wanted)
    assert (found.measured, found.bounds, found.level) == ("6.72×", "[6.30, 7.14]", "missed")


def test_a_second_row_may_lack_a_column_of_the_first(tmp_path: Path) -> None:
    speed = table({"op_sizes": "hit_rate=0.9"}, {"label": "other", "op_sizes": None, "ratio": 0.8})
    where = {"model": "m", "label": "quest", "op_sizes": "hit_rate=0.9"}
    over = {"label": "other", "op_sizes": None}
    found = verdict(tmp_path, speed, where=where, over=over, column="ratio", target=">= 1.9", stretch=None, unit="x")
    assert (found.measured, found.level) == ("2.00×", "met")
    found = verdict(tmp_path, speed, where=where, over={"label": "gone"}, target=">= 1.9", stretch=None, unit="x")
    assert (found.level, found.words) == ("absent", "not measured")


@pytest.mark.parametrize("filed_with", ["peer", "ours"])
def test_a_kernel_is_held_against_its_peer_wherever_the_pair_is_filed(tmp_path: Path, filed_with: str) -> None:
    mine = {"bench": "kernel", "subject": "op", "label": "longdecode", "reference": None, "ratio": None}
    theirs = mine | {"label": "flash"}
    if filed_with == "ours":
        mine |= {"reference": "flash", "ratio": 1.25, "ratio_low": 1.0, "ratio_high": 2.0}
    else:
        theirs |= {"reference": "longdecode", "ratio": 0.8, "ratio_low": 0.5, "ratio_high": 1.0}
    speed = table(mine, theirs)
    where = {"model": "m", "subject": "op"}
    found = verdict(tmp_path, speed, where=where, against="flash", target=">= 1.2", stretch=">= 1.3", unit="x")
    assert (found.measured, found.bounds, found.level) == ("1.25×", "[1.00, 2.00]", "met")


def test_what_was_not_measured_is_said_and_not_judged(tmp_path: Path) -> None:
    assert verdict(tmp_path, table({"label": "full"})).words == "not measured"
    assert verdict(tmp_path, table({"status": "oom", "median_us": None})).words == "not measured: oom"
    found = verdict(tmp_path, table({}, {"batch": 2}))
    assert (found.level, found.words, found.measured) == ("absent", "not judged: 2 rows fit", "–")


def test_no_target_is_only_recorded(tmp_path: Path) -> None:
    found = verdict(tmp_path, table({}), target=None, stretch=None)
    assert (found.level, found.measured) == ("recorded", "4.00 ms")


def test_a_stretch_target_alone_is_met_or_put_on_record(tmp_path: Path) -> None:
    for ratio, level in ((1.2, "stretch"), (0.8, "recorded")):
        found = verdict(tmp_path, table({"ratio": ratio}), column="ratio", target=None, stretch=">= 1", unit="x")
        assert found.level == level


def test_a_step_is_held_against_the_revision_before(tmp_path: Path) -> None:
    """bench_compare.csv names no model; without the file nothing was measured."""
    entry = {"table": "compare", "column": "ratio", "target": ">= 0.99", "stretch": ">= 1.03", "unit": "x"}
    row = {"label": "quest", "status": "ok", "ratio": 1.01, "ratio_low": 0.98, "ratio_high": 1.02}
    found = verdict(tmp_path, replace(table({}), compared=pd.DataFrame([row])), **entry)
    assert (found.level, found.measured, found.bounds) == ("met", "1.01×", "[0.98, 1.02]")
    assert verdict(tmp_path, table({}), **entry).words == "not measured"


def test_the_committed_times_are_held_against_what_several_rows_may_cost() -> None:
    """By hand from speed.csv: 1 / 0.993975 for two rows, 1 / 0.709349 for a forward of 41, 1.52788 for Quest."""
    speed = load_speed(Path(__file__).parents[3] / "results" / "h200", ["full", "quest", "lychee"])
    assert speed is not None
    found = {verdict.what: (verdict.measured, verdict.level) for verdict in judge(speed)}
    assert found["Dense attention of 2 rows over one row, 64K, batch 1"] == ("1.01×", "stretch")
    assert found["Whole forward of 41 rows under a tree mask over one row, 64K, batch 1"] == ("1.41×", "met")
    assert found["Quest with 4K tokens at 128K, batch 1, over Full, no slower than before steps took blocks"] == (
        "1.528×",
        "missed",
    )
    absent = [what for what, (_, level) in found.items() if level == "absent"]
    assert all(what.startswith("RetroAttention") for what in absent), "its other windows are timed in another profile"


def test_papers_without_any_number_keep_to_their_own_page(tmp_path: Path) -> None:
    path, goal = tmp_path / "targets.yaml", {"target": "<= 5", "stretch": None, "unit": "ms"}
    entries = [
        {"what": "ran", "where": {"model": "m", "label": "quest"}, "paper": "one", **goal},
        {"what": "hole of one", "where": {"model": "m", "label": "gone"}, "paper": "one", **goal},
        {"what": "hole of two", "where": {"model": "m", "label": "gone"}, "paper": "two", **goal},
    ]
    path.write_text(yaml.safe_dump(entries), encoding="utf-8")
    assert [found.what for found in judge(table({}), path)] == ["ran", "hole of one"]
    assert [found.what for found in judge(table({}), path, "two")] == ["hole of two"]


def test_models_that_were_not_timed_have_no_targets(tmp_path: Path) -> None:
    path = tmp_path / "targets.yaml"
    entry = {"what": "w", "where": {"model": "other"}, "target": "<= 5", "stretch": None, "unit": "ms"}
    path.write_text(yaml.safe_dump([entry]), encoding="utf-8")
    assert judge(table({}), path) == []
    assert judge(table({}, {"model": "other", "bench": "ceiling"}), path) == []


def test_a_stretch_target_that_is_met_implies_its_target(tmp_path: Path) -> None:
    assert verdict(tmp_path, table({"median_us": 2900.0})).words == "stretch target met"
    with pytest.raises(TargetError, match=r"targets\.yaml: 'w'"):
        verdict(tmp_path, table({}), target="<= 3", stretch="<= 5")


@pytest.mark.parametrize("wrong", [{"target": "< 5"}, {"unit": "s"}, {"colour": "red"}])
def test_a_malformed_entry_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(TargetError, match=r"targets\.yaml: 'w'"):
        verdict(tmp_path, table({}), **wrong)


def test_a_rival_in_host_memory_has_as_many_spare_slots() -> None:
    """A target over another offloaded label compares like with like: spare slots, and attention while blocks come."""
    config = yaml.safe_load((Path(__file__).parents[3] / "config" / "offload.yaml").read_text(encoding="utf-8"))
    knobs = {label: (given or {}).get("params", {}) for label, given in config["methods"].items()}
    shipped = yaml.safe_load(targets.TARGETS_PATH.read_text(encoding="utf-8"))
    sides = [
        (entry["where"]["label"], entry["over"]["label"])
        for entry in shipped
        if entry["where"]["bench"] == "offload" and entry.get("over", {}).get("label", "").startswith("infllm2")
    ]
    assert len(sides) == 8
    for own, rival in sides:
        for name in ("spare_slots", "overlap"):
            assert knobs[own].get(name) == knobs[rival].get(name), (own, rival)


def test_the_targets_that_ship_fit_the_made_up_run(run_folder: Path) -> None:
    speed = load_speed(run_folder, ["full", "quest"])
    assert speed is not None
    shipped = yaml.safe_load(targets.TARGETS_PATH.read_text(encoding="utf-8"))
    found = judge(speed)
    models = set(speed.table["model"])
    general = [entry for entry in shipped if entry["where"]["model"] in models and not {"paper", "group"} & set(entry)]
    assert len(found) == len(general) >= 15
    papers = {entry["paper"] for entry in shipped if "paper" in entry}
    of_papers = [verdict for paper in papers for verdict in judge(speed, paper=paper)]
    assert len(judge(speed, paper="lychee")) == 3
    assert all(v.level == "absent" for v in of_papers)  # nothing of those methods was timed there
    assert all(v.level in ("stretch", "met", "missed", "recorded") for v in found), found
