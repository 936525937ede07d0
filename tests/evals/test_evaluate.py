"""Jobs: numbers against transformers, statuses for what cannot run, and a killed run that ends as if never killed."""

from __future__ import annotations

import copy
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from longdecode.engine.errors import CheckpointError, DeviceMemoryError, GateError, UnsupportedCellError
from longdecode.engine.generation import Generator
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.evals import gate as gates
from longdecode.evals import quality_job
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.records import Record, hash_output
from longdecode.evals.run_config import build_run_config
from longdecode.evals.store import journal_path, kept_path, read_records
from longdecode.evals.tasks.base import Score
from longdecode.evals.tasks.registry import get_task
from longdecode.methods import conformance_launches

BYTES = load_tokenizer(Path(__file__).resolve().parents[2] / "models" / "miniature" / "weights")
MOMENTS = {"measures": {"prefill_ms", "decode_ms"}, "provenance": {"started_at", "sm_clock_mhz", "revision", "dirty"}}
"""Fields that differ between two runs of the same code."""
Patch, Values = pytest.MonkeyPatch, dict[str, Any]
Run = Callable[..., list[Record]]


@pytest.fixture
def run(tmp_path: Path, config_values: Values, gate: list[tuple[Any, ...]]) -> Run:
    """Run one job of the small configuration, edited, and read its records."""

    def start(label: str, suite: str, folder: str = "a", **changes: Any) -> list[Record]:
        config = build_run_config(config_values | changes, "test.yaml")
        output = tmp_path / folder / "records" / "tiny" / label / f"{suite}.parquet"
        evaluate_suite(config, "tiny", suite, {label: output})
        return read_records(output, Record)

    return start


def comparable(record: Record) -> dict[str, Any]:
    return record.model_dump(exclude=MOMENTS)


def count_prefills(monkeypatch: Patch) -> list[int]:
    sizes: list[int] = []
    prefill = Generator.prefill

    def counted(self: Generator, requests: Sequence[Any], methods: Sequence[Any]) -> Any:
        sizes.append(len(requests))
        return prefill(self, requests, methods)

    monkeypatch.setattr(Generator, "prefill", counted)
    return sizes


def watch_decoding(monkeypatch: Patch, fails: Callable[[list[Any]], Exception | None] = lambda done: None) -> list[Any]:
    """Return the methods of decoded batches, as they come; the last one fails with what ``fails`` gives for them."""
    decoded: list[Any] = []
    decode = Generator.decode

    def watched(self: Generator, prompt: Any, method: Any, **given: Any) -> Any:
        decoded.append(method)
        if (error := fails(decoded)) is not None:
            raise error
        return decode(self, prompt, method, **given)

    monkeypatch.setattr(Generator, "decode", watched)
    return decoded


def test_cells_and_samples_come_in_order_and_complete(run: Run, gate: list[Any]) -> None:
    records = run("streaming", "mini_recall")
    found = [(r.context, r.task, r.budget, r.sample_index) for r in records]
    tasks = ("mini_recall_single", "mini_recall_two_hop")
    assert found == [(c, t, b, i) for c in (256, 320) for t in tasks for b in ("0.5", "64") for i in range(3)]
    assert {(r.context, r.budget, r.budget_tokens) for r in records} == {
        (256, "0.5", 128), (256, "64", 64), (320, "0.5", 160), (320, "64", 64),
    }  # fmt: skip
    for record in records:
        sample = get_task(record.task).samples(record.context, 3, 5, BYTES)[record.sample_index]
        assert record.status == "ok" and record.output_ids is not None and record.output_text is not None
        text = bytes(token for token in record.output_ids if token < 256).decode(errors="replace")
        assert record.score == get_task(record.task).score(sample, text, ()).value
        assert 0 < record.measures["kv_tokens_read"] <= (record.budget_tokens or 0)
        assert len(record.output_ids) <= sample.max_new_tokens
        assert record.measures["kv_bytes_per_step"] == 2 * 2 * 2 * 8 * 4 * (record.budget_tokens or 0)
    assert len(gate) == 1
    # One prompt serves every budget; a cell has one fingerprint.
    assert len({(r.task, r.context, r.sample_index, r.prompt_sha256) for r in records}) == 12
    assert len({r.prompt_sha256 for r in records}) == 12 and len({r.provenance.fingerprint for r in records}) == 8
    assert all(r.output_sha256 == hash_output(r.output_ids) for r in records)


def test_loss_is_that_of_transformers(run: Run, byte_checkpoint: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(byte_checkpoint, dtype=torch.float32, attn_implementation="eager")
    records = [record for record in run("full", "mini_book") if record.task == "mini_book_loss"]
    assert [record.sample_index for record in records] == [0, 1]
    for record in records:
        sample = get_task("mini_book_loss").samples(512, 2, 5, BYTES)[record.sample_index]
        ids = torch.tensor([list((sample.prompt + sample.forced).encode())])
        with torch.no_grad():
            logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
        nll = -logprobs.gather(1, ids[0, 1:, None])[-256:, 0]
        assert record.score == pytest.approx(nll.mean().item(), abs=1e-4)
        assert record.parts == pytest.approx(nll.view(8, 32).mean(1).tolist(), abs=1e-3)
        assert (record.budget, record.budget_tokens) == ("full", None)


def test_sampled_tasks_have_noise_of_their_own_for_each_sample(run: Run) -> None:
    written = [record for record in run("full", "mini_book") if record.task == "mini_book_write"]
    again = [record for record in run("full", "mini_book", "b") if record.task == "mini_book_write"]
    other = [record for record in run("full", "mini_book", "c", seed=6) if record.task == "mini_book_write"]
    assert [record.output_ids for record in written] == [record.output_ids for record in again]
    assert len({tuple(record.output_ids or ()) for record in (*written, *other)}) == 4
    assert {len(record.output_ids or ()) for record in written} == {384}


def test_a_budget_in_bytes_of_a_model_out_of_reach_says_which_model(run: Run, tmp_path: Path) -> None:
    """Native budgets are solved for the model's shape: without it no cell can be named, so that the job ends."""
    gone = {"models": {"tiny": {"path": str(tmp_path / "gone")}}}
    assert {r.status for r in run("full", "mini_recall", budgets=[0.5], **gone)} == {"failed_gate"}
    with pytest.raises(CheckpointError, match="gone"):
        run("streaming", "mini_recall", budgets=[{"bytes": 0.5}], **gone)


def test_what_cannot_run_ends_as_a_status(run: Run) -> None:
    suites = {
        "mini_recall": {"contexts": [256, 1025], "samples": 1, "tasks": ["mini_recall_single"]},
        "mini_book": {"contexts": [200, 512], "samples": 1, "tasks": ["mini_book_loss", "mini_book_pg19"]},
    }
    over = {r.context: r for r in run("full", "mini_recall", suites=suites)}
    assert over[256].status == "ok"
    assert (over[1025].status, over[1025].sample_index, over[1025].score) == ("unsupported", -1, None)
    assert over[1025].reason is not None and "1024" in over[1025].reason
    book = {(r.context, r.task): r for r in run("full", "mini_book", suites=suites)}
    assert [r.status for r in book.values()] == ["unsupported", "unsupported", "ok", "data_unavailable"]
    assert "longdecode data fetch pg19" in (book[512, "mini_book_pg19"].reason or "")
    small = {r.budget: r for r in run("streaming", "mini_recall", budgets=[3, 0.5], suites=suites) if r.context == 256}
    assert (small["3"].status, small["0.5"].status) == ("unsupported", "ok")
    assert "at least 5" in (small["3"].reason or "")


def test_out_of_memory_closes_the_cell_and_the_job_goes_on(run: Run, monkeypatch: Patch) -> None:
    prefill = Generator._prefill

    def tight(self: Generator, requests: Sequence[Any], *given: Any) -> Any:
        if requests[0].total_tokens > 300:
            raise DeviceMemoryError("320 tokens are too many")
        return prefill(self, requests, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Generator, "_prefill", tight)
        records = run("streaming", "mini_recall")
    assert {(r.context, r.status) for r in records} == {(256, "ok"), (320, "oom")}
    assert [r.sample_index for r in records if r.context == 320] == [-1] * 4
    # Memory may be there the next time: the cells run again, the others do not.
    sizes = count_prefills(monkeypatch)
    assert {(r.context, r.status) for r in run("streaming", "mini_recall")} == {(256, "ok"), (320, "ok")}
    assert sizes == [2, 1, 2, 1]


def test_a_method_with_a_small_cache_runs_where_the_shared_prompt_does_not_fit(run: Run, monkeypatch: Patch) -> None:
    shared = run("streaming", "mini_recall", "shared")

    def tight(*given: Any) -> Any:
        raise DeviceMemoryError("no room for a dense cache")

    monkeypatch.setattr(Generator, "prefill", tight)
    assert list(map(comparable, run("streaming", "mini_recall"))) == list(map(comparable, shared))


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("full"), RuntimeError("DefaultCPUAllocator: no memory")])
def test_a_cell_that_fails_half_way_has_no_samples(run: Run, monkeypatch: Patch, error: Exception) -> None:
    watch_decoding(monkeypatch, lambda decoded: error if len(decoded) == 3 else None)
    suites = {"mini_recall": {"contexts": [256], "samples": 4, "batch": 2, "tasks": ["mini_recall_single"]}}
    found = [(r.budget, r.status, r.sample_index) for r in run("streaming", "mini_recall", suites=suites)]
    assert found == [("0.5", "oom", -1), *(("64", "ok", i) for i in range(4))]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (GateError("logits differ by 3"), "failed_gate"),
        (UnsupportedCellError("the smallest budget is 5"), "unsupported"),
    ],
)
def test_a_method_that_fails_its_gate_is_not_scored_and_leaves_the_others_alone(
    config_values: Values, tmp_path: Path, monkeypatch: Patch, error: Exception, status: str
) -> None:
    def refuse(method: str, *given: Any) -> None:
        if method == "streaming":
            raise error

    monkeypatch.setattr(gates, "check_method", refuse)
    decoded = watch_decoding(monkeypatch)
    outputs = {label: tmp_path / "records" / f"{label}.parquet" for label in ("streaming", "full")}
    evaluate_suite(build_run_config(config_values, "c"), "tiny", "mini_recall", outputs)
    found = {label: read_records(path, Record) for label, path in outputs.items()}
    assert [(r.status, r.reason, r.score) for r in found["streaming"]] == [(status, str(error), None)] * 8
    assert [r.status for r in found["full"]] == ["ok"] * 12 and {method.name for method in decoded} == {"full"}


def test_one_prefill_serves_all_labels(run: Run, config_values: Values, tmp_path: Path, monkeypatch: Patch) -> None:
    """And gives each label what it gets alone."""
    alone = {label: run(label, "mini_recall", "alone") for label in ("full", "streaming")}
    sizes = count_prefills(monkeypatch)
    outputs = {label: tmp_path / "both" / "records" / label / "s.parquet" for label in alone}
    config = build_run_config(config_values, "c")
    evaluate_suite(config, "tiny", "mini_recall", outputs)
    assert sizes == [2, 1] * 4
    for label, path in outputs.items():
        assert list(map(comparable, read_records(path, Record))) == list(map(comparable, alone[label]))
    # A variant's records are its own: a new one runs without the old ones.
    for path in (outputs["full"], kept_path(outputs["full"])):
        path.unlink()
    decoded = watch_decoding(monkeypatch)
    evaluate_suite(config, "tiny", "mini_recall", outputs)
    assert {method.name for method in decoded} == {"full"}


def test_one_label_out_of_memory(config_values: Values, tmp_path: Path, gate: list[Any], monkeypatch: Patch) -> None:
    """It does not stop the others."""
    no_room = DeviceMemoryError("no room beside the prompt")
    watch_decoding(monkeypatch, lambda decoded: no_room if decoded[-1].name == "streaming" else None)
    outputs = {label: tmp_path / f"{label}.parquet" for label in ("streaming", "full")}
    evaluate_suite(build_run_config(config_values, "c"), "tiny", "mini_recall", outputs)
    assert {r.status for r in read_records(outputs["streaming"], Record)} == {"oom"}
    assert {r.status for r in read_records(outputs["full"], Record)} == {"ok"}


def test_a_score_that_is_no_number_is_a_failed_gate(run: Run, monkeypatch: Patch) -> None:
    monkeypatch.setattr("longdecode.evals.tasks.continuation.NatsPerByte.score", lambda *given: Score(float("nan")))
    statuses = {r.task: r.status for r in run("full", "mini_book")}
    assert statuses == {"mini_book_loss": "failed_gate", "mini_book_write": "ok", "mini_book_pg19": "data_unavailable"}


def test_progress_names_batches_and_a_second_run_computes_nothing(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    suites = {"mini_recall": {"contexts": [256], "samples": 3, "batch": 2, "tasks": ["mini_recall_single"]}}
    found = []
    for open_cells, batches in ((2, ["  tiny/mini_recall mini_recall_single context=256: 2 of 3 samples,"]), (0, [])):
        found.append(run("streaming", "mini_recall", suites=suites))
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == f"tiny/mini_recall: streaming: {open_cells} cells to run, {2 - open_cells} known"
        assert [re.sub(r" \d+ s$", "", line) for line in lines if " samples, " in line] == batches
        assert len([line for line in lines if re.search(r"budget=(0.5|64) n=3 mean=0\.\d{4}$", line)]) == open_cells
    assert found[0] == found[1]


def test_other_errors_are_not_swallowed(run: Run, monkeypatch: Patch) -> None:
    watch_decoding(monkeypatch, lambda decoded: ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        run("full", "mini_recall")


def test_a_gpu_that_falls_away_ends_the_job_alone(run: Run, tmp_path: Path, monkeypatch: Patch) -> None:
    """In each part of the gate, then between two batches: the next run completes as if nothing had been."""
    lost = torch.AcceleratorError("CUDA error: unspecified launch failure")

    def fall(*given: Any, **named: Any) -> None:
        raise lost

    strikes: list[Callable[[Patch], object]] = [
        lambda patch: patch.setattr(gates, "check_method", fall),
        lambda patch: patch.setattr(conformance_launches, "check_launches", fall),
        lambda patch: watch_decoding(patch, lambda decoded: lost if len(decoded) == 4 else None),
    ]
    for strike in strikes:
        assert not (tmp_path / "a" / "gate").exists()
        with monkeypatch.context() as patch, pytest.raises(torch.AcceleratorError):
            strike(patch)
            run("streaming", "mini_recall")
        assert not [*tmp_path.rglob("*.parquet")]
    resumed, undisturbed = (run("streaming", "mini_recall", folder) for folder in "ab")
    assert list(map(comparable, resumed)) == list(map(comparable, undisturbed))


def test_a_new_budget_runs_alone_and_a_dropped_one_leaves_the_table(run: Run, monkeypatch: Patch) -> None:
    run("streaming", "mini_recall")
    fresh = run("streaming", "mini_recall", "b", budgets=[0.5, 32])
    decoded = watch_decoding(monkeypatch)
    later = run("streaming", "mini_recall", budgets=[0.5, 32])
    assert {method.budget_tokens for method in decoded} == {32}
    assert list(map(comparable, later)) == list(map(comparable, fresh))


def test_outputs_are_kept_for_the_first_prompts_of_a_cell(run: Run, monkeypatch: Patch) -> None:
    monkeypatch.setattr(quality_job, "KEPT_OUTPUTS", 2)
    records = run("full", "mini_recall")
    assert {r.sample_index for r in records if r.output_ids is not None and r.output_text is not None} == {0, 1}
    assert all(r.output_sha256 for r in records)


@pytest.mark.parametrize("changed", ["code", "params", "samples", "end token", "seed"])
def test_changes_run_again(run: Run, config_values: Values, tmp_path: Path, monkeypatch: Patch, changed: str) -> None:
    """All samples, where something changed that changes the numbers."""
    folder = Path(shutil.copytree(config_values["models"]["tiny"]["path"], tmp_path / "model"))
    config_values["models"]["tiny"]["path"] = str(folder)
    run("streaming", "mini_recall")
    changes = copy.deepcopy(config_values)
    if changed == "code":
        monkeypatch.setattr(quality_job, "quality_code_hash", lambda method, task: "another")
    elif changed == "params":
        changes["methods"]["streaming"] = {"params": {"sinks": 3}}
    elif changed == "seed":
        changes["seed"] = 6
    elif changed == "end token":
        (folder / "generation_config.json").write_text('{"eos_token_id": 65}')
    else:
        changes["suites"]["mini_recall"]["samples"] = 2
    sizes = count_prefills(monkeypatch)
    records = run("streaming", "mini_recall", **changes)
    assert sum(sizes) == len({(r.task, r.context, r.sample_index) for r in records})


_KILLED = """
import os, signal, sys
from pathlib import Path
from longdecode.evals import evaluate, gate
from longdecode.evals.run_config import load_run_config
from longdecode.evals.store import Store
gate.check_method = lambda *given: None
left, partial, add = int(sys.argv[1]), int(sys.argv[2]), Store._append

def add_or_die(self, line):
    global left
    if left == 0:
        with self._journal.open("ab") as journal:
            journal.write(line[:partial])
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    add(self, line)

Store._append = add_or_die
evaluate.evaluate_suite(load_run_config(sys.argv[3]), "tiny", "mini_recall", {"streaming": Path(sys.argv[4])})
"""


def test_a_text_is_compared_with_full_where_no_dense_method_runs_beside(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("Some prose, long enough to be cut anywhere. " * 200)
    suites = {"fidelity": {"contexts": [512], "samples": 2, "batch": 2, "tasks": ["fidelity_forced"]}}
    given = {"methods": {"full": {}, "infllm2": {}}, "data": {"prose": str(tmp_path / "prose.txt")}, "suites": suites}
    assert {r.status for r in run("infllm2", "fidelity", **given)} == {"ok"}


@pytest.mark.parametrize("refill", [False, True])
def test_a_killed_job_resumes_and_ends_with_the_same_records(
    run: Run, config_values: Values, tmp_path: Path, seed: int, monkeypatch: Patch, refill: bool
) -> None:
    in_batches = [(r.key, r.index, r.output_sha256, r.score) for r in run("streaming", "mini_recall", "in batches")]
    config_values["suites"]["mini_recall"]["refill"] = refill
    uninterrupted = run("streaming", "mini_recall", "whole")
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(config_values))
    output = tmp_path / "a" / "records" / "tiny" / "streaming" / "mini_recall.parquet"
    rng = random.Random(seed)
    survive, partial = rng.randrange(1, 15), rng.randrange(0, 200)
    command = [sys.executable, "-c", _KILLED, str(survive), str(partial), str(config), str(output)]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not output.exists() and journal_path(output).read_bytes().count(b"\n") == survive
    sizes, resumed = count_prefills(monkeypatch), run("streaming", "mini_recall")
    assert list(map(comparable, resumed)) == list(map(comparable, uninterrupted))
    assert sum(sizes) <= 12 - survive // 2 * 3 // 2 + 2
    assert [(r.key, r.index, r.output_sha256, r.score) for r in resumed] == in_batches
