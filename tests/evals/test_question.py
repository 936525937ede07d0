"""Both protocols of a question: one text, cut at the question, encoded with care, and named in records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models

from fake_tokenizer import subwords
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.fingerprint import quality_settings
from longdecode.evals.instrument import run_checks
from longdecode.evals.quality_job import QualityJob
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.specs import InstrumentSpec
from longdecode.evals.store import read_records
from longdecode.evals.tasks.base import Reasked, Sample, Score, Task, encoded
from longdecode.evals.tasks.registry import describe, folder_of, get_suite, get_task, suite_names, suite_tasks

MINIATURE = Path(__file__).resolve().parents[2] / "models" / "miniature" / "weights"
# Tasks that need no data, one of each kind of question, with what their question begins with.
ASKED = {
    "passkey_depth_50": "What is the pass key?", "json_kv": "Key: ", "mini_recall_two_hop": "\n? ",
    "mini_reason_8": "\n! ", "mini_longgen_15": "\n? ", "mini_longgen_90": "\n? ",
    "ruler_niah_single_1": "What is the special magic number for ", "ruler_vt": "Question: Find all variables",
    "ruler_fwe": "Question: Do not provide",
}  # fmt: skip


def made(name: str, tokenizer: TextTokenizer, context: int = 4096) -> list[Sample]:
    return get_task(name).samples(context, 2, 0, tokenizer)


def other(name: str) -> str:
    """The name of a task under its suite's other protocol."""
    return next(f"{name}_{question}" for question in ("decoded", "prompt") if question != get_task(name).question)


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("words", [False, True], ids=["bytes", "bpe"])
def test_both_protocols_cut_one_text_at_the_question(name: str, words: bool) -> None:
    tokenizer = subwords(first=True) if words else load_tokenizer(MINIATURE)
    context = 8192 if name == "mini_longgen_90" else 4096
    for own, moved in zip(made(name, tokenizer, context), made(other(name), tokenizer, context), strict=True):
        assert own.prompt + own.forced == moved.prompt + moved.forced
        assert (own.meta, own.stop, own.max_new_tokens) == (moved.meta, moved.stop, moved.max_new_tokens)
        decoded, prompt = (own, moved) if get_task(name).question == "decoded" else (moved, own)
        assert decoded.forced.startswith(ASKED[name]) and prompt.prompt.startswith(decoded.prompt)
        asked = prompt.prompt[len(decoded.prompt) :]
        assert asked + prompt.forced == decoded.forced and prompt.question_chars in (0, len(asked))
        for sample in (decoded, prompt):
            ids, forced = encoded(sample, False, tokenizer)
            assert len(ids) + len(forced) + sample.max_new_tokens <= context
            assert ids == tokenizer.prompt_ids(sample.prompt)


class Abutting(Task):
    """A text and a question that fill the context exactly when they are encoded apart."""

    def __init__(self, *, chat: bool = False) -> None:
        self.name = self.suite = "abutting"
        self.chat = chat

    def samples(self, context_tokens: int, count: int, seed: int, tokenizer: TextTokenizer) -> list[Sample]:
        return [Sample(0, "x" * (context_tokens - 3) + "abc", "d", 1, None, None)]

    def score(self, sample: Sample, completion: str, forced_nll: tuple[float, ...]) -> Score:
        return Score(0.0)


def test_a_text_that_takes_more_tokens_in_one_piece_is_made_shorter() -> None:
    vocabulary = {token: number for number, token in enumerate(["x", "a", "b", "c", "d", "cd", "bc", "abc"])}
    tokenizer = TextTokenizer(Tokenizer(models.BPE(vocabulary, [("c", "d"), ("b", "c"), ("a", "bc")])))
    assert len(tokenizer.encode("abc") + tokenizer.encode("d")) == 2 < len(tokenizer.encode("abcd")) == 3
    (own,) = Abutting().samples(10, 1, 0, tokenizer)
    assert len(tokenizer.encode(own.prompt)) + len(tokenizer.encode(own.forced)) + 1 == 10
    (moved,) = Reasked(Abutting(), "decoded", "prompt").samples(10, 1, 0, tokenizer)
    assert moved.prompt == "x" * 6 + "abcd" and len(tokenizer.encode(moved.prompt)) + 1 == 10


@pytest.mark.parametrize("name", ["ruler_niah_single_1_chat", "ruler_vt_chat"])
def test_in_a_chat_template_the_question_ends_the_users_turn(name: str, chatty: Path) -> None:
    tokenizer = load_tokenizer(chatty)
    for own, decoded in zip(made(name, tokenizer), made(f"{name}_decoded", tokenizer), strict=True):
        whole = tokenizer.chat_text(own.prompt) + own.forced
        question = own.prompt[-own.question_chars :]
        assert decoded.prompt + decoded.forced == whole and decoded.templated and not own.templated
        assert decoded.forced == f"{question}[end][bot]{own.forced}"
        assert sum(encoded(own, True, tokenizer), ()) == sum(encoded(decoded, True, tokenizer), ())


def test_a_decoded_question_of_a_chat_suite_stands_in_the_users_turn_and_ends_are_trimmed(chatty: Path) -> None:
    tokenizer = load_tokenizer(chatty)
    task = Reasked(Abutting(chat=True), "decoded", "decoded")
    (sample,) = task.samples(60, 1, 0, tokenizer)
    assert (task.name, sample.forced, sample.prompt[:10]) == ("abutting", "d[end][bot]", "<s>[user]x")
    assert sum(map(len, encoded(sample, True, tokenizer))) + 1 <= 60
    spaced = Sample(0, " \n some text ", " who? \n", 1, None, None)
    moved = task._moved(spaced, tokenizer)
    assert moved.prompt + moved.forced == "<s>[user]some text  who?[end][bot]" and moved.forced == " who?[end][bot]"
    with pytest.raises(UnsupportedCellError, match="chat template changes the text"):
        task._moved(spaced, Upper())  # type: ignore[arg-type]


class Upper:
    """A template that changes letters."""

    def chat_text(self, text: str) -> str:
        return text.upper()


def test_a_sample_without_a_mark_is_refused() -> None:
    task = Reasked(Abutting(), "prompt", "decoded")
    with pytest.raises(ConfigError, match="abutting: sample 0 has a text of 10 characters and a question of 0"):
        task.samples(10, 1, 0, load_tokenizer(MINIATURE))


SUITE_SETTINGS = {"contexts": [512], "samples": 2, "batch": 2}


def config(values: dict[str, Any], suites: dict[str, Any], **more: Any) -> Any:
    return build_run_config({**values, "suites": suites, **more}, "test.yaml", check_params=False)


def test_the_key_makes_a_suite_of_each_protocol(config_values: dict[str, Any]) -> None:
    config_values["methods"]["mine"] = {"method": "streaming", "suites": ["mini_recall"]}
    both = {**SUITE_SETTINGS, "question": ["decoded", "prompt"], "tasks": ["mini_recall_single"]}
    run = config(config_values, {"mini_recall": both, "longbench": {**SUITE_SETTINGS, "question": "prompt"}})
    assert list(run.suites) == ["mini_recall", "mini_recall_prompt", "longbench_prompt"]
    assert run.suites["mini_recall"].tasks == ("mini_recall_single",)
    assert run.suites["mini_recall_prompt"].tasks == ("mini_recall_single_prompt",)
    assert run.suites["longbench_prompt"].tasks[0] == "longbench_qmsum_prompt"
    assert run.methods["mine"].suites == ("mini_recall", "mini_recall_prompt")
    # Results of a run that says nothing are those of one that names the suite's own protocol.
    silent = config(config_values, {"mini_recall": {**SUITE_SETTINGS, "tasks": ["mini_recall_single"]}})
    stamps = [quality_settings(one, "tiny", "mini_recall", "full") for one in (run, silent)]
    assert stamps[0] == stamps[1] and "question" not in stamps[0]


@pytest.mark.parametrize(
    ("suite", "settings", "says"),
    [
        ("mini_recall", {"question": "promt"}, "suites.mini_recall.question: unknown question 'promt'; nearest"),
        ("mini_recall", {"question": []}, "suites.mini_recall.question: is []; at least one"),
        ("mini_recall", {"question": ["prompt", "prompt"]}, "suites.mini_recall.question: 'prompt' stands twice"),
        ("math", {"question": "prompt"}, "suites.math.question: is 'prompt', but the suite math has no question"),
        ("pg19_long", {"question": ["decoded"]}, "pg19_long has no question"),
        ("longgenbench", {"question": "decoded"}, "longgenbench has no question"),
        ("longbench_prompt", {}, "is the suite longbench with `question: prompt`; write that"),
        ("passkey", {"question": "prompt", "tasks": ["passkey_depth_50_prompt"]}, "name: 'passkey_depth_50'"),
    ],
)  # fmt: skip
def test_wrong_protocols_fail(suite: str, settings: dict[str, Any], says: str, config_values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        config(config_values, {suite: {**SUITE_SETTINGS, **settings}})
    assert says in str(raised.value)


def test_every_suite_with_a_question_has_both_protocols() -> None:
    switched = {name for name in suite_names() if get_suite(name).question}
    own = {name for name in switched if folder_of(name)[0] == name}
    assert {"longbench", "ruler", "ruler_chat", "passkey", "json_kv", "mini_recall", "mini_longgen"} <= own
    assert len(switched) == 2 * len(own)
    for name in switched - own:
        folder = folder_of(name)[0]
        assert {get_suite(name).question, get_suite(folder).question} == {"decoded", "prompt"}
        assert len(suite_tasks(name)) == len(suite_tasks(folder))
        assert describe(name)["summary"] != describe(folder)["summary"]
        assert describe(name).get("family") == describe(folder).get("family")
        task, moved = (get_task(suite_tasks(suite)[0]) for suite in (folder, name))
        assert task.code_module == moved.code_module and task.metric == moved.metric


@pytest.mark.usefixtures("gate")
def test_full_answers_alike_under_both(config_values: dict[str, Any], chatty: Path, tmp_path: Path) -> None:
    asked = {**SUITE_SETTINGS, "contexts": [800], "question": ["decoded", "prompt"]}
    tasks = {"mini_recall": "mini_recall_multikey", "ruler_chat": "ruler_niah_single_1_chat"}
    suites = {name: {**asked, "tasks": [task]} for name, task in tasks.items()}
    models = {"tiny": {"path": str(chatty)}}
    run = config(config_values, suites, models=models, dtype="float32", methods={"full": {}}, seed=0)
    for first, second in zip(*[iter(run.suites)] * 2, strict=True):
        found = []
        for suite in (first, second):
            output = tmp_path / "records" / "tiny" / "full" / f"{suite}.parquet"
            evaluate_suite(run, "tiny", suite, {"full": output})
            found.append(read_records(output, Record))
        for one, two in zip(*found, strict=True):
            assert one.status == "ok" and one.output_ids == two.output_ids and one.score == two.score
            assert (one.suite, one.task, one.question) == (first, run.suites[first].tasks[0], get_suite(first).question)
            assert {one.question, two.question} == {"decoded", "prompt"} and one.prompt_sha256 != two.prompt_sha256
            # What is decoded is what differs: the question's tokens, one a step.
            decoded, prompt = sorted((one, two), key=lambda record: record.question)
            assert decoded.measures["decode_steps"] > prompt.measures["decode_steps"] + 5


def test_a_request_holds_the_tokens_of_both_parts(config_values: dict[str, Any], chatty: Path) -> None:
    asked = {**SUITE_SETTINGS, "contexts": [1000], "question": "decoded", "tasks": ["ruler_niah_single_1_chat"]}
    run = config(config_values, {"ruler_chat": asked}, models={"tiny": {"path": str(chatty)}})
    job = QualityJob(run, "tiny", "ruler_chat_decoded", torch.device("cpu"))
    (task,) = job.tasks.values()
    request = job.request(task, 1000, job.samples(task, 1000)[0])
    text = bytes((*request.prompt_ids, *request.forced_ids)).decode()
    assert text.startswith("<s>[user]A special magic number") and "[end][bot] The special magic number for" in text
    assert bytes(request.forced_ids).decode().startswith("What is the special magic number for")


def test_full_is_held_to_a_tasks_threshold_under_both_protocols(make_record: Callable[..., Record]) -> None:
    spec = replace(InstrumentSpec(), full_min_by_task={"mini_reason_8": 0.4})
    ran = (("mini_reason_prompt", "mini_reason_8_prompt"), ("mini_recall_prompt", "mini_recall_single_prompt"))
    records = [make_record(suite=suite, task=task, context=256, score=0.5) for suite, task in ran]
    found = {check.name: check.outcome for check in run_checks(spec, records) if check.name.startswith("full_solves")}
    assert found == {
        "full_solves/mini_reason_8_prompt/256": "passed", "full_solves/mini_recall_single_prompt/256": "failed",
    }  # fmt: skip
