"""Whole records and small configurations for tests of the evals room."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.evals import gate as gates
from longdecode.evals.sandbox import SandboxUnsupportedError, require_sandbox
from longdecode.methods import conformance_launches

TRIMMING = (
    "<s>{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | trim }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[bot]{% endif %}"
)


@pytest.fixture
def config_values(byte_checkpoint: Path) -> dict[str, Any]:
    """A small configuration over the byte checkpoint, as YAML would give it."""
    return {
        "profile": "tiny", "device": "cpu", "seed": 5, "models": {"tiny": {"path": str(byte_checkpoint)}},
        "methods": {"full": {}, "streaming": {}}, "budgets": [0.5, 64],
        "suites": {
            "mini_recall": {
                "contexts": [256, 320], "samples": 3, "batch": 2,
                "tasks": ["mini_recall_single", "mini_recall_two_hop"],
            },
            "mini_book": {"contexts": [512], "samples": 2, "batch": 2},
        },
    }  # fmt: skip


@pytest.fixture
def tokenizer(byte_checkpoint: Path) -> TextTokenizer:
    """Bytes as tokens, nothing before a text; tests that need another have one of their own."""
    return load_tokenizer(byte_checkpoint)


@pytest.fixture
def chatty(byte_checkpoint: Path, tmp_path: Path) -> Path:
    """The byte checkpoint with a chat template that trims what it is given."""
    folder = tmp_path / "chatty"
    folder.mkdir()
    for file in byte_checkpoint.iterdir():
        (folder / file.name).symlink_to(file)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TRIMMING}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def contained() -> None:
    """Skip where programs cannot be run in a sandbox."""
    try:
        require_sandbox()
    except SandboxUnsupportedError as error:
        pytest.skip(str(error))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Conformance replaced by a list of its calls, and the launches passed; methods' own tests run the real ones."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(gates, "check_method", lambda *given: calls.append(given))
    monkeypatch.setattr(conformance_launches, "check_launches", lambda *given, **named: None)
    return calls


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Slices of real data: ``LONGDECODE_TEST_DATA``, or the folder that stands beside a checkout."""
    folder = Path(os.environ.get("LONGDECODE_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}; LONGDECODE_TEST_DATA may name a folder")
    return folder
