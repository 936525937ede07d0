"""Two runs are the same when their records are, clocks and dates apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from longdecode.evals.compare import comparable, differences, main
from longdecode.evals.records import Record
from longdecode.evals.storage import write_records

Maker = Callable[..., Record]


@pytest.fixture
def pair(make_record: Maker) -> tuple[Record, Record]:
    """One record and the same from a slower, later run of the same code."""
    one = make_record(score=0.5, measures={"prefill_ms": 3.0, "decode_ms": 4.0, "decode_steps": 2}, output_ids=[1, 2])
    later = one.provenance.model_copy(
        update={"started_at": "2027-02-02T00:00:00+00:00", "sm_clock_mhz": 1980, "revision": "s"}
    )
    return one, one.model_copy(
        update={"measures": one.measures | {"prefill_ms": 7.0, "decode_ms": 8.0}, "provenance": later}
    )


def test_times_and_dates_do_not_count(pair: tuple[Record, Record]) -> None:
    one, other = pair
    assert comparable(one) == comparable(other)
    assert differences([one], [other]) == []


def test_numbers_and_code_do(pair: tuple[Record, Record]) -> None:
    one, other = pair
    changed = other.model_copy(update={"output_ids": [1, 3]})
    assert [line.partition(": ")[2] for line in differences([one], [changed])] == ["output_ids: [1, 2] and [1, 3]"]
    slower = other.model_copy(update={"measures": other.measures | {"decode_steps": 3.0}})
    assert len(differences([one], [slower])) == 1
    recoded = other.model_copy(update={"provenance": other.provenance.model_copy(update={"code_hash": "z"})})
    assert len(differences([one], [recoded])) == 1


def test_missing_records_are_named(make_record: Maker) -> None:
    records = [make_record(sample_index=i) for i in range(3)]
    lines = differences(records[:2], records[1:])
    assert [line.partition(":")[0] for line in lines] == ["only in the first", "only in the second"]
    assert lines[0].endswith("sample_index=0") and lines[1].endswith("sample_index=2")


def test_the_command_compares_files_and_folders(
    pair: tuple[Record, Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_records(tmp_path / "a" / "m" / "r.parquet", [pair[0]], Record)
    write_records(tmp_path / "b.parquet", [pair[1]], Record)
    write_records(tmp_path / "c.parquet", [pair[1].model_copy(update={"score": 0.25})], Record)
    assert main([str(tmp_path / "a"), str(tmp_path / "b.parquet")]) == 0
    assert main([str(tmp_path / "a"), str(tmp_path / "c.parquet")]) == 1
    assert "score: 0.5 and 0.25" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty"), str(tmp_path / "empty")]) == 1
