"""Shapes of published models that are timed with random weights: speed does not depend on what the weights hold."""

from __future__ import annotations

from typing import Any

# Numbers of meta-llama/Meta-Llama-3-8B config.json (architectures: LlamaForCausalLM).
_LLAMA3_8B: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "attention_bias": False, "hidden_act": "silu",
}  # fmt: skip
# Numbers of Qwen/Qwen3-8B config.json (architectures: Qwen3ForCausalLM).
_QWEN3_8B = _LLAMA3_8B | {
    "model_type": "qwen3", "vocab_size": 151936, "intermediate_size": 12288, "num_hidden_layers": 36,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
}  # fmt: skip
# NOSA-8B (MiniCPM4 family; third parties' notes on thunlp/NOSA): 2 KV heads, 16 query heads each.
_NOSA_8B = _LLAMA3_8B | {
    "vocab_size": 73448, "intermediate_size": 16384, "num_key_value_heads": 2, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
}  # fmt: skip
# The miniature's heads, for kernels in runs without a large device.
_MINIATURE = _LLAMA3_8B | {
    "vocab_size": 264, "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 12, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 16384, "tie_word_embeddings": True,
}  # fmt: skip
RAW_SHAPES = {
    "llama3-8b": _LLAMA3_8B, "qwen3-8b": _QWEN3_8B, "nosa-8b": _NOSA_8B, "miniature-shape": _MINIATURE,
}  # fmt: skip
"""Shapes by name, in the format of a config.json."""


def shape_names() -> tuple[str, ...]:
    """Return names that a configuration may use as a model without a checkpoint."""
    return tuple(RAW_SHAPES)
