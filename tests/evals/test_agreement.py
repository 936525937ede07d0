"""Runs that differ in rounding alone agree, runs that differ in more do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from longdecode.evals.agreement import DifferentDataError, agreement, main, within_floor
from longdecode.evals.records import Record
from longdecode.evals.storage import write_records

Maker = Callable[..., Record]


@pytest.fixture
def run(make_record: Maker) -> Callable[[np.ndarray], list[Record]]:
    """A run whose samples have these scores."""

    def make(scores: np.ndarray) -> list[Record]:
        return [
            make_record(sample_index=i, score=float(score), output_ids=[int(score * 100)], prompt_sha256=f"p{i}")
            for i, score in enumerate(scores)
        ]

    return make


def test_shares_and_mean_difference(run: Callable) -> None:
    before = np.linspace(0.2, 0.8, 20)
    after = before.copy()
    after[:5] += 0.1
    row = agreement(run(before), run(after)).iloc[0]
    assert row["n"] == 20 and row["same_score"] == row["same_output"] == 0.75
    assert row["difference"] == pytest.approx(0.025)
    assert 0 < row["low"] < 0.025 < row["high"] < 0.1


def test_a_shift_beyond_the_floor_is_found(run: Callable, seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.uniform(0.3, 0.6, 60)
    rounding = run(base + rng.choice([-0.02, 0.0, 0.02], 60))
    floor = agreement(run(base), rounding)
    same = within_floor(agreement(run(base), run(base + rng.choice([-0.02, 0.0, 0.02], 60))), floor)
    worse = within_floor(agreement(run(base), run(base - 0.1)), floor)
    assert same["agrees"].all() and not worse["agrees"].any()


def test_different_prompts_are_not_compared(run: Callable) -> None:
    one = run(np.full(3, 0.5))
    other = [record.model_copy(update={"prompt_sha256": "else"}) for record in one]
    with pytest.raises(DifferentDataError, match="different prompts"):
        agreement(one, other)


def test_the_command_says_whether_runs_agree(run: Callable, tmp_path: Path) -> None:
    base = np.linspace(0.2, 0.8, 30)
    for name, scores in {"a": base, "b": base + np.tile([0.02, -0.02], 15), "c": base - 0.15}.items():
        write_records(tmp_path / name / "r.parquet", run(scores), Record)
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert main([a, b, "--floor", a, b, "--output", str(tmp_path / "out.csv")]) == 0
    assert (tmp_path / "out.csv").read_text().startswith("model,variant,suite,metric,n,")
    assert main([a, c, "--floor", a, b]) == 1
    (tmp_path / "empty").mkdir()
    assert main([a, str(tmp_path / "empty")]) == 1
