"""Measures of committed records, and of small ones made by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from longdecode.analysis.declaration import load_declarations
from longdecode.analysis.measures import measures_table
from longdecode.evals.records import SpeedRecord
from longdecode.evals.stats import Spread
from longdecode.evals.store import read_folder, write_table

RESULTS = Path(__file__).parents[2] / "results"
PAPERS = load_declarations(RESULTS.parent / "reporting" / "papers")
REQUESTS = [request for paper in PAPERS.values() for request in paper.pairs]
SPREAD = Spread(0.95, 100, 0)


def test_measures_of_stored_records_are_the_committed_ones() -> None:
    folder, then = RESULTS / "offload", pd.read_csv(RESULTS / "offload" / "measures.csv")
    now = measures_table(folder, {}, read_folder(folder / "speed", SpeedRecord), REQUESTS, {}, SPREAD)
    for name in ("measure", "variant", "over"):
        assert now[name].astype(object).fillna("").tolist() == then[name].astype(object).fillna("").tolist()
    assert now["value"].tolist() == pytest.approx(then["value"].tolist(), rel=1e-4)


def test_a_lead_in_shared_blocks_holds_the_spread_of_texts_and_of_trainings(tmp_path: Path) -> None:
    shares = {"nosa": {"a0": (0.94, 0.96), "a1": (0.93, 0.95)}, "infllm2": {"b0": (0.89, 0.91), "b1": (0.90, 0.92)}}
    rows = [
        {"label": label, "model": model, "text": "books", "context": 4096, "budget": 1024, "document": document,
         "layer": layer, "gamma": gamma + way * 0.01, "worst": 0.5, "misses_64": 64 * (1 - gamma)}
        for label, models in shares.items() for model, found in models.items() for document, gamma in enumerate(found)
        for layer, way in enumerate((1, -1))
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "locality.csv", index=False)
    found = measures_table(tmp_path, {}, [], [], {}, SPREAD).set_index(["measure", "variant"])
    lead = found.loc["hit_rate_lead", "nosa"]
    assert (lead["value"], lead["n"], lead["model"], lead["over"]) == (pytest.approx(4.0), 2, "a0 + a1", "infllm2")
    # Trainings differ by one point on each side: 0.71 as standard error, two degrees of freedom.
    assert lead["high"] - 4 == pytest.approx(4.303 * 0.5**0.5, rel=1e-3)
    assert found.loc[("misses", "nosa"), "value"] == pytest.approx(64 * 0.055) and "hit_rate_worst" in found.index


def test_shares_of_a_trace_are_in_per_cent_and_layers_are_left_out(tmp_path: Path) -> None:
    given = {"model": "m", "variant": ["quest"] * 3, "measure": ["overlap_top", "effective_budget", "overlap_top"],
             "layer": [-1, -1, 3], "index": 7, "value": 0.5, "low": 0.4, "high": 0.6, "n": 8}  # fmt: skip
    write_table(tmp_path / "retrospection" / "m.parquet", pd.DataFrame(given))
    found = measures_table(tmp_path, {}, [], [], {}, SPREAD)
    assert found[["value", "unit", "at"]].values.tolist() == [[50.0, "percent", 7], [0.5, "times the budget", 7]]


NAMED = {claim.run for paper in PAPERS.values() for claim in paper.claims}


@pytest.mark.parametrize("run", sorted(str(name) for name in NAMED if (RESULTS / str(name) / "claims.csv").is_file()))
def test_a_claim_is_answered_by_the_run_that_it_names(run: str) -> None:
    claims = pd.read_csv(RESULTS / run / "claims.csv")
    words = {"reproduced", "partly", "not reproduced", "not comparable", "cannot tell", "not run"}
    assert set(claims["verdict"]) <= words
    answered = claims[claims["verdict"] != "not run"]
    assert set(answered["run"]) == ({run} & set(claims["run"])) and answered["why"].notna().all()
