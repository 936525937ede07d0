"""Suites and lm-eval's adapter read a tokenizer alike: same tokens, same first tokens, same ends, nothing cut."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from longdecode.engine.errors import CheckpointError, UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer, eos_ids, load_tokenizer
from longdecode.evals.lm_eval_adapter.model import LongDecodeLM
from longdecode.evals.tasks.fitting import largest_fitting
from longdecode.evals.tasks.registry import get_task

TEXT = "Two words,  three spaces:\n and then an end."
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")


@pytest.fixture
def subword_checkpoint(byte_checkpoint: Path, tmp_path: Path) -> Callable[..., Path]:
    """Maker of a checkpoint with a byte-level BPE of 64 subwords and the given tokenizer_config.json."""

    def make(first: bool = False, truncated: int = 0, **config: Any) -> Path:
        folder = Path(shutil.copytree(byte_checkpoint, tmp_path / "model"))
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator([TEXT * 9], trainers.BpeTrainer(vocab_size=64, show_progress=False))
        tokenizer.add_tokens([AddedToken(text, special=True) for text in SPECIAL])
        if first:
            begin = tokenizer.token_to_id("<s>")
            tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
        if truncated:
            tokenizer.enable_truncation(truncated)
            tokenizer.enable_padding(length=truncated)
        tokenizer.save(str(folder / "tokenizer.json"))
        values = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"} | config
        (folder / "tokenizer_config.json").write_text(json.dumps(values))
        return folder

    return make


def adapter(folder: Path) -> LongDecodeLM:
    return LongDecodeLM(str(folder), device="cpu", dtype="float32", gate=False)


def token(folder: Path, text: str) -> int:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(text)


@pytest.mark.parametrize("first", [False, True])
def test_a_byte_level_llama_tokenizer_keeps_its_spaces(first: bool, subword_checkpoint: Callable[..., Path]) -> None:
    """Its configuration calls it a Llama's."""
    folder = subword_checkpoint(first=first, add_bos_token=True, chat_template=CHATML)
    expected = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids
    lm, tokenizer = adapter(folder), load_tokenizer(folder)
    assert lm.tok_encode(TEXT) == list(tokenizer.prompt_ids(TEXT)) == expected
    assert lm.text.decode(expected) == tokenizer.decode(expected) == TEXT
    assert lm.tok_encode(TEXT, add_special_tokens=False) == list(tokenizer.encode(TEXT))
    assert lm.prefix_token_id == token(folder, "<s>")
    assert lm.apply_chat_template([{"role": "user", "content": TEXT}]) == tokenizer.chat_text(TEXT)
    assert lm.chat_template(True) == CHATML


def test_a_template_in_a_file_of_its_own_is_found(subword_checkpoint: Callable[..., Path]) -> None:
    folder = subword_checkpoint(chat_template=[{"name": "default", "template": MISTRAL}])
    assert load_tokenizer(folder).chat_text("a") == "<s>[INST] a [/INST]"
    (folder / "chat_template.jinja").write_text(CHATML)
    assert load_tokenizer(folder).chat_text("a").startswith("<|im_start|>user")
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "default.jinja").write_text(LLAMA3)
    assert load_tokenizer(folder).chat_text("a") == adapter(folder).apply_chat_template(
        [{"role": "user", "content": "a"}]
    )
    assert eos_ids(folder) == {token(folder, "<|eot_id|>")}


def test_the_adapter_refuses_the_templates_that_suites_refuse(subword_checkpoint: Callable[..., Path]) -> None:
    folder = subword_checkpoint(chat_template="{{ messages[0].content[0].text }}")
    with pytest.raises(UnsupportedCellError, match="the user's words"):
        adapter(folder).apply_chat_template([{"role": "user", "content": "a"}])
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UnsupportedCellError, match="no chat template"):
        adapter(folder).apply_chat_template([{"role": "user", "content": "a"}])
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "so it"}]
    begun = adapter(folder).apply_chat_template(turns, add_generation_prompt=False)
    assert begun.endswith("<|im_start|>assistant\nso it")


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (CHATML, {"</s>", "<|im_end|>"}),
        (LLAMA3, {"</s>", "<|eot_id|>"}),
        (MISTRAL, {"</s>"}),
        ([{"name": "default", "template": CHATML}, {"name": "rag", "template": LLAMA3}], {"</s>", "<|im_end|>"}),
        ([{"name": "rag", "template": LLAMA3}], {"</s>"}),
        (None, {"</s>"}),
        ("{{ raise_exception('no') }}", {"</s>"}),
        ("{% for", {"</s>"}),
        ("{% for m in messages %}{{ m.content }} and so on{% endfor %}", {"</s>"}),
        ("{% for m in messages %}<s>{% endfor %}", {"</s>"}),
        (
            "{% for m in messages %}{{ m.content }}{% if not loop.last %}<|eot_id|>{% endif %}{% endfor %}",
            {"</s>", "<|eot_id|>"},
        ),
    ],
)
def test_the_end_of_a_turn_ends_a_text(template: Any, ends: set[str], subword_checkpoint: Callable[..., Path]) -> None:
    folder = subword_checkpoint(**({"chat_template": template} if template else {}))
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    expected = {7} | {token(folder, text) for text in ends}
    assert eos_ids(folder) == eos_ids(folder, load_tokenizer(folder)) == adapter(folder)._eos_ids == expected


def test_special_tokens_as_objects_in_files_of_their_own(subword_checkpoint: Callable[..., Path]) -> None:
    folder = subword_checkpoint(eos_token={"content": "<|eot_id|>", "lstrip": False})
    assert eos_ids(folder) == {token(folder, "<|eot_id|>")}
    (folder / "tokenizer_config.json").unlink()
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert eos_ids(folder) == {token(folder, "</s>")}
    (folder / "special_tokens_map.json").write_text('{"eos_token": "of another vocabulary"}')
    assert not eos_ids(folder)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "added_tokens.json"])
def test_tokens_declared_beside_tokenizer_json_are_added(file: str, subword_checkpoint: Callable[..., Path]) -> None:
    folder = subword_checkpoint(chat_template=CHATML.replace("<|im_end|>", "<|stop|>"))
    place = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    decoder = {"added_tokens_decoder": {str(place): {"content": "<|stop|>", "special": True, "normalized": False}}}
    content = json.loads((folder / file).read_text()) | decoder if file.endswith("config.json") else {"<|stop|>": place}
    (folder / file).write_text(json.dumps(content))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.library is not None
    prompt = tokenizer.chat_text(TEXT)
    assert place in tokenizer.encode(prompt) and place in eos_ids(folder)
    assert list(tokenizer.encode(prompt)) == tokenizer.library.encode(prompt, add_special_tokens=False)
    (folder / file).write_text((folder / file).read_text().replace(str(place), str(place + 7)))
    with pytest.raises(CheckpointError, match=r"'<\|stop\|>' is not in tokenizer\.json"):
        load_tokenizer(folder)


@pytest.mark.parametrize("decoder", [[1], {"x": {"content": "<n>"}}, {"300": "<n>"}, {"300": {}}])
def test_declared_tokens_of_another_form_are_refused(decoder: Any, subword_checkpoint: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match="names no tokens by id"):
        load_tokenizer(subword_checkpoint(added_tokens_decoder=decoder))


def test_a_tokenizer_without_its_vocabulary_is_refused(subword_checkpoint: Callable[..., Path]) -> None:
    folder = subword_checkpoint()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="its tokenizer's vocabulary is missing or empty"):
        load_tokenizer(folder)


def test_what_a_tokenizers_last_user_cut_is_encoded_whole(subword_checkpoint: Callable[..., Path]) -> None:
    folder, long = subword_checkpoint(truncated=100), TEXT * 50
    whole = load_tokenizer(folder).encode(long)
    assert load_tokenizer(folder).decode(whole) == long
    assert adapter(folder).tok_encode(long) == list(whole) and len(whole) > 500
    assert len(load_tokenizer(folder).encode("a")) == 1, "nothing is padded"
    raw = json.loads((folder / "tokenizer.json").read_text())
    raw["model"]["dropout"] = 0.9
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    assert load_tokenizer(folder).encode(long) == whole, "merges are not left out at random"


@pytest.mark.parametrize("task", ["mini_recall_single", "passkey_depth_50", "json_kv", "ruler_vt"])
def test_generated_tasks_fill_a_context_over_what_was_cut(task: str, subword_checkpoint: Callable[..., Path]) -> None:
    tokenizer = load_tokenizer(subword_checkpoint(truncated=1024))
    (sample,) = get_task(task).samples(4096, 1, 0, tokenizer)
    assert 3500 < len(tokenizer.prompt_ids(sample.prompt)) <= 4096


@pytest.mark.parametrize(
    "tokens", [lambda size: 5, lambda size: min(size, 1024), lambda size: size % 7, lambda size: 0]
)
def test_a_tokenizer_that_never_fills_the_context_is_refused(tokens: Callable[[int], int]) -> None:
    with pytest.raises(CheckpointError, match="tokens"):
        largest_fitting(tokens, 4096, 1)


def test_a_tokenizer_of_transformers_is_not_cut_either(subword_checkpoint: Callable[..., Path]) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = subword_checkpoint(truncated=10)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    assert TextTokenizer(theirs, folder).encode(TEXT) == load_tokenizer(folder).encode(TEXT)
