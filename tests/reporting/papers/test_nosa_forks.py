"""Forks of a configuration as NOSA's page names them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from longdecode.reporting.papers.nosa.forks import forks, with_tasks
from longdecode.reporting.papers.pairs import Sample


def test_a_fork_that_learned_at_another_rate_says_so() -> None:
    runs = {"full": {"attention": "full"}, "infllm2": {"attention": "infllm2"}}
    runs |= {"nosa": {"attention": "nosa", "lr": 8e-4}, "dma": {"attention": "dma", "lr": 3e-4}}  # type: ignore[dict-item]
    models = {f"fork-{name}": {"path": f"results/forked/forks/dense/{name}/model"} for name in runs}
    config = {"models": models, "adaptation": {"defaults": {"model": "dense", "lr": 8e-4}, "runs": runs}}
    found = forks(SimpleNamespace(results=SimpleNamespace(config=config, profile="forked")))  # type: ignore[arg-type]
    assert [fork.title for fork in found] == ["full", "infllm2", "nosa", "dma (learned at 0.0003)"]


def test_a_rival_names_its_tasks_where_it_lacks_some() -> None:
    def key(task: str) -> tuple[str, str, int, int, int]:
        return ("ruler", task, 4096, 0, 0)

    sample = Sample(1.0, 1, ("p",), 1.0)
    ours, some = {key("a"): sample, key("b"): sample}, {key("a"): sample}
    inputs: Any = SimpleNamespace(words=lambda _: {"some_tasks": "{method}, {tasks} alone"})
    assert with_tasks(inputs, "quest", ours, some) == "quest, `a` alone"
    assert with_tasks(inputs, "quest", ours, ours) == "quest"
