"""Tiny random checkpoints in the place of the papers', laid out as the hub's own cache holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from tokenizers import Tokenizer, processors

from published_configs import as_transformers

WIDTH, HEAD_DIM, VOCAB, POSITIONS = 64, 8, 1024, 8192
SPECIAL = ("<|begin|>", "<|end|>")
EOS_EVERY = 12
"""Every twelfth token ends a generation: random models would else write to every limit."""
WRITTEN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = WRITTEN["architectures"]
CHAT = (
    "{{ bos_token or '' }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_checkpoint(hub: Path, name: str, size: Mapping[str, int], tokenizer: Tokenizer, seed: int = 0) -> Path:
    """Write one checkpoint: layers halved, heads as they are, each head and the width tiny, weights random.

    Args:
        hub: the hub's cache folder (``HF_HUB_CACHE``).
        name: hub id, a key of ``ARCHITECTURES``.
        size: its entry in config/papers/sizes.yaml.
        tokenizer: byte-level BPE of ``VOCAB`` tokens whose first two are ``SPECIAL``.

    Returns:
        The snapshot's folder.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

    own = dict(ARCHITECTURES[name])
    family, heads, base = own.pop("family"), own.pop("heads"), own.pop("base", False)
    raw = {
        "model_type": family, "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": POSITIONS, "num_hidden_layers": size["layers"] // 2, "num_attention_heads": heads,
        "num_key_value_heads": size["kv_heads"], "head_dim": HEAD_DIM, "eos_token_id": 1, "bos_token_id": 0, **own,
    }  # fmt: skip
    config = AutoConfig.for_model(**as_transformers(raw))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=list(range(1, VOCAB, EOS_EVERY)))
    cache = hub / f"models--{name.replace('/', '--')}"
    folder = cache / "snapshots" / ("0" * 40)
    model.save_pretrained(folder, max_shard_size="2MB")
    if family == "minicpm":
        (folder / "config.json").write_text(json.dumps(raw))
    template = {} if base else {"chat_template": CHAT}
    bos = {} if family.startswith("qwen") else {"bos_token": "<|begin|>"}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=with_first(tokenizer) if bos else tokenizer, eos_token="<|end|>", **bos, **template
    )
    fast.save_pretrained(folder)
    (cache / "refs").mkdir(exist_ok=True)
    (cache / "refs" / "main").write_text(folder.name)
    return folder


def with_first(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy that puts begin of text before every text, as Llama 3's does."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = processors.TemplateProcessing("<|begin|> $A", None, [("<|begin|>", 0)])
    return copy
