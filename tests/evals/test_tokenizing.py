"""Tokenizers: bytes are recognised as bytes, everything else is not, and nothing is added to a text."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from longdecode.engine.errors import CheckpointError
from longdecode.evals.tokenizing import load_tokenizer


def test_the_byte_tokenizer_gives_bytes(byte_checkpoint: Path, seed: int) -> None:
    tokenizer = load_tokenizer(byte_checkpoint)
    assert tokenizer.byte_level
    rng = random.Random(seed)
    text = "".join(rng.choices([chr(code) for code in (9, 10, *range(32, 127), 0xE9, 0x2014)], k=300))
    ids = tokenizer.encode(text)
    assert bytes(ids) == text.encode()
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, 256]) == text


def test_a_word_tokenizer_is_not_byte_level_and_adds_nothing(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "<s>": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert not loaded.byte_level
    assert loaded.encode("a b a") == (1, 2, 1)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        load_tokenizer(tmp_path)
