"""lm-eval's own tasks on our engine: full attention equals HFLM, and sparse methods really decide what is scored."""

# ruff: noqa: E402 (the libraries read these variables once, when they are imported)
from __future__ import annotations

import functools
import json
import os
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

for _name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ.setdefault(_name, "1")

import lm_eval.tasks
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, LlamaForCausalLM

from json_lines import write_rows
from longdecode.engine.errors import ConfigError, ContextLimitError, GateError
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.evals.lm_eval_adapter import model as adapter
from longdecode.evals.lm_eval_adapter.model import LongDecodeLM, batches, read_generation
from longdecode.evals.tasks.registry import get_task

WEIGHTS = Path(__file__).resolve().parents[2] / "models" / "miniature" / "weights"
BYTES = load_tokenizer(WEIGHTS)
CONTEXT = 320
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "recall_written": ("exact_match", {
        "output_type": "generate_until", "doc_to_target": "answer",
        "generation_kwargs": {"until": ["\n", "e ga"], "max_gen_toks": 10},
    }),
    "recall_chosen": ("acc", {
        "output_type": "multiple_choice", "doc_to_choice": "choices", "doc_to_target": "right", "target_delimiter": "",
    }),
}  # fmt: skip
"""Metric and own keys of each task."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks over look-ups that the miniature solves, as lm-eval reads them: YAML and a local jsonl."""
    where = tmp_path_factory.mktemp("lm_eval_tasks")
    samples = get_task("mini_recall_single").samples(CONTEXT, 4, 3, BYTES)
    answers, rows = [sample.meta[0] for sample in samples], []
    for i, sample in enumerate(samples):
        key, digits = answers[i].split("=")
        choices = [answers[i], f"{key}={(int(digits) + 1234) % 10000:04d}"][:: 1 if i % 2 == 0 else -1]
        context = sample.prompt + sample.forced
        rows.append({"context": context, "answer": answers[i], "right": i % 2, "choices": choices})
    files = {"test": str(write_rows(where / "docs.jsonl", rows))}
    shared = {"dataset_path": "json", "dataset_kwargs": {"data_files": files}, "test_split": "test"}
    for name, (metric, own) in TASKS.items():
        metrics = [{"metric": metric, "aggregation": "mean", "higher_is_better": True}]
        values = shared | own | {"task": name, "doc_to_text": "context", "metric_list": metrics}
        (where / f"{name}.yaml").write_text(json.dumps(values))
    return where


def evaluate(model: Any, folder: Path, **kwargs: Any) -> dict[str, Any]:
    manager = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
    found = simple_evaluate(model=model, tasks=list(TASKS), task_manager=manager, bootstrap_iters=0, **kwargs)
    assert found is not None
    return found


def written(results: dict[str, Any]) -> list[str]:
    return [sample["resps"][0][0] for sample in sorted(results["samples"]["recall_written"], key=lambda s: s["doc_id"])]


def chosen(results: dict[str, Any]) -> list[tuple[float, bool]]:
    rows = sorted(results["samples"]["recall_chosen"], key=lambda s: s["doc_id"])
    return [(float(logprob), str(greedy) == "True") for row in rows for ((logprob, greedy),) in row["resps"]]


def ours(folder: Path, **arguments: Any) -> dict[str, Any]:
    given = {"pretrained": str(WEIGHTS), "device": "cpu", "dtype": "float32", "gate": False, "batch_size": 5}
    return evaluate("longdecode", folder, model_args=given | arguments)


@pytest.fixture(scope="module")
def reference() -> HFLM:
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    model = LlamaForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32)
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=1024, device="cpu")


def test_full_equals_transformers_and_a_sparse_method_is_seen(folder: Path, reference: HFLM) -> None:
    theirs, full = evaluate(reference, folder), ours(folder)
    assert written(full) == written(theirs)
    for mine, other in zip(chosen(full), chosen(theirs), strict=True):
        assert mine[0] == pytest.approx(other[0], abs=2e-3) and mine[1] == other[1]
    for task, metric in (("recall_written", "exact_match,none"), ("recall_chosen", "acc,none")):
        assert full["results"][task][metric] == theirs["results"][task][metric] >= 0.75
    assert full["config"]["method"] == "full" and full["config"]["read_tokens_mean"] > 280

    # A window of 64 tokens sees the question, seldom the record; pages of Quest find it. Even the probability of the
    # first token of a choice is the method's.
    near = ours(folder, method="streaming", budget=64)
    pages = ours(folder, method="quest", budget=128)
    assert near["results"]["recall_written"]["exact_match,none"] <= 0.5
    assert pages["results"]["recall_written"]["exact_match,none"] >= 0.75
    assert all(abs(a[0] - b[0]) > 1e-4 for a, b in zip(chosen(pages), chosen(full), strict=True))
    assert near["config"]["read_tokens_mean"] <= 64 and pages["config"]["params"] == {}


def test_a_document_is_scored_token_by_token(reference: HFLM) -> None:
    texts = [get_task("mini_recall_single").samples(128, 1, i, BYTES)[0].prompt for i in (1, 2)]
    asked = [Instance("loglikelihood_rolling", {}, (text,), i) for i, text in enumerate(texts)]
    lm = LongDecodeLM(str(WEIGHTS), device="cpu", dtype="float32", batch_size=2, gate=False)
    expected = reference.loglikelihood_rolling(asked, disable_tqdm=True)
    assert lm.loglikelihood_rolling(asked, disable_tqdm=True) == pytest.approx(expected, abs=0.02)
    # Longer than the window: disjoint windows, each token scored once.
    short = LongDecodeLM(str(WEIGHTS), device="cpu", dtype="float32", max_length=80, gate=False)
    reference_short = HFLM(pretrained=reference.model, tokenizer=reference.tokenizer, max_length=80, device="cpu")
    expected = reference_short.loglikelihood_rolling(asked, disable_tqdm=True)
    assert short.loglikelihood_rolling(asked, disable_tqdm=True) == pytest.approx(expected, abs=0.02)


def test_prompts_too_long_lose_their_beginning_and_sampling_has_its_own_noise(reference: HFLM) -> None:
    sample = get_task("mini_recall_single").samples(400, 1, 0, BYTES)[0]
    context = sample.prompt + sample.forced
    lm = LongDecodeLM(str(WEIGHTS), device="cpu", dtype="float32", batch_size=4, max_length=200, gate=False)
    short = HFLM(pretrained=reference.model, tokenizer=reference.tokenizer, max_length=200, device="cpu")
    asked = [Instance("loglikelihood", {}, (context, ending), i) for i, ending in enumerate(("abcd=1", "x"))]
    got, expected = ([a for a, _ in one.loglikelihood(asked, disable_tqdm=True)] for one in (lm, short))
    assert got == pytest.approx(expected, abs=2e-3)
    with pytest.raises(ContextLimitError, match="200"):
        lm.generate_until([Instance("generate_until", {}, (context, {"max_gen_toks": 200}), 0)])
    drawn = {"do_sample": True, "temperature": 20.0, "max_gen_toks": 20, "until": []}
    several = [Instance("generate_until", {}, (context, drawn), i) for i in range(3)]
    first = lm.generate_until(several, disable_tqdm=True)
    assert len(set(first)) == 3 and lm.generate_until(several, disable_tqdm=True) == first


def test_a_context_over_the_models_own_limit_is_read_as_lm_eval_reads_it(byte_checkpoint: Path) -> None:
    lm = LongDecodeLM(str(byte_checkpoint), device="cpu", dtype="float32", gate=False)
    model = LlamaForCausalLM.from_pretrained(byte_checkpoint, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)  # bytes too, with an end of text, which lm-eval asks for
    reference = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, device="cpu")
    assert lm.max_length == reference.max_length == 1024
    text = "".join(f"{i} is followed by {i + 1}. " for i in range(100))
    asked = [Instance("loglikelihood", {}, (text, " the end"), 0)]
    ((mine, _),) = lm.loglikelihood(asked, disable_tqdm=True)
    ((theirs, _),) = reference.loglikelihood(asked, disable_tqdm=True)
    assert mine == pytest.approx(theirs, abs=2e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("cuda", "cuda:0", "cuda:7"):
        with pytest.raises(ConfigError, match=f"'{device}' asked for"):
            LongDecodeLM.create_from_arg_obj({"pretrained": str(WEIGHTS), "gate": False}, {"device": device})
    manager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", manager)
    arguments = ["lm_eval", "--model", "longdecode", "--model_args", f"pretrained={WEIGHTS},gate=false", "--tasks",
                 "recall_written", "--include_path", str(folder), "--limit", "1"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", [*arguments, "--device", "cuda:0"])
    with pytest.raises(SystemExit, match=r"ConfigError: .*'cuda:0' asked for"):
        runpy.run_module("longdecode.evals.lm_eval_adapter", run_name="__main__")
    # lm-eval names cuda:0 by itself where the user names no device: that is no wish.
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_module("longdecode.evals.lm_eval_adapter", run_name="__main__")


def test_the_command_line_is_lm_evals(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the 14,000 tasks that ship with lm-eval are left out, whose indexing takes seconds."""
    manager = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", manager)
    arguments = f"method=quest,budget=128,pretrained={WEIGHTS},device=cpu,dtype=float32,gate=false,page_size=8"
    monkeypatch.setattr(
        sys, "argv",
        ["lm_eval", "--model", "longdecode", "--model_args", arguments, "--tasks", "recall_written", "--include_path",
         str(folder), "--limit", "2", "--batch_size", "2", "--output_path", str(tmp_path / "out"), "--log_samples"],
    )  # fmt: skip
    runpy.run_module("longdecode.evals.lm_eval_adapter", run_name="__main__")
    shown = capsys.readouterr().out
    assert "recall_written" in shown and "exact_match" in shown
    (file,) = (tmp_path / "out").rglob("results_*.json")
    config = json.loads(file.read_text())["config"]
    assert (config["method"], config["budget"], config["params"]) == ("quest", 128, {"page_size": 8})
    assert 0 < config["read_tokens_mean"] < CONTEXT and config["decode_steps"] > 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "quest", "budget": 64, "page_sise": 8}, "page_size"),
        ({"method": "quest"}, "budget"),
        ({"method": "full", "budget": 64}, "takes no budget"),
        ({"batch_size": "auto"}, "batch_size: is 'auto'; .*integer"),
        ({"budget": 0.5, "method": "quest"}, "budget: is 0.5"),
        ({"metod": "quest"}, "model_args: unknown option 'metod'; nearest valid name: 'method'"),
        ({"max_length": 1 << 20}, "over the model's limit"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LongDecodeLM(str(WEIGHTS), device="cpu", **({"gate": False} | arguments))


def test_a_method_that_fails_its_gate_is_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise GateError(f"{given[0]} is wrong")

    monkeypatch.setattr(adapter, "check_method", refuse)
    with pytest.raises(GateError, match="quest is wrong"):
        LongDecodeLM(str(WEIGHTS), method="quest", budget=64, device="cpu")


def test_generation_arguments() -> None:
    greedy = read_generation({"until": "\n", "temperature": 0.7, "do_sample": False}, 32)
    assert (greedy.sampling.temperature, greedy.max_new_tokens, greedy.until) == (0.0, 32, ("\n",))
    drawn = read_generation({"until": ["a", ""], "temperature": 0.7, "top_p": 0.9, "max_new_tokens": 5}, 32)
    assert (drawn.sampling.temperature, drawn.sampling.top_p, drawn.max_new_tokens) == (0.7, 0.9, 5)
    assert drawn.until == ("a",)
    with pytest.raises(ConfigError, match=r"'top_k'.*'top_p'"):
        read_generation({"top_k": 5}, 32)
    assert read_generation({"until": [None], "temperature": None, "max_gen_toks": None}, 32).max_new_tokens == 32
    assert list(batches([3, 9, 5, 1, 7], ["a", "b", "a", "a", "b"], 2)) == [[2, 0], [3], [1, 4]]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("do_sample", "false", "bool"), ("temperature", "hot", "int or float"), ("top_p", True, "int or float"),
        ("max_gen_toks", 1.5, "int"), ("max_new_tokens", "many", "int"), ("until", 5, "str or list"),
    ],
)  # fmt: skip
def test_generation_arguments_of_another_kind_are_refused(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*, expected {words}"):
        read_generation({"do_sample": True, name: value}, 32)


def test_a_stop_text_told_as_another_ends_nothing_by_its_token(byte_checkpoint: Path, tmp_path: Path) -> None:
    """A tokenizer that lowers case tells Q as q, and what it does not know as unknown."""
    folder = Path(shutil.copytree(byte_checkpoint, tmp_path / "lower"))
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "[SEP]": 1, "q": 2, "?": 3}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[UNK]", "[SEP]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    made = LongDecodeLM(str(folder), device="cpu", gate=False)
    assert made._continued([2, 2], read_generation({"until": ["Q", "\u2600", "[SEP]", "?"]}, 4), 0).stop_ids == {1, 3}
