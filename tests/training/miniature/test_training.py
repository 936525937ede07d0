"""Training: exact documents, a plan that is checked, and a killed run that resumes to the same weights."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from longdecode.engine.errors import ConfigError, DataUnavailableError
from longdecode.training import loop
from longdecode.training.miniature import train as training
from longdecode.training.miniature.books import book_folder
from longdecode.training.miniature.curriculum import Curriculum, Stage, load_curriculum
from longdecode.training.miniature.documents import KINDS, Library, document
from longdecode.training.miniature.model import MiniatureShape

PLAN = Path(__file__).resolve().parents[3] / "training" / "miniature" / "curriculum.yaml"
TINY = MiniatureShape(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16
)


@pytest.fixture
def library(tmp_path: Path) -> Library:
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "1.txt").write_text("It was a dark night \u2014 \u201cquite\u201d so. " * 200, encoding="utf-8")
    (folder / "860.txt").write_text("HELD OUT " * 2000)
    return Library(folder)


def _curriculum(steps: int) -> Curriculum:
    stage = Stage((256, 512), steps, {"induction": 0.4, "lookups": 0.3, "chains": 0.1, "story": 0.1, "book": 0.1})
    return Curriculum(0, 1024, 1e-3, 1e-5, 2, 0.1, 1.0, steps, (stage,))


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("length", [129, 257, 2049, 8193])
def test_documents_have_exactly_their_length(kind: str, length: int, library: Library, seed: int) -> None:
    for books in (library, Library(None)):
        ids, weights = document(random.Random(seed), {kind: 1.0}, length, books)
        assert ids.shape == weights.shape == (length,) and ids.dtype == np.uint8
        assert ids.max() < 128 and weights.max() > 0


def test_lookup_documents_weigh_the_answers(seed: int) -> None:
    ids, weights = document(random.Random(seed), {"lookups": 1.0}, 2049, Library(None))
    text = bytes(ids).decode()
    for line in text.split("\n? ")[1:]:
        answer = line.split("\n")[1] + "\n"
        start = text.index("\n" + answer) + 1
        assert set(weights[start : start + len(answer)]) <= {1.0}


def test_held_out_books_are_never_read(library: Library) -> None:
    assert len(library.books) == 1 and "HELD" not in library.books[0] and library.books[0].isascii()
    assert '-- "quite"' in library.books[0]


def test_the_shipped_plan_reads_and_reaches_its_models_limit() -> None:
    plan = load_curriculum(PLAN)
    assert max(plan.length_at(step) for step in range(plan.total_steps)) == plan.longest == 16384
    assert plan.learning_rate_at(plan.warmup_steps) == pytest.approx(plan.learning_rate)
    assert plan.learning_rate_at(plan.total_steps) == pytest.approx(plan.final_learning_rate)
    sizes = {plan.rows_at(step) * plan.length_at(step) for step in range(0, plan.total_steps, 97)}
    assert sizes == {plan.tokens_per_step}


@pytest.mark.parametrize(("old", "new"), [("story:", "poems:"), ("seed: 0", "sed: 0"), ("steps: 800", "stepz: 800")])
def test_a_wrong_key_in_a_plan_is_refused(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=r"plan\.yaml"):
        load_curriculum(path)


def test_a_resumed_training_ends_alike(tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same weights."""
    monkeypatch.setattr(training, "MiniatureShape", lambda: TINY)
    device = torch.device("cpu")
    whole = training.train(_curriculum(4), tmp_path / "whole", library, device, workers=0)
    save = loop.save_state

    def killed(*arguments: Any, **state: Any) -> None:
        save(*arguments, **state)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(loop, "SAVE_SECONDS", 0.0)
        patched.setattr(loop, "save_state", killed)
        training.train(_curriculum(4), tmp_path / "parts", library, device, workers=0)
    parts = training.train(_curriculum(4), tmp_path / "parts", library, device, workers=0)
    assert json.loads((parts / "config.json").read_text())["max_position_embeddings"] == 512
    card = (parts / "README.md").read_text()
    assert "seed 0" in card and "4 at 256, 512" in card and "limit is the longest, 512" in card
    assert [line.split(" |")[0] for line in card.splitlines() if line.startswith("| ")][2:] == ["| 256", "| 512"]
    first, second = load_file(whole / "model.safetensors"), load_file(parts / "model.safetensors")
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_books_that_are_nowhere_are_an_error_with_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataUnavailableError, match=r"no \*\.txt"):
        book_folder(str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataUnavailableError, match="huggingface-cli download"):
        book_folder("nobody/no-such-books")


def test_the_hubs_test_books_are_never_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks ask about PG-19's test split under `data.pg19`; training under the same key reads the training split."""
    asked = []

    def load(name: str, split: str, streaming: bool) -> SimpleNamespace:
        asked.append((name, split))
        return SimpleNamespace(take=lambda count: [{"text": f"book {n}"} for n in range(count)])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path))
    folder = book_folder("emozilla/pg19-test")
    assert asked == [("emozilla/pg19", "train")] and len(list(folder.glob("*.txt"))) == 200
