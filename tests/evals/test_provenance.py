"""Hashes follow contents: an edit that can change a number changes them, a copy or a touch does not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from longdecode.evals import provenance
from longdecode.evals.fingerprint import hash_texts
from longdecode.evals.plan import Plan
from longdecode.evals.run_config import build_run_config


@pytest.mark.parametrize(
    "name",
    [
        "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "merges.txt",
        "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "tekken.json", "chat_template.jinja",
        "chat_template.json", "additional_chat_templates/rag.jinja", "chat_templates/rag.jinja",
        "importance.safetensors", "model.safetensors", "config.json",
    ],
)  # fmt: skip
def test_a_file_behind_a_prompt_or_answer_changes_the_hash(name: str, byte_checkpoint: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(byte_checkpoint, tmp_path / "copy"))
    seen = {provenance.checkpoint_hash(copy), provenance.checkpoint_hash(byte_checkpoint)}
    (copy / name).parent.mkdir(exist_ok=True)
    for content in ("one", "another"):
        (copy / name).write_text(content)
        seen.add(provenance.checkpoint_hash(copy))
    assert len(seen) == 3
    (copy / "README.md").write_text("about")
    (copy / "training_log.jsonl").write_text("{}")
    assert provenance.checkpoint_hash(copy) in seen


def test_texts_are_told_apart_by_their_borders() -> None:
    assert hash_texts(["ab", "c"]) != hash_texts(["a", "bc"])


def test_what_is_collected_names_device_dtype_and_versions() -> None:
    place: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.bfloat16}
    found = provenance.collect(settings={"a": 1}, code="c", model="m", data="d", **place)
    assert found.fingerprint is not None and found.fingerprint[1:] == ("c", "m", "d")
    for settings, numbers in (({"a": 2}, torch.bfloat16), ({"a": 1}, torch.float32)):
        other = provenance.collect(settings=settings, code="c", model="m", data="d", **place | {"dtype": numbers})
        assert other.fingerprint is not None and other.fingerprint[1:] == found.fingerprint[1:]
        assert other.fingerprint.settings != found.fingerprint.settings
    assert found.dtype == "bfloat16" and found.device and found.revision
    assert found.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in the place of the project's; what was read of either is forgotten."""
    monkeypatch.setattr(provenance, "REPOSITORY", tmp_path)
    provenance._code.cache_clear()
    yield tmp_path
    provenance._code.cache_clear()


def test_an_image_vouches_for_its_own_code_not_for_a_checkout(checkout: Path) -> None:
    def said() -> tuple[str, bool]:
        provenance._code.cache_clear()
        return provenance.revision(), provenance.is_dirty()

    (checkout / provenance.IMAGE_REVISION).write_text("abc123 0\n")
    assert said() == ("abc123", False)
    (checkout / ".git").write_text("gitdir: /of/another/machine\n")
    assert said() == ("unknown", True), "git cannot tell, and the image does not know"
    (checkout / ".git").unlink()
    (checkout / provenance.IMAGE_REVISION).write_text("abc123 1\n")
    assert said() == ("abc123", True)


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_checkout_of_another_user_is_read(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(checkout, "init")
    git(checkout, "commit", "--allow-empty", "-m", "a")
    wanted = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(subprocess.CalledProcessError):  # git refuses by itself
        git(checkout, "rev-parse", "HEAD")
    assert provenance.revision() == wanted


def test_only_a_clean_commit_vouches_for_the_files(checkout: Path) -> None:
    def dirty() -> bool:
        provenance._code.cache_clear()
        return provenance.is_dirty()

    assert dirty(), "no git"
    git(checkout, "init")
    assert dirty(), "a repository without a commit"
    (checkout / "code.py").write_text("a = 1")
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "a")
    assert not dirty()
    (checkout / "code.py").write_text("a = 2")
    assert dirty(), "changed since the commit"


def test_a_job_waits_for_the_files_that_its_hash_covers(config_values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    inputs = ("additional_chat_templates/rag.jinja", "chat_template.jinja", "model.safetensors", "tokenizer.model")
    for name in (*inputs, "README.md"):
        (tmp_path / name).write_text("")
    run = build_run_config(config_values | {"models": {"tiny": {"path": str(tmp_path)}}}, "test.yaml")
    assert Plan(run, tmp_path).model_files("tiny") == [str(tmp_path / name) for name in inputs]
