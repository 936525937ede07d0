"""The evaluation runs its checks on the engine and says what missed its target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from longdecode.engine.errors import DataUnavailableError, UnsupportedCellError
from longdecode.evals.tasks.fidelity.suite import UNSEEN
from longdecode.training.long_context.books import load_ids, manifest, tokenise
from longdecode.training.long_context.evaluate import CHECKS, Check, loss_by_position, run_checks, task_of


def test_every_check_has_its_task() -> None:
    assert {check.task for check in CHECKS} == {task_of(check.task).name for check in CHECKS}


@pytest.mark.slow
def test_an_untrained_model_misses_its_targets(tiny_model: Path) -> None:
    checks = [Check("passkey_depth_50", 480, 2, 0.95), Check("mini_recall_single", 300, 2, None)]
    results = list(run_checks(checks, tiny_model, "cpu", 1))
    assert [row["task"] for row in results] == ["mini_recall_single", "passkey_depth_50"], "smallest context first"
    assert [row["met"] for row in results] == [None, False] and all(row["mean"] == 0 for row in results)


def test_loss_by_position_is_that_of_a_uniform_guess_at_first(tiny_model: Path, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 256, 3000).astype(np.uint16)
    np.savez_compressed(tmp_path / "books.npz", **{"unseen/1": ids, "unseen/2": ids[:100]})
    found = loss_by_position(tiny_model, tmp_path / "books.npz", "cpu", 400)
    assert found["books"] == ["1"] and abs(found["bins"]["0-400"] - np.log(260)) < 0.1
    with pytest.raises(UnsupportedCellError, match="no unseen book"):
        loss_by_position(tiny_model, tmp_path / "books.npz", "cpu", 5000)


def test_books_are_named_apart_and_kept_as_ids(tiny_model: Path, tmp_path: Path) -> None:
    splits = manifest()
    assert not set(splits["train"]) & set(splits["unseen"]) and tuple(splits["unseen"]) == UNSEEN
    with pytest.raises(DataUnavailableError, match=r"lacks 3608, .*53345"):
        tokenise(tmp_path, tiny_model, tmp_path / "out" / "books.npz")
    with pytest.raises(DataUnavailableError, match=r"smollm2\.books"):
        load_ids(tmp_path / "absent.npz", "train")
    for book in (*splits["train"], *splits["unseen"]):
        (tmp_path / f"{book}.txt").write_text(f"book {book}")
    tokenise(tmp_path, tiny_model, tmp_path / "out" / "books.npz")
    read = load_ids(tmp_path / "out" / "books.npz", "train")
    assert {name: bytes(ids.astype(np.uint8)).decode() for name, ids in read.items()} == {
        book: f"book {book}" for book in splits["train"]
    }
