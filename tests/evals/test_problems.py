"""Samples of one problem are resampled together: windows of a text, draws of a question."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from longdecode.evals.problems import problem_of
from longdecode.evals.records import Record


@pytest.mark.parametrize(
    ("task", "index", "prompt", "alike"),
    [("fidelity_forced", 3, "b", True), ("fidelity_forced", 4, "b", False), ("mini_recall_single", 1, "b", False),
     ("mini_recall_single", 1, "a", True), ("gone", 1, "b", False)],
)  # fmt: skip
def test_a_problem_is_a_text_or_a_prompt(
    make_record: Callable[..., Record], task: str, index: int, prompt: str, alike: bool
) -> None:
    first = make_record(task=task, sample_index=0, prompt_sha256="a" * 64)
    other = make_record(task=task, sample_index=index, prompt_sha256=prompt * 64)
    assert (problem_of(first) == problem_of(other)) == alike
