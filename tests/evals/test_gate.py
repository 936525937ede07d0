"""The gate: each set of parameters is checked once, the outcome is kept in a file and read, and nothing is raised."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from longdecode.engine.device import device_name
from longdecode.engine.errors import DeviceMemoryError, GateError, UnsupportedCellError
from longdecode.evals import gate
from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.gate import Gate
from longdecode.evals.records import Record
from longdecode.evals.run_config import Launches, RunConfig, build_run_config, launches_of
from longdecode.evals.store import read_records
from longdecode.evals.throughput.harness import shape_config
from longdecode.methods import conformance_launches
from longdecode.methods.conformance_launches import LaunchSize, launch_sizes

CPU = torch.device("cpu")
TIMED = [{"bench": "decode", "model": "llama3-8b", "contexts": [512], "budgets": [64], "variants": ["streaming"]}]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Conformance replaced by one that fails ``tidal``, cannot check 5 sinks, and notes what it was asked."""
    asked: list[tuple[str, dict[str, Any]]] = []

    def check(method: str, device: torch.device, params: dict[str, Any]) -> None:
        asked.append((method, params))
        if method == "tidal":
            raise GateError("logits differ by 3")
        if params.get("sinks") == 5:
            raise UnsupportedCellError("no budget fits")

    monkeypatch.setattr(gate, "check_method", check)
    monkeypatch.setattr(conformance_launches, "check_launches", lambda *given, **named: None)
    return asked


def configured(config_values: dict[str, Any], throughput: Any = TIMED, **methods: Any) -> RunConfig:
    values = copy.deepcopy(config_values) | {"throughput": throughput}
    values["methods"] |= methods
    return build_run_config(values, "c")


def test_parameters_are_checked_once_and_kept(config_values: dict[str, Any], tmp_path: Path, checks: list[Any]) -> None:
    more = {"streaming_part": {"method": "streaming", "suites": ["mini_recall"], "budgets": [0.25]}}
    config = configured(config_values, streaming={"by_model": {"llama3-8b": {"sinks": 5}}}, tidal={}, **more)
    opened = Gate(config, CPU, tmp_path)
    for variant in ("streaming", "streaming_part", "tidal"):
        opened.run(variant)
    assert checks == [("streaming", {}), ("streaming", {"sinks": 5}), ("tidal", {})]
    file = json.loads((tmp_path / "streaming.json").read_text())
    assert [verdict["status"] for verdict in file["verdicts"]] == ["passed", "unsupported"]
    assert file["device"] == device_name(CPU) and file["versions"]["torch"] and file["revision"]
    # Another process reads what was written.
    checks.clear()
    again = Gate(config, CPU, tmp_path)
    assert again.refusal("streaming", "tiny") is None is again.refusal("streaming_part", "tiny")
    unsupported, failed = again.refusal("streaming", "llama3-8b"), again.refusal("tidal", "tiny")
    assert isinstance(unsupported, UnsupportedCellError) and str(unsupported) == "no budget fits"
    assert isinstance(failed, GateError) and str(failed) == "logits differ by 3" and not checks


@pytest.mark.parametrize("damage", ["missing", "cut", "device", "code_hash"])
def test_a_bad_file_is_rewritten(config_values: dict[str, Any], tmp_path: Path, checks: list[Any], damage: str) -> None:
    """A file that does not hold is written anew."""
    config, path = configured(config_values), tmp_path / "streaming.json"
    Gate(config, CPU, tmp_path).run("streaming")
    text = path.read_text()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_text(text[:40])
    else:
        path.write_text(json.dumps(json.loads(text) | {damage: "another"}))
    checks.clear()
    assert Gate(config, CPU, tmp_path).refusal("streaming", "tiny") is None
    assert checks == [("streaming", {})] and path.read_text() == text


def test_records_of_a_failed_gate_are_closed(config_values: dict[str, Any], tmp_path: Path, checks: list[Any]) -> None:
    """Those of a variant that conformed before."""
    output = tmp_path / "records" / "tiny" / "streaming" / "mini_book.parquet"
    config = configured(config_values)
    evaluate_suite(config, "tiny", "mini_book", {"streaming": output})
    assert "ok" in {record.status for record in read_records(output, Record)}
    path = tmp_path / "gate" / "streaming.json"
    file = json.loads(path.read_text())
    file["verdicts"][0] |= {"status": "failed_gate", "message": "reads too much"}
    path.write_text(json.dumps(file))
    evaluate_suite(config, "tiny", "mini_book", {"streaming": output})
    found = {(r.status, r.reason) for r in read_records(output, Record) if r.status != "data_unavailable"}
    assert found == {("failed_gate", "reads too much")}


@pytest.mark.parametrize(
    ("error", "barred"),
    [(GateError("outputs differ"), True), (RuntimeError("a kernel broke"), True), (DeviceMemoryError("full"), False)],
)
def test_a_launch_that_fails_bars_its_model_alone(
    config_values: dict[str, Any], tmp_path: Path, checks: list[Any], monkeypatch: pytest.MonkeyPatch,
    error: Exception, barred: bool,
) -> None:  # fmt: skip
    def check(method: str, shape: Any, *given: Any, **named: Any) -> None:
        if shape.hidden_size == 4096:
            raise error

    monkeypatch.setattr(conformance_launches, "check_launches", check)
    config = configured(config_values)
    verdicts = {verdict.model: verdict for verdict in Gate(config, CPU, tmp_path).run("streaming").verdicts}
    assert verdicts["llama3-8b"].message == f"on llama3-8b: {type(error).__name__}: {error}"
    assert verdicts["tiny"].checked == ("512 tokens x 2, budget 256",) and not verdicts["llama3-8b"].checked
    opened = Gate(config, CPU, tmp_path)
    assert isinstance(opened.refusal("streaming", "llama3-8b"), GateError) == barred
    assert opened.refusal("streaming", "tiny") is None


def test_launches_are_the_largest_that_are_scored_or_timed(config_values: dict[str, Any]) -> None:
    config = configured(config_values, streaming={"by_model": {"llama3-8b": {"sinks": 5}}})
    assert launches_of(config, "streaming") == [
        Launches("tiny", {}, 512, 2, (Budget(0.5), Budget(64))),
        Launches("llama3-8b", {"sinks": 5}, 512, 1, (Budget(64),)),
    ]
    assert launches_of(config, "full")[0].budgets == (FULL_BUDGET,)


def test_a_gate_covers_what_is_timed_at_equal_memory(config_values: dict[str, Any]) -> None:
    """Full, which the test times unasked, has the rows that it is given; others as many as a memory may hold."""
    shared = {"bench": "equal_memory", "model": "nosa-8b", "contexts": [8192, 16384], "budgets": [4096]}
    spare = {"method": "streaming", "params": {"sinks": 6}}
    config = configured(config_values, [shared | {"variants": ["streaming"]}], streaming_spare=spare)
    assert launches_of(config, "streaming")[-1] == Launches("nosa-8b", {}, 16384, 64, (Budget(4096),))
    assert launches_of(config, "full")[-1] == Launches("nosa-8b", {}, 16384, 4, (FULL_BUDGET,))
    assert "nosa-8b" not in {launches.model for launches in launches_of(config, "streaming_spare")}


def test_places_fit_the_memory_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, device = shape_config("llama3-8b"), torch.device("cuda")

    def found(free: int) -> list[LaunchSize]:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
        return launch_sizes(131_072, 16, shape, device, torch.bfloat16)

    assert found(140 * 10**9) == [LaunchSize(131_072, 1), LaunchSize(13_078, 16)]
    assert all(place.cache_bytes(shape, torch.bfloat16) <= 6e9 for place in found(140 * 10**9))
    assert found(8 * 10**9) == [LaunchSize(69_754, 1), LaunchSize(4_359, 16)]
    with pytest.raises(UnsupportedCellError, match="1024 tokens take"):
        found(10**8)
