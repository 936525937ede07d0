"""The shipped checkpoint, loadable by ``transformers``, and the role files beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from longdecode.engine.config_reader import read_config
from longdecode.methods.head_roles import read_role_file, resolve_roles
from longdecode.training.miniature.model import Miniature, MiniatureShape
from longdecode.training.miniature.tokenizer import END_OF_TEXT_ID, byte_tokenizer

WEIGHTS = Path(__file__).resolve().parents[3] / "models" / "miniature" / "weights"


def test_what_ships_is_the_trainers_and_fits_sixteen_mebibytes() -> None:
    assert (WEIGHTS / "model.safetensors").stat().st_size <= 16 * 2**20
    assert json.loads((WEIGHTS / "config.json").read_text()) == MiniatureShape().config_json()


def test_transformers_loads_it_and_agrees_with_the_trainer() -> None:
    from transformers import AutoTokenizer, LlamaForCausalLM

    reference = LlamaForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    text = "The old mill stood [kxqz=4821] by the river.\n? kxqz\nkxqz=4821\n"
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert ids[0].tolist() == list(text.encode())
    trainer = Miniature(MiniatureShape(), compiled=False)
    state = {name: value for name, value in reference.state_dict().items() if name != "lm_head.weight"}
    trainer.load_state_dict(state)
    with torch.no_grad():
        expected, got = reference(ids).logits, trainer(ids)
    # The trainer multiplies in bfloat16: eight bits of mantissa over twelve layers.
    assert (expected - got).norm() / expected.norm() < 0.03
    answer = text.index("4821\n")
    assert expected[0, answer - 1 : answer + 3].argmax(-1).tolist() == list(b"4821")


@pytest.mark.parametrize("text", ["plain", "[abcd=0123] \n? ", "caf\u00e9 \u4e2d\n\t"])
def test_tokens_are_bytes(text: str) -> None:
    for tokenizer in (byte_tokenizer(), Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))):
        assert tokenizer.encode(text).ids == list(text.encode()) and tokenizer.decode(list(text.encode())) == text
        assert tokenizer.token_to_id("<|endoftext|>") == END_OF_TEXT_ID


ROOT = Path(__file__).parents[3]
RUNS = ROOT / "results" / "h200" / "identification" / "miniature"
SHIPPED = {"hardkuma": "hardkuma0", "hard_concrete": "hard_concrete0", "direct": "direct0", "duo": "duo"}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_map_is_that_of_its_training_and_fits_the_model(name: str) -> None:
    path = ROOT / "models" / "miniature" / "roles" / f"{name}.json"
    assert path.read_bytes() == (RUNS / SHIPPED[name] / "roles.json").read_bytes()
    file, layer0 = read_role_file(path), name != "duo"
    config = read_config(ROOT / "models" / "miniature" / "weights")
    stored = resolve_roles(str(path), None, 0, config, layer0=layer0)
    count = sum(map(sum, stored))
    assert count == (16 if layer0 else 24) and file.kind == name
    assert resolve_roles(str(path), count, 0, config, layer0=layer0) == stored


def test_every_shipped_map_is_known() -> None:
    assert {path.stem for path in (ROOT / "models" / "miniature" / "roles").glob("*.json")} == set(SHIPPED)
