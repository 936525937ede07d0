"""Instrument checks on hand-made records: each passes on a working instrument and fails when its property breaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from longdecode.engine.errors import GateError
from longdecode.evals import manifest
from longdecode.evals.instrument import Check, check_instrument, run_checks
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.specs import InstrumentSpec
from longdecode.evals.store import write_records
from longdecode.evals.tasks.registry import suite_tasks
from longdecode.reporting.build import build_checked

Maker = Callable[..., Record]
CONTEXTS = (2048, 4096)
QUEST = {0.03: 0.8, 0.05: 0.9, 0.15: 1.0}


@pytest.fixture
def records(make_record: Maker) -> list[Record]:
    """Write a working instrument's records: Full solves, streaming does not, Quest rises with budget."""

    def build() -> Iterator[Record]:
        suites = ("mini_recall", "mini_longgen", "mini_reason")
        tasks = [(suite, task) for suite in suites for task in suite_tasks(suite)]
        for context in CONTEXTS:
            for suite, task in tasks:
                common = {"suite": suite, "task": task, "context": context}
                yield from (make_record(**common, sample_index=i, score=score) for i, score in enumerate((1.0, 0.94)))
                yield make_record(**common, variant="streaming", method="streaming", budget="0.15", score=0.1)
            for budget, score in QUEST.items():
                for count in (15, 30, 45):
                    common = {"task": f"mini_longgen_{count}", "context": context, "score": score}
                    yield make_record(**common, variant="quest", budget=str(budget))

    return list(build())


def outcomes(records: list[Record], **spec: Any) -> dict[str, str]:
    return {check.name: check.outcome for check in run_checks(InstrumentSpec(**spec), records)}


def changed(records: list[Record], where: dict[str, Any], **changes: Any) -> list[Record]:
    hit = [all(getattr(record, name) == value for name, value in where.items()) for record in records]
    assert any(hit)
    return [record.model_copy(update=changes) if yes else record for record, yes in zip(records, hit, strict=True)]


def test_a_working_instrument_passes_every_check(records: list[Record]) -> None:
    found = outcomes(records)
    assert set(found.values()) == {"passed"}
    assert len([name for name in found if name.startswith("full_solves/")]) == 8 * len(CONTEXTS)
    assert "full_solves/mini_longgen_45/4096" in found


QUEST_AT = {"variant": "quest", "context": 4096}


@pytest.mark.parametrize(
    ("where", "changes", "fails"),
    [
        ({"variant": "full", "task": "mini_reason_8", "context": 2048, "sample_index": 0}, {"score": 0.9},
         ["full_solves/mini_reason_8/2048"]),
        ({"variant": "streaming", "context": 4096}, {"score": 0.16}, ["streaming_fails/4096"]),
        ({**QUEST_AT, "budget": "0.05"}, {"score": 0.7}, ["quest_rises/4096"]),
        ({"variant": "quest", "budget": "0.15"}, {"score": 0.79},
         ["quest_gains", "quest_rises/2048", "quest_rises/4096"]),
    ],
)  # fmt: skip
def test_each_broken_property_fails_its_check_alone(
    records: list[Record], where: dict[str, Any], changes: dict[str, Any], fails: list[str]
) -> None:
    found = outcomes(changed(records, where, **changes))
    assert sorted(name for name, outcome in found.items() if outcome == "failed") == fails


def test_checks_without_cells_are_not_run(records: list[Record]) -> None:
    assert set(outcomes([]).values()) == {"not run"}
    found = outcomes([record for record in records if record.variant == "full" and record.context == 2048])
    missing = {name for name, outcome in found.items() if outcome == "not run"}
    assert missing == {"streaming_fails", "quest_rises", "quest_gains"}
    # Streaming at another budget than the configured one says nothing about the configured one.
    assert outcomes(records, streaming_budget=0.1)["streaming_fails"] == "not run"
    where = {"variant": "full", "task": "mini_recall_single", "context": 4096}
    holes = changed(records, where, status="oom", reason="too large", score=None, sample_index=-1)
    assert outcomes(holes)["full_solves/mini_recall_single/4096"] == "not run"


def test_thresholds_come_from_the_configuration(records: list[Record]) -> None:
    strict = outcomes(records, full_min=0.98, full_min_by_task={"mini_reason_8": 0.97})
    failed = {name for name, outcome in strict.items() if outcome == "failed"}
    assert failed == {name for name in strict if name.startswith("full_solves/") and "mini_reason_8" not in name}


def test_writing_is_checked_only_where_a_threshold_names_it(records: list[Record], make_record: Maker) -> None:
    written = [*records, make_record(suite="mini_book", task="mini_book_write", score=0.4)]
    assert "full_solves/mini_book_write/2048" not in outcomes(written)
    assert outcomes(written, full_min_by_task={"mini_book_write": 0.5})["full_solves/mini_book_write/2048"] == "failed"


def write_all(folder: Path, records: list[Record]) -> None:
    """Write records where a run has them: a file a label and suite."""
    for label, suite in {(record.variant, record.suite) for record in records}:
        own = [record for record in records if (record.variant, record.suite) == (label, suite)]
        write_records(folder / "tiny" / label / f"{suite}.parquet", own, Record)


def test_a_failure_ends_the_report(records: list[Record], config_values: dict[str, Any], tmp_path: Path) -> None:
    """The outcome is written whether or not checks fail."""
    config = build_run_config(config_values, "c")
    output = tmp_path / "out" / "instrument.json"
    write_all(tmp_path / "records", records)
    check_instrument(config, tmp_path / "records", output)
    assert json.loads(output.read_text())["passed"] is True
    write_all(tmp_path / "records", changed(records, {"variant": "streaming", "context": 4096}, score=0.75))
    check_instrument(config, tmp_path / "records", output)
    manifest.seal(output.parent, [output])
    with pytest.raises(GateError, match=r"streaming_fails/4096: .*0\.75"):
        build_checked(output.parent, tmp_path / "report", [output])
    written = json.loads(output.read_text())
    assert written["passed"] is False and not (tmp_path / "report").exists()
    failed = [check for check in written["checks"] if check["outcome"] == "failed"]
    assert [(check["model"], check["numbers"]["score"]) for check in failed] == [("tiny", 0.75)]
    assert set(Check.__dataclass_fields__) | {"model"} == failed[0].keys()


def test_a_label_left_over_plays_no_part(records: list[Record], config_values: dict[str, Any], tmp_path: Path) -> None:
    """Records of a label that the configuration no longer has."""
    config = build_run_config(config_values | {"methods": {"full": {}}}, "c")
    left_over = changed([r for r in records if r.variant == "streaming"], {"variant": "streaming"}, score=1.0)
    write_all(tmp_path / "records", [r for r in records if r.variant == "full"])
    write_all(tmp_path / "records", left_over)
    check_instrument(config, tmp_path / "records", tmp_path / "instrument.json")
    assert json.loads((tmp_path / "instrument.json").read_text())["passed"] is True
