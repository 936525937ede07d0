"""Numbers that stood before there was one analysis: summaries, and pairs as the papers' pages showed them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from longdecode.evals.analysis.comparisons import comparisons_table
from longdecode.evals.analysis.declaration import load_declarations
from longdecode.evals.analysis.measures import measures_table
from longdecode.evals.records import Record
from longdecode.evals.store import read_folder
from longdecode.evals.summary import Spread

ROOT = Path(__file__).parents[3]
REQUESTS = [request for paper in load_declarations(ROOT / "reporting" / "papers").values() for request in paper.pairs]
SPREAD = Spread(0.95, 100, 0)


@pytest.fixture(scope="module")
def nosa() -> pd.DataFrame:
    records = read_folder(ROOT / "results" / "nosa" / "records", Record)
    return comparisons_table(records, REQUESTS, {}, SPREAD)


def test_differences_to_full_are_those_of_the_summary(nosa: pd.DataFrame) -> None:
    summary = pd.read_csv(ROOT / "results" / "nosa" / "summary.csv", low_memory=False)
    summary = summary[summary["diff_to_full"].notna()]
    ours = nosa[(nosa["b"] == "full") & (nosa["b_model"] == nosa["model"])].rename(columns={"a": "variant"})
    both = summary.merge(ours, on=["model", "suite", "task", "context", "batch", "variant", "budget"])
    scale = np.where(both["unit_y"] == "points", 0.01, 1)
    tasks = both["task"] != "all"  # a suite's mean leaves out the tasks that Full cannot do
    assert len(both) == len(summary) > 100
    assert np.allclose((scale * both["difference"])[tasks], both["diff_to_full"][tasks], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("suite", "b", "b_model", "points"),
    [
        ("mini_longgen", "infllm2", "fork-infllm2", -0.3),
        ("mini_longgen", "dma", "fork-dma", 40.9),
        ("mini_longgen", "infllm2", "fork-full", 8.1),
        ("mini_longgen", "shadowkv_equal_longgen", "fork-full", 61.3),
        ("mini_recall", "infllm2", "fork-infllm2", -5.3),
        ("mini_recall", "quest_equal_lookups", "fork-full", 35.5),
        ("ruler", "infllm2", "fork-infllm2", 3.3),
        ("ruler", "dma", "fork-dma", 47.7),
        ("ruler", "shadowkv_equal_ruler", "fork-full", 11.7),
        ("ruler", "nosa", "fork-nosa-s-dma-head", 2.0),
    ],
)
def test_pairs_of_forks_are_those_that_the_page_of_nosa_showed(
    nosa: pd.DataFrame, suite: str, b: str, b_model: str, points: float
) -> None:
    rows = nosa[(nosa["a"] == "nosa") & (nosa["model"] == "fork-nosa") & (nosa["suite"] == suite)]
    rows = rows[(rows["b"] == b) & (rows["b_model"] == b_model) & rows["task"].isin(["all", "mini_longgen_45"])]
    assert rows["difference"].tolist() == pytest.approx([points], abs=0.051)
    assert rows["verdict"].tolist() == ["cannot tell"]  # one training of each


def test_measures_are_those_that_pages_showed() -> None:
    offload = measures_table(ROOT / "results" / "offload", [], REQUESTS, {}, SPREAD)
    at = offload[(offload["measure"] == "times_as_fast") & (offload["context"] == 65536)]
    shown = at[(at["variant"] == "nosa_overlap32") & (at["setting"] == "hit_rate=0.944")].set_index("over")["value"]
    assert shown["infllm2_overlap32"] == pytest.approx(1.36, abs=0.006)
    assert shown["shadowkv"] == pytest.approx(2.93, abs=0.006)
    retro = measures_table(ROOT / "results" / "retro", [], REQUESTS, {}, SPREAD)
    more = retro[(retro["measure"] == "extra_ms") & (retro["context"] == 131072) & (retro["over"] == "quest")]
    more = more.set_index(["variant", "batch"])["value"]
    assert [more["retro", 1], more["retro", 4], more["retro_w8", 1], more["retro_w8", 4]] == pytest.approx(
        [0.27, 0.13, 0.70, 0.97], abs=0.006
    )
    texts = measures_table(ROOT / "results" / "tokenswift", [], [], {}, SPREAD)
    whole = texts[(texts["length"] == 102400) & (texts["at"] == 102400) & (texts["task"] == "minp")]
    whole = whole[(whole["variant"] == "tokenswift") & (whole["context"] == 4096)].set_index("measure")["value"]
    assert whole["speedup"] == pytest.approx(0.58, abs=0.006)


def test_over_its_reference_a_step_has_the_ratio_of_the_speed_table() -> None:
    speed = pd.read_csv(ROOT / "results" / "offload" / "speed.csv", low_memory=False)
    speed = speed[(speed["variant"] == "nosa_offload") & (speed["stage"] == "step")]
    from longdecode.evals.analysis.pairs import PairRequest

    found = measures_table(
        ROOT / "results" / "offload", [], [PairRequest(a=("nosa_offload",), b="full")], {}, Spread(0.95, 100, 0)
    )
    ratios = found[found["measure"] == "times_as_fast"]["value"]
    assert sorted(ratios) == pytest.approx(sorted(speed["ratio"]), rel=1e-5)
