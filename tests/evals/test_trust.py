"""Results that changed since they were written, or were made otherwise than they stand, are refused by name."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from longdecode import stages
from longdecode.analysis.stage import write_tables
from longdecode.evals import manifest
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.fingerprint import SettingsError, hash_data, narrowed, quality_settings, require_settings
from longdecode.evals.manifest import ManifestError
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config, record_files
from longdecode.evals.store import read_records

pytestmark = pytest.mark.usefixtures("gate")


@pytest.fixture
def values(config_values: dict[str, Any]) -> dict[str, Any]:
    """A run of one suite whose four cells a variant take a second."""
    config_values["suites"].pop("mini_book")
    config_values["suites"]["mini_recall"] |= {"contexts": [256], "samples": 2, "tasks": ["mini_recall_single"]}
    return config_values


@pytest.fixture
def finished(tmp_path: Path, values: dict[str, Any]) -> Callable[..., tuple[Path, list[Path]]]:
    """Runner of a configuration up to its records; gives back the configuration's file and the records'."""

    def run(**changes: Any) -> tuple[Path, list[Path]]:
        root = tmp_path / "results" / "tiny"
        config_path = root / "config.yaml"
        root.mkdir(parents=True, exist_ok=True)
        config_path.write_text(yaml.safe_dump(copy.deepcopy(values) | changes))
        config = build_run_config(yaml.safe_load(config_path.read_text()), "c")
        files = record_files(config)
        for file in files:
            output = {file.variant: file.path(root / "records")}
            evaluate_suite(narrowed(config, file.suite, file.context), file.model, file.suite, output)
        records = [file.path(root / "records") for file in files]
        manifest.seal(root, [config_path, *records])
        return config_path, records

    return run


def test_a_run_is_summarised_and_any_change_to_its_files_is_found(finished: Any) -> None:
    config, records = finished()
    root = config.parent
    table = root / "summary.csv"
    write_tables(root)
    assert manifest.problems(root) == []

    def refuses(message: str, **given: Any) -> None:
        with pytest.raises(ManifestError, match=message) as caught:
            manifest.require(root, **given)
        assert "\n" not in str(caught.value)

    before = table.read_bytes()
    table.write_bytes(before.replace(b"quest", b"quesy") + b" ")
    refuses(r"summary\.csv: changed since it was written .*rm ")
    table.write_bytes(before[:-2] + bytes([before[-2] ^ 1]) + before[-1:])  # as long as before
    refuses(r"summary\.csv: changed since it was written")
    table.write_bytes(before)
    parquet = records[0].read_bytes()
    records[0].unlink()
    refuses(rf"{records[0].name}: missing")
    with pytest.raises(ManifestError, match="missing"):
        write_tables(root)
    records[0].write_bytes(parquet)
    stranger = records[0].with_name("mini_other.parquet")
    stranger.write_bytes(parquet)
    refuses(r"mini_other\.parquet: not in .*manifest\.txt")
    stranger.unlink()
    manifest.require(root)
    subprocess.run(["sha256sum", "-c", "--quiet", "manifest.txt"], cwd=root, check=True)


def test_pages_are_bound_to_their_results(tmp_path: Path) -> None:
    results, pages = tmp_path / "results" / "x", tmp_path / "reports" / "x"
    for folder, name in ((results, "summary.csv"), (pages, "index.html")):
        folder.mkdir(parents=True)
        (folder / name).write_text("a")
        manifest.rewrite(folder)
    assert not manifest.problems(results) + manifest.problems(pages)
    (results / "summary.csv").write_text("b")
    manifest.rewrite(results)
    with pytest.raises(ManifestError, match="built from other results"):
        manifest.require(pages)
    (pages / "manifest.txt").write_bytes(b"\xff\n")
    with pytest.raises(ManifestError, match=r"manifest\.txt:1: not a line"):
        manifest.require(pages)
    (results / "summary.csv").unlink()
    assert len(manifest.problems(results)) == 1


def test_a_training_enters_its_folder_and_weights_may_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root, fork = Path("results/x"), Path("results/x/forks/m/nosa")
    outputs = (weights := fork / "model" / "model.safetensors"), fork / "curve.csv"
    for path in (*outputs, fork / "adaptor" / "adapter_model.safetensors", fork / "model" / "config.json"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    stages._seal(SimpleNamespace(rule="train_fork", config={"profile": "x"}, output=[*map(str, outputs)]))
    assert len(manifest.read(root)) == 4 and not manifest.problems(root)
    weights.write_text("another's")
    assert [": changed since it was written" in said for said in manifest.problems(root)] == [True]
    weights.unlink()
    assert not manifest.problems(root)


OTHER_SETTINGS: tuple[dict[str, Any], ...] = (
    {"dtype": "bfloat16"},
    {"seed": 6},
    {"profile": "other"},
    {"methods": {"full": {}, "streaming": {"params": {"sinks": 2}}}},
    {"suites": {"mini_recall": {"contexts": [256], "samples": 3, "batch": 2, "tasks": ["mini_recall_single"]}}},
)


def test_records_of_other_settings_are_refused_with_their_file(finished: Any, values: dict[str, Any]) -> None:
    config, records = finished(dtype="float32")
    for changes in OTHER_SETTINGS:
        config.write_text(yaml.safe_dump(copy.deepcopy(values) | {"dtype": "float32"} | changes))
        manifest.seal(config.parent, [config])
        with pytest.raises(SettingsError, match=r"\.parquet: .* has other settings than .*; run again, ") as caught:
            write_tables(config.parent)
        assert "\n" not in str(caught.value) and not (config.parent / "summary.csv").exists()
    run = build_run_config(yaml.safe_load(config.read_text()), "c")
    known, older = read_records(records[0], Record), {"settings_hash": None}
    found = [r.model_copy(update={"provenance": r.provenance.model_copy(update=older)}) for r in known]
    require_settings(run, records[0], found)  # measured before there were fingerprints
    longer = {"mini_recall": values["suites"]["mini_recall"] | {"samples": 4}}
    run = build_run_config(copy.deepcopy(values) | {"dtype": "float32", "suites": longer}, "c")
    require_settings(run, records[0], known)  # longer by a whole batch of two: the first is as it was


def test_only_data_that_a_suite_reads_counts(values: dict[str, Any], tmp_path: Path) -> None:
    """Look-ups are generated: books elsewhere change nothing of them; what changes in the books themselves does."""
    (tmp_path / "books").mkdir()
    hashes = []
    for text in ("a", "b"):
        (tmp_path / "books" / "1.txt").write_text(text)
        run = build_run_config(values | {"data": {"pg19": str(tmp_path / "books")}}, "c")
        hashes.append((hash_data(run, "mini_recall"), hash_data(run, "mini_book")))
    assert hashes[0][0] == hashes[1][0] and hashes[0][1] != hashes[1][1]
    assert quality_settings(run, "tiny", "mini_recall", "full")["data"] == {}


def test_small_jobs_give_the_records_of_large_ones(finished: Any, values: dict[str, Any]) -> None:
    values["suites"]["mini_recall"]["contexts"] = [256, 320]

    def scores(paths: list[Path]) -> dict[Any, Any]:
        records = [record for path in paths for record in read_records(path, Record)]
        return {(r.variant, *r.key, r.index): (r.output_ids, r.score) for r in records}

    config, large = finished()
    together = scores(large)
    values["profile"] = "small"
    config, small = finished(jobs="cell")
    assert len(small) == 2 * len(large) and scores(small) == together
    write_tables(config.parent)
    assert pd.read_csv(config.parent / "summary.csv")["context"].nunique() == 2


@pytest.fixture
def broken(tmp_path: Path, byte_checkpoint: Path) -> Path:
    """A checkpoint with one weight that is no number."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "nan"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((byte_checkpoint / name).read_bytes())
    tensors = load_file(byte_checkpoint / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = torch.nan
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_broken_model_harms_none(finished: Any, values: dict[str, Any], broken: Path, byte_checkpoint: Path) -> None:
    """Other models beside a broken checkpoint are scored."""
    values["models"] = {"broken": {"path": str(broken)}, "sound": {"path": str(byte_checkpoint)}}
    config, records = finished()
    found = [record for path in records for record in read_records(path, Record)]
    statuses = {model: {r.status for r in found if r.model == model} for model in values["models"]}
    assert statuses == {"broken": {"failed_gate"}, "sound": {"ok"}}
    assert all("down_proj.weight holds NaN or inf" in str(r.reason) for r in found if r.model == "broken")
    write_tables(config.parent)
    rows = pd.read_csv(config.parent / "summary.csv")
    assert set(zip(rows["model"], rows["status"], strict=True)) == {("broken", "failed_gate"), ("sound", "ok")}
