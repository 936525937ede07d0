"""Two runs are the same where prompts, outputs, scores and statuses are; clocks and code do not count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from longdecode.evals.records import Record, hash_output
from longdecode.evals.same_records import compare_runs, main
from longdecode.evals.store import write_records

Maker = Callable[..., Record]


@pytest.fixture
def run(make_record: Maker) -> list[Record]:
    return [
        make_record(sample_index=i, score=i / 4, output_ids=[1, i], output_sha256=hash_output([1, i])) for i in range(4)
    ]


def test_when_and_with_which_code_does_not_count(run: list[Record]) -> None:
    later = run[0].provenance.model_copy(update={"started_at": "2027-02-02T00:00:00+00:00", "code_hash": "z"})
    again = [r.model_copy(update={"provenance": later, "measures": {"decode_ms": 8.0}}) for r in run]
    (row,) = compare_runs(run, again).to_dict("records")
    assert (row["n"], row["same_prompt"], row["same_output"], row["same_score"]) == (4, 1, 1, 1)
    assert row["difference"] == 0


def test_shares_and_the_difference_by_hand(run: list[Record], make_record: Maker) -> None:
    """Scores 0, 1/4, 2/4, 3/4 become 0, 3/4, 2/4, 3/4: one of four differs, by 1/2."""
    other = [r.model_copy(update={"output_sha256": None}) for r in run]  # an older run: hashed from its tokens
    other[1] = other[1].model_copy(update={"score": 0.75, "output_ids": [9, 9]})
    row = compare_runs(run, other).iloc[0]
    assert (row.same_output, row.same_score, row.difference) == (0.75, 0.75, 0.125)
    prompts = [r.model_copy(update={"prompt_sha256": "other"}) for r in run]
    assert compare_runs(run, prompts).iloc[0].same_prompt == 0


def test_a_sample_or_a_status_that_one_run_has_is_a_difference(run: list[Record], make_record: Maker) -> None:
    row = compare_runs(run[:3], run).iloc[0]
    assert (row.n, row.same_output, row.same_score) == (4, 0.75, 0.75)
    closed = [make_record(sample_index=-1, status=status, reason="x") for status in ("oom", "oom", "unsupported")]
    assert compare_runs(closed[:1], closed[1:2]).iloc[0].same_score == 1
    assert compare_runs(closed[:1], closed[2:]).iloc[0].same_score == 0


def test_the_command_compares_files_and_folders(
    run: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(tmp_path / "a" / "m" / "r.parquet", run, Record)
    write_records(tmp_path / "b.parquet", run, Record)
    write_records(tmp_path / "c.parquet", [*run[:3], run[3].model_copy(update={"score": 0.5})], Record)
    (tmp_path / "empty").mkdir()
    for other, status in (("b.parquet", 0), ("c.parquet", 1), ("empty", 1)):
        with pytest.raises(typer.Exit) as ended:
            main(tmp_path / "a", tmp_path / other)
        shown = capsys.readouterr().out
        assert ended.value.exit_code == status and ("1 cells: the same in both" in shown) == (status == 0)
