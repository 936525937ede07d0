"""The tables of a results folder: written whole, entered in the manifest, from what the configuration names alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml

from longdecode.evals import manifest
from longdecode.evals.analysis.tables import ANALYSIS_TABLES
from longdecode.evals.analysis.write import write_analysis
from longdecode.evals.records import Record
from longdecode.evals.store import write_records

PAPERS = Path(__file__).parents[3] / "reporting" / "papers"


@pytest.fixture
def results(tmp_path: Path, make_record: Callable[..., Record]) -> Path:
    """Full, Quest and DuoAttention with and without the common window, and a variant that no configuration names."""
    config = {
        "profile": "p", "models": {"tiny": {"path": "x"}},
        "methods": dict.fromkeys(("full", "quest", "duo", "duo+window")),
        "suites": {"mini_longgen": {"contexts": [2048]}},
        "key_of_an_earlier_revision": 1,
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    for label in ("full", "quest", "duo", "duo+window", "older"):
        method = "quest" if label == "older" else label.partition("+")[0]
        path = tmp_path / "records" / "tiny" / label / "mini_longgen.parquet"
        rows = [
            make_record(variant=label, method=method, sample_index=i, prompt_sha256=str(i), score=float(i % 3 > 0),
                        budget="full" if label == "full" else "256")
            for i in range(12)
        ]  # fmt: skip
        write_records(path, rows, Record)
    manifest.rewrite(tmp_path)
    return tmp_path


def test_named_variants_are_compared_and_the_tables_are_in_the_manifest(results: Path) -> None:
    paths = write_analysis(results / "config.yaml", results, PAPERS)
    assert [path.name for path in paths] == list(ANALYSIS_TABLES)
    assert set(pd.read_csv(paths[0])["a"]) == {"quest", "duo", "duo+window"}
    assert set(pd.read_csv(paths[2])["verdict"]) == {"not run"}
    assert manifest.problems(results) == []


def test_a_second_time_writes_the_same(results: Path) -> None:
    first = [path.read_bytes() for path in write_analysis(results / "config.yaml", results, PAPERS)]
    assert first == [path.read_bytes() for path in write_analysis(results / "config.yaml", results, PAPERS)]


def test_records_that_changed_are_refused(results: Path) -> None:
    path = results / "records" / "tiny" / "quest" / "mini_longgen.parquet"
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(manifest.ManifestError, match="changed since it was written"):
        write_analysis(results / "config.yaml", results, PAPERS)


def test_a_pilot_is_judged_nowhere(results: Path) -> None:
    config = results / "config.yaml"
    config.write_text(config.read_text() + "\npilot: true\n")
    manifest.rewrite(results)
    comparisons, _, claims = (pd.read_csv(path) for path in write_analysis(config, results, PAPERS))
    assert comparisons["difference"].notna().all() and comparisons["verdict"].isna().all()
    assert claims.empty
