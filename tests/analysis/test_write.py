"""The tables of a results folder: written whole, entered in the manifest, from what the configuration names alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml

from longdecode.analysis.stage import agreement, write_tables
from longdecode.engine.errors import ConfigError
from longdecode.evals import manifest
from longdecode.evals.fingerprint import SettingsError
from longdecode.evals.records import Record
from longdecode.evals.run_config import RESULT_TABLES
from longdecode.evals.store import read_records, write_records


@pytest.fixture
def results(tmp_path: Path, make_record: Callable[..., Record]) -> Path:
    """Full, Quest and DuoAttention twice, and a variant that no configuration names."""
    config = {
        "profile": "p", "models": {"tiny": {"path": "x"}},
        "methods": {"full": {}, "quest": {}, "duo": {}, "duo_twice": {"method": "duo"}}, "budgets": [256],
        "suites": {"mini_longgen": {"contexts": [2048], "samples": 12}},
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    origin = make_record().provenance.model_copy(update={"settings_hash": None})
    for variant in ("full", "quest", "duo", "duo_twice", "older"):
        method = "quest" if variant == "older" else variant.partition("_")[0]
        rows = [
            make_record(variant=variant, method=method, sample_index=i, prompt_sha256=str(i), provenance=origin,
                        parts=[1.0] * 8 + [0.0] * 8, budget="full" if variant == "full" else "256",
                        score=float(variant != "duo_twice"))
            for i in range(12)
        ]  # fmt: skip
        write_records(tmp_path / "records" / "tiny" / variant / "mini_longgen.parquet", rows, Record)
    manifest.rewrite(tmp_path)
    return tmp_path


def test_named_variants_are_compared_and_the_tables_are_in_the_manifest(results: Path) -> None:
    paths = write_tables(results)
    assert [path.name for path in paths] == list(RESULT_TABLES)
    table = {path.stem: pd.read_csv(path) for path in paths}
    assert table["summary"]["variant"].tolist() == ["full", "duo", "duo_twice", "quest"]
    told = table["comparisons"].set_index("a")["verdict"].to_dict()
    assert told == {"quest": "cannot tell", "duo": "cannot tell", "duo_twice": "worse"}
    assert set(table["claims"]["verdict"]) == {"not run"} and table["speed"].empty and table["pareto"].empty
    along = table["measures"][table["measures"]["variant"] == "quest"]
    assert set(along["measure"]) == {"score_along"} and along["at"].tolist() == [2, 4, 6, 8, 10, 12, 14, 16]
    assert along["value"].tolist() == [100.0] * 4 + [0.0] * 4 and set(along["length"]) == {16}
    assert manifest.problems(results) == []
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in write_tables(results)]


def test_records_that_changed_are_refused(results: Path) -> None:
    path = results / "records" / "tiny" / "quest" / "mini_longgen.parquet"
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(manifest.ManifestError, match="changed since it was written"):
        write_tables(results)


def test_records_of_other_settings_are_refused(results: Path) -> None:
    path = results / "records" / "tiny" / "quest" / "mini_longgen.parquet"
    origin = {"settings_hash": "of another run"}
    rows = [
        r.model_copy(update={"provenance": r.provenance.model_copy(update=origin)}) for r in read_records(path, Record)
    ]
    write_records(path, rows, Record)
    manifest.rewrite(results)
    with pytest.raises(SettingsError, match=r"quest.*other settings"):
        write_tables(results)


def test_a_variant_is_marked_that_was_not_tuned_as_others_are(results: Path) -> None:
    config = yaml.safe_load((results / "config.yaml").read_text(encoding="utf-8"))
    config["methods"]["snapkv"] = {"params": {"window": 64}}
    (results / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    manifest.rewrite(results)
    table = pd.read_csv(write_tables(results)[0]).set_index("variant")
    assert table["untuned"].dropna().to_dict() == dict.fromkeys(("duo", "duo_twice"), "defaults")
    told = pd.read_csv(results / "comparisons.csv").set_index("a")[["status", "verdict"]].fillna("").T.to_dict("list")
    assert told["duo"] == told["duo_twice"] == ["untuned", ""] and told["quest"] == ["ok", "cannot tell"]
    (results / "config.yaml").write_text(yaml.safe_dump(config | {"tuning": {"records": {"tiny": "moved.json"}}}))
    manifest.rewrite(results)
    with pytest.raises(ConfigError, match=r"tiny: moved\.json: .*, by which duo, duo_twice, snapkv are tuned"):
        write_tables(results)


def test_a_pilot_is_judged_nowhere(results: Path) -> None:
    config = results / "config.yaml"
    config.write_text(config.read_text() + "\npilot: true\n")
    manifest.rewrite(results)
    table = {path.stem: pd.read_csv(path) for path in write_tables(results)}
    assert table["comparisons"]["difference"].notna().all() and table["comparisons"]["verdict"].isna().all()
    assert table["claims"].empty


def test_what_two_runs_wrote_is_compared_cell_by_cell(tmp_path: Path) -> None:
    committed = Path(__file__).resolve().parents[2] / "results" / "retro-0.5b"
    again = shutil.copytree(committed, tmp_path / "again")
    path = next(again.glob("records/*/full/*.parquet"))
    one, *others = read_records(path, Record)
    write_records(path, [one.model_copy(update={"output_sha256": "other"}), *others], Record)
    rows = list(agreement(committed, again))
    changed = [row for row in rows if row[-2:] != ("100.0%", "100.0%")]
    assert len(rows) == 18 and len(changed) == 1
    assert changed[0][1:] == ("full", one.task, "16384", "full", "87", f"{86 / 87:.1%}", "100.0%")
