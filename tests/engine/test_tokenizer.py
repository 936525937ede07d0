"""Tokenizers: bytes are recognised as bytes, everything else is not, and nothing is added to a text."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from longdecode.engine.errors import CheckpointError, UnsupportedCellError
from longdecode.engine.tokenizer import eos_ids, load_tokenizer


def test_the_byte_tokenizer_gives_bytes(byte_checkpoint: Path, seed: int) -> None:
    tokenizer = load_tokenizer(byte_checkpoint)
    assert tokenizer.byte_level
    text = "".join(random.Random(seed).choices([chr(code) for code in (9, 10, *range(32, 127), 0xE9, 0x2014)], k=300))
    ids = tokenizer.encode(text)
    assert bytes(ids) == text.encode() and tokenizer.decode(ids) == text and tokenizer.decode([*ids, 256]) == text


def test_a_word_tokenizer_is_not_byte_level_and_adds_nothing(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "<s>": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 3)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path)
    assert not loaded.byte_level and loaded.encode("a b a") == (1, 2, 1)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


@pytest.fixture
def word_checkpoint(tmp_path: Path) -> Path:
    """A word-level tokenizer that puts special tokens on both sides of a text, with an instruction template."""
    words = ["[UNK]", "a", "b", "<s>", "</s>", "<user>", "<bot>"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>", "<user>", "<bot>"])
    ends = [("<s>", 3), ("</s>", 4)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 4}))
    return tmp_path


def test_prompts_begin_with_what_the_tokenizer_puts_first(word_checkpoint: Path, byte_checkpoint: Path) -> None:
    tokenizer = load_tokenizer(word_checkpoint)
    assert tokenizer.first_ids == (3,) and tokenizer.prompt_ids("a b") == (3, 1, 2)
    assert load_tokenizer(byte_checkpoint).first_ids == ()
    assert load_tokenizer(byte_checkpoint).prompt_ids("ab") == (97, 98)


def test_a_chat_template_goes_around_the_text_and_brings_its_own_special_tokens(word_checkpoint: Path) -> None:
    turns = "{% for m in messages %}<user>{{ m['content'] }}</s>{% endfor %}"
    template = "<s>" + turns + "{% if add_generation_prompt %}<bot>{% endif %}"
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (word_checkpoint / "tokenizer_config.json").write_text(json.dumps(values))
    tokenizer = load_tokenizer(word_checkpoint)
    assert tokenizer.chat_text("a b") == "<s><user>a b</s><bot>"
    assert tokenizer.prompt_ids("a b", chat=True) == (3, 5, 1, 2, 4, 6)


@pytest.mark.parametrize("template", ["{{ messages[0].content[0].text }}", "{{ messages[0].content | upper }}", "Hi."])
def test_a_template_without_the_users_words_is_refused(template: str, word_checkpoint: Path) -> None:
    """Such as one that expects a list of parts, text and images: the question would be missing from the prompt."""
    (word_checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(UnsupportedCellError, match="leaves out, or alters, the user's words"):
        load_tokenizer(word_checkpoint).chat_text("a b")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__.os.mkdir('planted') }}", "{{ messages.clear() }}",
        "{% for _ in range(10 ** 12) %}{% endfor %}", "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)  # fmt: skip
def test_a_template_neither_runs_code_nor_never_ends(template: str, word_checkpoint: Path) -> None:
    (word_checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": template + "a b"}))
    with pytest.raises(UnsupportedCellError, match=r"filled in: (Security|Undefined|Overflow|Recursion)Error: "):
        load_tokenizer(word_checkpoint).chat_text("a b")


def test_a_model_without_chat_template_is_refused(word_checkpoint: Path) -> None:
    with pytest.raises(UnsupportedCellError, match=f"{word_checkpoint} has no chat template"):
        load_tokenizer(word_checkpoint).prompt_ids("a", chat=True)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [(None, 7, {7}), ([1, 2], 7, {1, 2}), (5, None, {5}), (None, None, set()), (None, [3, 4], {3, 4})],
)
def test_end_tokens_are_those_transformers_would_stop_at(
    generation: int | list[int] | None, config: int | list[int] | None, expected: set[int], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": config}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    assert eos_ids(tmp_path) == expected


def test_end_tokens_that_are_no_ids_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": "</s>"}))
    with pytest.raises(CheckpointError, match="'</s>'"):
        eos_ids(tmp_path)
