"""Keys and values of published config.json files, as their authors wrote them."""

from __future__ import annotations

from typing import Any

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": None,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.40.0",
    "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
_LLAMA_31 = _LLAMA | {
    "max_position_embeddings": 131072, "mlp_bias": False, "eos_token_id": [128001, 128008, 128009],
    "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip
_QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
    "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02, "intermediate_size": 18944,
    "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "sliding_window": 131072, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "transformers_version": "4.43.1", "use_sliding_window": False, "vocab_size": 152064,
}  # fmt: skip
MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.36.0", "use_cache": True,
    "vocab_size": 32000,
}  # fmt: skip

RUNNABLE: dict[str, dict[str, Any]] = {
    "Llama-2-7b": _LLAMA
    | {
        "_name_or_path": "meta-llama/Llama-2-7b-hf", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "intermediate_size": 11008, "max_length": 4096, "max_position_embeddings": 4096, "num_key_value_heads": 32,
        "torch_dtype": "float16", "vocab_size": 32000,
    },
    "Meta-Llama-3-8B": _LLAMA,
    "Llama-3.1-8B-Instruct": _LLAMA_31,
    "Llama-3.2-1B": _LLAMA_31
    | {
        "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "tie_word_embeddings": True, "rope_scaling": _LLAMA_31["rope_scaling"] | {"factor": 32.0},
    },
    "DeepSeek-R1-Distill-Llama-8B": _LLAMA_31 | {"eos_token_id": 128001, "transformers_version": "4.43.0.dev0"},
    "SmolLM2-135M": _LLAMA
    | {
        "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": True, "num_attention_heads": 9,
        "num_hidden_layers": 30, "num_key_value_heads": 3, "rope_interleaved": False, "rope_theta": 100000,
        "tie_word_embeddings": True, "vocab_size": 49152,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    },
    "TinyLlama-1.1B-Chat": _LLAMA
    | {
        "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 2048, "num_hidden_layers": 22,
        "num_key_value_heads": 4, "rope_theta": 10000.0, "vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2,
    },
    "Qwen2-7B": _QWEN2,
    "Qwen2.5-7B-Instruct with YaRN": _QWEN2
    | {"rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}},
    "DeepSeek-R1-Distill-Qwen-7B": _QWEN2
    | {"max_position_embeddings": 131072, "rope_theta": 10000, "sliding_window": 4096, "use_mrope": False},
    "Qwen3-8B": _QWEN2
    | {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rope_scaling": None,
        "sliding_window": None, "vocab_size": 151936,
    },
    "Mistral-7B-Instruct-v0.2": MISTRAL,
    "Mistral-7B-v0.3": MISTRAL | {"vocab_size": 32768, "transformers_version": "4.42.0.dev0"},
    "Mistral-Nemo-Base": MISTRAL
    | {"head_dim": 128, "hidden_size": 5120, "max_position_embeddings": 128000, "num_hidden_layers": 40},
    "Qwen3 saved by transformers 5": {
        key: value for key, value in _QWEN2.items() if key not in ("rope_theta", "torch_dtype")
    } | {
        "dtype": "bfloat16", "layer_types": ["full_attention"] * 28, "model_type": "qwen3", "pad_token_id": None,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "sliding_window": None,
    },
    "a config with how it was trained and run": _LLAMA
    | {
        "_flash_attn_2_enabled": True, "keys_to_ignore_at_inference": ["past_key_values"], "neftune_noise_alpha": 5,
        "output_past": True, "pad_token": "<pad>",
    },
    "a config of early transformers": _LLAMA
    | {
        "add_cross_attention": False, "bad_words_ids": None, "chunk_size_feed_forward": 0, "diversity_penalty": 0.0,
        "do_sample": False, "early_stopping": False, "finetuning_task": None, "id2label": {"0": "LABEL_0"},
        "is_decoder": False, "is_encoder_decoder": False, "length_penalty": 1.0, "max_length": 20, "min_length": 0,
        "no_repeat_ngram_size": 0, "num_beams": 1, "num_return_sequences": 1, "output_scores": False, "prefix": None,
        "pruned_heads": {}, "repetition_penalty": 1.0, "return_dict": True, "task_specific_params": None,
        "temperature": 1.0, "tie_encoder_decoder": False, "top_k": 50, "top_p": 1.0, "torchscript": False,
        "typical_p": 1.0, "use_bfloat16": False, "num_experts": 0,
    },
}  # fmt: skip
"""Checkpoints that run, by name."""

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Mistral-7B-v0.1": (MISTRAL | {"rope_theta": 10000.0, "sliding_window": 4096}, "sliding_window = 4096"),
    "Phi-3-mini": (_LLAMA | {"model_type": "phi3", "original_max_position_embeddings": 4096}, "'phi3'"),
    "MiniCPM4-8B": (_LLAMA | {"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4}, "'minicpm'"),
    "MiniCPM4 called a Llama": (_LLAMA | {"scale_emb": 12, "dim_model_base": 256}, "scale_emb = 12.*dim_model_base"),
    "Mixtral called a Mistral": (MISTRAL | {"num_local_experts": 8, "num_experts_per_tok": 2}, "num_local_experts = 8"),
    "Gemma 2": (_LLAMA | {"model_type": "gemma2", "attn_logit_softcapping": 50.0}, "'gemma2'"),
    "Granite called a Llama": (_LLAMA | {"residual_multiplier": 0.22}, "residual_multiplier = 0.22"),
    "SmolLM3 called a Llama": (_LLAMA | {"no_rope_layers": [1, 1, 1, 0] * 8}, "no_rope_layers"),
    "Llama 4 called a Llama": (
        _LLAMA | {"layer_types": ["chunked_attention", "full_attention"] * 16}, "layer_types with 'chunked_attention'",
    ),
}  # fmt: skip
"""Checkpoints that are refused, and the key that the refusal names."""
