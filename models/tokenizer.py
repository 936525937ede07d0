"""Write a checkpoint's tokenizer from the vocabulary, merges and token kinds of a GGUF header."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from longdecode.engine.errors import CheckpointError
from longdecode.models.gguf import value
from longdecode.models.sources import Source

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pieces that merges never cross; every digit is one."""
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
"""Token kinds of GGUF; unused ones only fill the embedding up to its size and are no tokens of the release."""


def write_tokenizer(reader: Any, file: Path, source: Source, folder: Path) -> dict[str, int]:
    """Write tokenizer.json and tokenizer_config.json with the chat template; return the ids of the added tokens.

    Raises:
        CheckpointError: the header holds no vocabulary, or a pre-tokenizer without a rule here.
    """
    keys = ("tokens", "token_type", "merges", "pre")
    tokens, kinds, merges, pre = (value(reader, f"tokenizer.ggml.{key}") for key in keys)
    if not tokens or not kinds or merges is None:
        raise CheckpointError(f"{file}: the header holds no vocabulary with merges")
    if pre not in _BACKENDS:
        raise CheckpointError(f"{file}: pre-tokenizer {pre!r} is not supported; supported: {', '.join(_BACKENDS)}")
    added = {token: at for at, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind in _ADDED}
    special = {at for token, at in added.items() if kinds[at] == _CONTROL and token not in source.text_tokens}
    vocabulary = {token: at for at, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != _UNUSED}
    tokenizer = _BACKENDS[pre](vocabulary, [tuple(merge.split(" ", 1)) for merge in merges], source)
    # In the order of their ids, as tokenizer.json lists them.
    tokenizer.add_tokens([AddedToken(token, special=at in special, normalized=False) for token, at in added.items()])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        **source.special_tokens, "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
        "chat_template": value(reader, "tokenizer.chat_template"),
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return added


def _smollm(vocabulary: dict[str, int], merges: list[tuple[str, ...]], source: Source) -> Tokenizer:
    """Every digit by itself, then GPT-2's bytes."""
    unknown = source.special_tokens["unk_token"]
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _qwen2(vocabulary: dict[str, int], merges: list[tuple[str, ...]], source: Source) -> Tokenizer:
    """Composed characters (NFC), pieces of ``QWEN2_SPLIT``, then their bytes."""
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


_ADDED = (_CONTROL, _USER_DEFINED)
_BACKENDS = {"smollm": _smollm, "qwen2": _qwen2}
