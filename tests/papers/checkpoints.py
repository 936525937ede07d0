"""Tiny random checkpoints in the place of the papers', laid out as the hub's own cache holds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, processors

WIDTH, HEAD_DIM, VOCAB, POSITIONS = 64, 8, 1024, 8192
SPECIAL = ("<|begin|>", "<|end|>")
EOS_EVERY = 12
"""Every twelfth token ends a generation: random models would else write to every limit."""
LLAMA31_ROPE = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}  # fmt: skip
ARCHITECTURES: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
    "gradientai/Llama-3-8B-Instruct-Gradient-1048k": ("llama", 32, {"rope_theta": 3.58e9}),
    "Qwen/Qwen3-8B": ("qwen3", 32, {"rope_theta": 1e6}),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", 32, {"rope_parameters": LLAMA31_ROPE}),
    "meta-llama/Llama-3.1-8B": ("llama", 32, {"rope_parameters": LLAMA31_ROPE}),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": ("llama", 32, {"rope_parameters": LLAMA31_ROPE}),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": ("qwen2", 28, {"rope_theta": 1e4}),
    "Qwen/Qwen2.5-7B": ("qwen2", 28, {"rope_theta": 1e6}),
    "Qwen/Qwen2.5-1.5B": ("qwen2", 12, {"rope_theta": 1e6}),
    **{f"Qwen/Qwen2.5-{size}": ("qwen2", 40, {"rope_theta": 1e6}) for size in ("14B", "14B-Instruct", "32B-Instruct")},
    "mistralai/Mistral-7B-Instruct-v0.3": ("mistral", 32, {"rope_theta": 1e6, "sliding_window": None}),
    "Qwen/Qwen3-30B-A3B": ("qwen3_moe", 32, {"rope_theta": 1e6, "num_experts": 8, "moe_intermediate_size": 32}),
}
"""Family, query heads and rotary embedding of each checkpoint, as its config.json has them."""
CHAT = (
    "{{ bos_token or '' }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BASE = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-14B")
"""Checkpoints without a chat template."""


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

    family, heads, rope = ARCHITECTURES[name]
    config = AutoConfig.for_model(
        family, vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=2 * WIDTH, max_position_embeddings=POSITIONS,
        num_hidden_layers=size["layers"] // 2, num_attention_heads=heads, num_key_value_heads=size["kv_heads"],
        head_dim=HEAD_DIM, eos_token_id=1, bos_token_id=0, **rope,
    )  # fmt: skip
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
    template = {} if name in BASE else {"chat_template": CHAT}
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
