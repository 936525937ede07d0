"""Hashes follow contents: an edit that can change a number changes them, a copy or a touch does not."""

from __future__ import annotations

import shutil
import subprocess
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
    assert found.dtype == "bfloat16"
    assert found.device and found.revision
    assert found.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]


def test_an_image_vouches_for_its_own_code_not_for_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def said() -> tuple[str, bool]:
        provenance._code.cache_clear()
        return provenance.revision(), provenance.is_dirty()

    monkeypatch.setattr(provenance, "REPOSITORY", tmp_path)
    (tmp_path / provenance.IMAGE_REVISION).write_text("abc123 0\n")
    try:
        assert said() == ("abc123", False)
        (tmp_path / ".git").write_text("gitdir: /of/another/machine\n")
        assert said() == ("unknown", True), "git cannot tell, and the image does not know"
        (tmp_path / ".git").unlink()
        (tmp_path / provenance.IMAGE_REVISION).write_text("abc123 1\n")
        assert said() == ("abc123", True)
    finally:
        provenance._code.cache_clear()


def test_a_checkout_of_another_user_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(tmp_path)]
    for arguments in (["init"], ["commit", "--allow-empty", "-m", "a"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    wanted = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    monkeypatch.setattr(provenance, "REPOSITORY", tmp_path)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True).returncode != 0  # git refuses by itself
    provenance._code.cache_clear()
    try:
        assert provenance.revision() == wanted
    finally:
        provenance._code.cache_clear()


def test_only_a_clean_commit_vouches_for_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    def dirty() -> bool:
        provenance._code.cache_clear()
        return provenance.is_dirty()

    monkeypatch.setattr(provenance, "REPOSITORY", tmp_path)
    try:
        assert dirty(), "no git"
        git("init")
        assert dirty(), "a repository without a commit"
        (tmp_path / "code.py").write_text("a = 1")
        git("add", ".")
        git("commit", "-m", "a")
        assert not dirty()
        (tmp_path / "code.py").write_text("a = 2")
        assert dirty(), "changed since the commit"
    finally:
        provenance._code.cache_clear()


def test_a_job_waits_for_the_files_that_its_hash_covers(config_values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    inputs = ("additional_chat_templates/rag.jinja", "chat_template.jinja", "model.safetensors", "tokenizer.model")
    for name in (*inputs, "README.md"):
        (tmp_path / name).write_text("")
    run = build_run_config(config_values | {"models": {"tiny": {"path": str(tmp_path)}}}, "test.yaml")
    assert Plan(run, tmp_path).model_files("tiny") == [str(tmp_path / name) for name in inputs]
