"""Read a GGUF file: check its header, dequantise its tensors, and say its shape as transformers' config.json does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.errors import CheckpointError

CHUNK_ELEMENTS = 1 << 23
"""Elements that one thread dequantises at once: 32 MiB as float32, whatever the size of the tensor."""
_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_HEAD, _EMBEDDING = "output.weight", "token_embd.weight"
_OUTER = {_HEAD: "model.embed_tokens.weight", _EMBEDDING: "model.embed_tokens.weight"} | {
    "output_norm.weight": "model.norm.weight"
}
_SHAPE = {
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}  # fmt: skip
_TOKEN_IDS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding", "unk_token_id": "unknown"}


def open_gguf(file: Path) -> Any:
    """Return gguf's reader of a file.

    Raises:
        CheckpointError: it is no GGUF file.
    """
    from gguf import GGUFReader  # only converting needs it

    try:
        return GGUFReader(file)
    except (ValueError, IndexError, KeyError) as error:
        raise CheckpointError(f"{file} is not a readable GGUF file: {error}") from error


def value(reader: Any, key: str) -> Any:
    """Return the content of a header's field, ``None`` where there is none."""
    field = reader.get_field(key)
    return None if field is None else field.contents()


def check_header(reader: Any, file: Path, architecture: str, quantisation: str) -> None:
    """Refuse a GGUF file of another architecture or quantisation.

    Raises:
        CheckpointError: the header names another one, or none.
    """
    from gguf import LlamaFileType

    number = value(reader, "general.file_type")
    names = {int(kind): kind.name for kind in LlamaFileType}
    found = (value(reader, "general.architecture"), names.get(number, f"unknown ({number})"))
    if found != (architecture, quantisation):
        raise CheckpointError(
            f"{file} holds architecture {found[0]!r}, quantisation {found[1]!r}; "
            f"expected {architecture!r}, {quantisation!r}"
        )


def read_config(reader: Any, file: Path) -> dict[str, Any]:
    """Return the content of config.json, with the head tied to the embedding as all listed releases have it.

    Raises:
        CheckpointError: the header lacks a key.
    """
    from transformers import CONFIG_MAPPING

    family = value(reader, "general.architecture")
    shape = {name: value(reader, f"{family}.{key}") for name, key in _SHAPE.items()}
    base = value(reader, f"{family}.rope.freq_base")
    missing = [_SHAPE[name] for name, found in shape.items() if found is None] + ["rope.freq_base"] * (base is None)
    if missing:
        raise CheckpointError(f"{file}: the header lacks {', '.join(f'{family}.{key}' for key in missing)}")
    ids = {name: value(reader, f"tokenizer.ggml.{key}_token_id") for name, key in _TOKEN_IDS.items()}
    config = CONFIG_MAPPING[family](
        model_type=family,
        vocab_size=len(value(reader, "tokenizer.ggml.tokens")),
        tie_word_embeddings=True,
        rope_parameters={"rope_theta": base, "rope_type": "default"},
        **shape,
        **{name: found for name, found in ids.items() if found is not None},
    ).to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    return config | {"dtype": "bfloat16", "architectures": [f"{family.capitalize()}ForCausalLM"]}


def read_tensors(reader: Any, file: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """Dequantise every tensor, in threads; a head of its own stands for the embedding too.

    A release that ties the two quantises the head better (Q6_K where the embedding is Q4_K), so the head is the one
    taken.

    Raises:
        CheckpointError: a tensor has no place in the model.
    """
    family = value(reader, "general.architecture")
    heads = value(reader, f"{family}.attention.head_count"), value(reader, f"{family}.attention.head_count_kv")
    has_head = any(tensor.name == _HEAD for tensor in reader.tensors)
    found: dict[str, Tensor] = {}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        jobs = []
        for tensor in reader.tensors:
            if has_head and tensor.name == _EMBEDDING:
                continue
            rows = torch.empty(tuple(int(size) for size in reversed(tensor.shape)), dtype=dtype)
            found[_renamed(tensor.name, file)] = rows
            jobs += [threads.submit(_dequantise, tensor, rows, start, end) for start, end in _pieces(tensor)]
        for job in jobs:
            job.result()
    if family == "llama":
        for name, rows in found.items():
            if ".q_proj." in name or ".k_proj." in name:
                found[name] = _halves(rows, heads[".k_proj." in name])
    return found


def _renamed(name: str, file: Path) -> str:
    """Return transformers' name of a tensor."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    if name not in _OUTER:
        raise CheckpointError(f"{file}: the tensor {name} has no place in the model")
    return _OUTER[name]


def _pieces(tensor: Any) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of about ``CHUNK_ELEMENTS``: quantisation blocks never cross rows."""
    count = len(tensor.data)
    step = max(1, CHUNK_ELEMENTS * count // int(tensor.n_elements))
    yield from ((start, min(start + step, count)) for start in range(0, count, step))


def _dequantise(tensor: Any, rows: Tensor, start: int, end: int) -> None:
    from gguf import dequantize

    values = dequantize(tensor.data[start:end], tensor.tensor_type)
    rows[start:end] = torch.from_numpy(np.require(values, requirements=["C", "W"]))  # unquantised ones are the file's


def _halves(rows: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's order of a Llama's rotary rows: pairs side by side become transformers' two halves of a head."""
    paired = rows.view(heads, -1, 2, *rows.shape[1:])
    return paired.transpose(1, 2).reshape(rows.shape).contiguous()
