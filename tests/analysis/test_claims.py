"""Looking numbers up, and the one word for what came out of a claim."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from longdecode.analysis import declaration, measures
from longdecode.analysis.stage import claim_verdict, claims_table

PAPERS = Path(__file__).parents[2] / "reporting" / "papers"
LYCHEE = declaration.load_declarations(PAPERS)["lychee"]
MEASURES = pd.DataFrame(
    {
        "measure": "alpha", "variant": ["a", "a", "b", "c"], "context": [4096, 4096, 4096, 8192],
        "length": [10, 20, 20, 1048576], "value": [0.1, 0.2, 0.3, None], "low": [0.0, 0.1, 0.2, None],
        "high": [0.2, 0.3, 0.4, None], "n": [1, 2, 3, None], "unit": "share",
    }
)  # fmt: skip


@pytest.fixture
def tables() -> declaration.Tables:
    return declaration.Tables({"measures": MEASURES})


def query(where: dict[str, Any], **given: Any) -> declaration.Query:
    return declaration.Query(table="measures", where=where, **given)


def test_one_row_is_found_by_values_of_any_type(tables: declaration.Tables) -> None:
    found = tables.find(query({"variant": "b", "context": 4096}))
    assert found is not None
    assert (found.value, found.low, found.high, found.n, found.unit) == (0.3, 0.2, 0.4, 3, "share")
    assert tables.find(query({"variant": "b", "context": "4096"})) == found


def test_of_several_the_longest_the_best_or_the_one_named_first(tables: declaration.Tables) -> None:
    values = [
        tables.find(query({"variant": "a"}, longest="length")),
        tables.find(query({}, best="highest")),
        tables.find(query({}, best="lowest")),
        tables.find(query({"length": 20, "variant": ["z", "b", "a"]})),
    ]
    assert [found.value for found in values if found] == [0.2, 0.3, 0.1, 0.3]


def test_an_ambiguous_query_and_an_unknown_column_are_refused(tables: declaration.Tables) -> None:
    with pytest.raises(
        declaration.AmbiguousQueryError, match=r"2 rows of measures.csv fit; they differ in length, value"
    ):
        tables.find(query({"variant": "a"}))
    with pytest.raises(declaration.QueryError, match="has no column window"):
        tables.find(query({"window": 2}))


def test_rows_without_a_number_and_missing_tables_are_nothing(tables: declaration.Tables) -> None:
    assert tables.find(query({"variant": "c"})) is None
    assert tables.find(declaration.Query(table="speed", where={"variant": "full"})) is None


def test_scores_are_shown_in_points_and_gains_relative_to_b() -> None:
    score = {"variant": "full", "value": 0.5, "low": 0.4, "high": 0.6, "n": 9, "unit": "fraction", "right": 4.5}
    pair = {"a": "retro", "b_value": 50.0, "difference": 5.0, "low": -1.0, "high": 11.0, "n": 9, "unit": "points"}
    both = declaration.Tables({"summary": pd.DataFrame([score]), "comparisons": pd.DataFrame([pair])})
    found = [both.find(declaration.Query(table="summary", column=column)) for column in (None, "right")]
    gain = both.find(declaration.Query(table="comparisons", where={"a": "retro"}, relative=True))
    assert [(f.value, f.unit) for f in found if f] == [(50.0, "points"), (4.5, "questions")]
    assert gain is not None and (gain.value, gain.low, gain.high, gain.unit) == (10.0, -2.0, 22.0, "percent")
    nothing = declaration.Tables({"comparisons": pd.DataFrame([pair | {"b_value": 0.0}])})
    none = nothing.find(declaration.Query(table="comparisons", relative=True))
    assert none is not None and math.isnan(none.value) and math.isnan(none.low)


def claim(**given: Any) -> declaration.Claim:
    asked = {"claim": "c", "published": {}, "like": {"table": "speed"}, "conditions": "", "no_effect": 1}
    return declaration.Claim.model_validate(asked | given)


def found(value: float, low: float, high: float) -> declaration.Found:
    return declaration.Found(value, low, high, 9, "times", "v", {})


@pytest.mark.parametrize(
    ("bounds", "given", "word"),
    [
        (None, {}, "not run"),
        ((2.8, 2.7, 2.9), {}, "reproduced"),
        ((2.6, 2.5, 2.66), {}, "reproduced"),  # 2.7 as rounded in print, and only the interval reaches it
        ((1.9, 1.86, 1.94), {}, "partly"),  # half of the way from 1 to 2.7
        ((1.62, 1.61, 1.63), {}, "not reproduced"),
        ((0.8, 0.7, 0.9), {}, "not reproduced"),
        ((2.0, 0.9, 3.1), {}, "cannot tell"),
        ((1.5, 0.9, 2.1), {}, "cannot tell"),  # half of the effect or none
        ((1.2, 0.9, 1.5), {}, "not reproduced"),
        ((0.58, math.nan, math.nan), {}, "cannot tell"),
        ((2.8, 2.7, 2.9), {"trainings": 1}, "cannot tell"),
        ((2.8, 2.7, 2.9), {"comparable": False}, "not comparable"),
        ((2.0, 1.9, 2.1), {"direction": "at_most"}, "reproduced"),
        ((3.0, 2.9, 3.1), {"direction": "at_most"}, "not reproduced"),
        ((2.7, 2.5, 2.9), {"direction": "at_most"}, "cannot tell"),
        ((3.0, 2.9, 3.1), {"direction": "about"}, "partly"),
    ],
)
def test_a_claim_of_2_7_times(bounds: tuple[float, float, float] | None, given: dict[str, Any], word: str) -> None:
    assert claim_verdict(2.7, claim(**given), found(*bounds) if bounds else None, 1) == word


@pytest.mark.parametrize(
    ("bounds", "word"), [((0.5, 3.0), "reproduced"), ((-0.5, 3.0), "cannot tell"), ((-3.0, -0.5), "not reproduced")]
)
def test_of_words_without_a_number_the_sign_decides(bounds: tuple[float, float], word: str) -> None:
    assert claim_verdict(None, claim(no_effect=0), found(1.0, *bounds), 0) == word
    for p_holm, decided in ((0.05, word), (0.06, word if bounds[1] < 0 else "cannot tell")):
        proven = replace(found(1.0, *bounds), row={"p_holm": p_holm})
        assert claim_verdict(None, claim(no_effect=0), proven, 0) == decided


def test_a_claim_that_fits_several_rows_is_not_read_and_says_why() -> None:
    speed = speed_of(*({"op_sizes": size, "ratio": 1.6} for size in ("a", "b")))
    row = claims_table({"lychee": LYCHEE}, declaration.Tables({"speed": speed}), "qwen").iloc[0]
    assert row["verdict"] == "not run" and row["why"] == "Not read: 2 rows of speed.csv fit; they differ in op_sizes."


STEP = {"bench": "decode", "stage": "step", "model": "llama3-8b", "variant": "lychee", "method": "lychee",
        "context": 131072, "batch": 1, "budget": "4096"}  # fmt: skip


def speed_of(*steps: dict[str, Any]) -> pd.DataFrame:
    """A speed table of steps; bounds lie a tenth apart."""
    found = [STEP | {"n": 9, "op_sizes": np.nan, "ratio_low": s["ratio"] - 0.1, "ratio_high": s["ratio"] + 0.1} | s
             for s in steps]  # fmt: skip
    return pd.DataFrame(found)


@pytest.fixture
def timed() -> declaration.Tables:
    """One step of LycheeDecode, 1.6 times as fast as full attention where memory traffic allows 1.83."""
    row = dict.fromkeys(measures.COLUMNS, np.nan) | {name: STEP[name] for name in STEP if name in measures.COLUMNS}
    row |= {"measure": "memory_bound", "value": 1.826, "unit": "times", "n": 9, "over": "full"}
    return declaration.Tables({"speed": speed_of({"ratio": 1.6}), "measures": pd.DataFrame([row])})


def test_the_bound_in_a_reason_is_looked_up_and_names_its_context(timed: declaration.Tables) -> None:
    row = claims_table({"lychee": LYCHEE}, timed, "qwen").iloc[0]
    assert (row["like_for_like"], row["bound"], row["verdict"]) == (1.6, 1.826, "not reproduced")
    assert row["why"].startswith("At 131,072 tokens memory traffic allows 1.83 over")


def test_one_committed_run_answers_a_claim_and_a_run_of_ones_own_answers_all(timed: declaration.Tables) -> None:
    papers = declaration.load_declarations(PAPERS)
    elsewhere = claims_table(papers, timed, "retro").iloc[0]
    assert (elsewhere["verdict"], elsewhere["why"]) == ("not run", "The run qwen answers it.")
    assert claims_table(papers, timed, "mine").iloc[0]["verdict"] == "not reproduced"


def test_the_best_variant_says_where_it_is_best() -> None:
    speed = speed_of({"ratio": 1.6}, {"batch": 4, "ratio": 2.79})
    row = claims_table({"lychee": LYCHEE}, declaration.Tables({"speed": speed}), "qwen").iloc[0]
    assert (row["best"], row["best_variant"]) == (2.79, "lychee, batch 4")
