"""The written tokenizer against transformers' own class for the same vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from longdecode.engine.errors import CheckpointError
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.models import tokenizer
from longdecode.models.gguf import open_gguf
from tiny_gguf import TEMPLATE, cut_as_qwen2tokenizer_cuts, vocabulary


def test_qwen_lines_are_cut_as_qwen2tokenizer_cuts_them(tiny_gguf: Callable, tmp_path: Path) -> None:
    tiny = tiny_gguf()
    tokenizer.write_tokenizer(open_gguf(tiny.file), tiny.file, tiny.source, tmp_path)
    tokens, kinds, merges = vocabulary()
    _, automatic = cut_as_qwen2tokenizer_cuts(tmp_path, tokens, kinds, merges, 300)
    assert (automatic.eos_token, automatic.pad_token, automatic.bos_token) == ("<|im_end|>", "<|endoftext|>", None)
    assert len(automatic) == len(tokens) - 2  # rows that only fill up are no tokens


def test_text_tokens_are_shown_and_control_tokens_are_not(tiny_gguf: Callable, tmp_path: Path) -> None:
    tiny = tiny_gguf()
    added = tokenizer.write_tokenizer(open_gguf(tiny.file), tiny.file, tiny.source, tmp_path)
    ours = load_tokenizer(tmp_path)
    ids = [added[token] for token in ("<|im_start|>", "<tool_call>", "<|fim_prefix|>", "<|im_end|>")]
    assert ours.decode(ids) == "<tool_call><|fim_prefix|>"
    assert ours.first_ids == () and ours.chat_text("Hi") == "<|im_start|>user\nHi<|im_end|>\n"
    assert TEMPLATE.count("<|im_end|>") == 1


def test_smollm_cuts_every_digit(tiny_gguf: Callable, tmp_path: Path) -> None:
    tiny = tiny_gguf("llama", "F16", False)
    tokenizer.write_tokenizer(open_gguf(tiny.file), tiny.file, tiny.source, tmp_path)
    ours, tokens = load_tokenizer(tmp_path), vocabulary()[0]
    assert [tokens[at] for at in ours.encode(" 12 the")] == ["Ġ", "1", "2", "Ġthe"]


def test_an_unknown_splitter_is_refused(tiny_gguf: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pre-tokenizer that is not known."""
    tiny = tiny_gguf()
    monkeypatch.delitem(tokenizer._BACKENDS, "qwen2")
    with pytest.raises(CheckpointError, match="'qwen2' is not supported; supported: smollm"):
        tokenizer.write_tokenizer(open_gguf(tiny.file), tiny.file, tiny.source, tmp_path)
