"""Forks of a configuration as NOSA's page names them, and the tests that it points to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longdecode.reporting.papers.nosa import quality_targets
from longdecode.reporting.papers.nosa.forks import Fork, forks, with_tasks
from longdecode.reporting.papers.nosa.page import PAPER
from longdecode.reporting.papers.pairs import Paired, Sample


def test_every_target_that_a_test_shows_names_one_that_exists() -> None:
    root = Path(__file__).parents[3]
    for row in PAPER.words["targets"]["tests"]:
        file, _, name = row["test"].partition("::")
        assert f"def {name}(" in (root / file).read_text(encoding="utf-8")


def test_a_fork_that_learned_at_another_rate_says_so() -> None:
    runs = {"full": {"attention": "full"}, "infllm2": {"attention": "infllm2"}}
    runs |= {"nosa": {"attention": "nosa", "lr": 8e-4}, "dma": {"attention": "dma", "lr": 3e-4}}  # type: ignore[dict-item]
    models = {f"fork-{name}": {"path": f"results/forked/forks/dense/{name}/model"} for name in runs}
    config = {"models": models, "adaptation": {"defaults": {"model": "dense", "lr": 8e-4}, "runs": runs}}
    found = forks(SimpleNamespace(results=SimpleNamespace(config=config, profile="forked")))  # type: ignore[arg-type]
    assert [fork.title for fork in found] == ["full", "infllm2", "nosa", "dma (learned at 0.0003)"]


@pytest.mark.parametrize(
    ("suite", "gaps", "words"),
    [
        ("ruler", [(0.2, 0.1, 0.3, 0.01), (0.1, 0.05, 0.2, 0.01)], "target met"),
        ("ruler", [(0.2, 0.1, 0.3, 0.01), (0.1, -0.05, 0.2, 0.2)], "missed: cannot be told apart"),
        ("ruler", [(0.2, 0.1, 0.3, 0.01), (0.1, 0.01, 0.2, 0.054)], "missed: cannot be told apart"),
        ("ruler", [(0.2, 0.1, 0.3, 0.01), (-0.1, -0.2, 0.1, 0.2)], "missed"),
        ("pg19_long", [(-0.2, -0.3, -0.1, 0.01), (-0.1, -0.2, 0.1, 0.2)], "missed: cannot be told apart"),
    ],
)
def test_a_target_over_rivals_is_met_over_all_of_them_or_missed(
    monkeypatch: pytest.MonkeyPatch, suite: str, gaps: list[tuple[float, ...]], words: str
) -> None:
    found = {str(at): Paired(v, low, high, 9, 1, p) for at, (v, low, high, p) in enumerate(gaps)}
    full = Fork("full", "fork-full", "full", "ed_dma")
    monkeypatch.setattr(quality_targets, "_rivals", lambda *_: [(full, label) for label in found])
    monkeypatch.setattr(quality_targets, "_gap", lambda _, fork, label, suite: found[label])
    monkeypatch.setattr(quality_targets, "_rival", lambda _, fork, label, suite: label)
    inputs: Any = SimpleNamespace(alpha=0.05, fresh=None)
    verdict = quality_targets.over_rivals(inputs, suite)
    assert verdict.words == words and verdict.what.endswith(", 1")
    assert verdict.level == ("met" if words == "target met" else "missed")


def test_a_rival_names_its_tasks_where_it_lacks_some() -> None:
    def key(task: str) -> tuple[str, str, int, int, int]:
        return ("ruler", task, 4096, 0, 0)

    sample = Sample(1.0, 1, ("p",), 1.0)
    ours, some = {key("a"): sample, key("b"): sample}, {key("a"): sample}
    inputs: Any = SimpleNamespace(words=lambda _: {"some_tasks": "{method}, {tasks} alone"})
    assert with_tasks(inputs, "quest", ours, some) == "quest, `a` alone"
    assert with_tasks(inputs, "quest", ours, ours) == "quest"
