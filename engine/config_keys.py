"""Refuse a config.json that may ask for other arithmetic: a key must be known, or say that its feature is off."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from longdecode.engine.errors import CheckpointError, UnsupportedFamilyError

SUPPORTED_FAMILIES = ("llama", "minicpm", "mistral", "phi3", "qwen2", "qwen3", "qwen3_moe")
FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window")
_READ = frozenset(
    (
        "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling",
        "rope_parameters", "original_max_position_embeddings", "sliding_window", "layer_types", *FLAGS,
    )
)  # fmt: skip
"""Keys that the engine reads or checks by themselves."""
_OF_FAMILY = {
    "minicpm": frozenset((
        "scale_emb", "scale_depth", "dim_model_base", "mup_denominator", "sparse_config", "auto_map",
    )),
    "qwen3_moe": frozenset((
        "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
        "decoder_sparse_step", "mlp_only_layers", "output_router_logits", "router_aux_loss_coef",
    )),
}  # fmt: skip
"""Further keys that a family may have.

MiniCPM's ``mup_denominator`` is for draft heads. ``sparse_config`` asks for InfLLM-V2's attention above a length: that
is a method here, and the checkpoint itself runs with full attention. The code that ``auto_map`` names is never run;
its arithmetic is implemented.
"""
_NO_ARITHMETIC = frozenset(
    (
        # who wrote the file, and in which dtype it is stored
        "_commit_hash", "_name_or_path", "architectures", "dtype", "is_llama_config", "model_name", "name_or_path",
        "torch_dtype", "transformers.js_config", "transformers_version", "unsloth_fixed", "unsloth_version",
        # tokens, texts and labels
        "begin_suppress_tokens", "bos_token_id", "decoder_start_token_id", "eos_token_id", "id2label", "label2id",
        "pad_token", "pad_token_id", "prefix", "sep_token_id", "task_specific_params", "tokenizer_class",
        "unk_token_id",
        # lengths that other programs read
        "max_seq_len", "max_sequence_length", "model_max_length", "max_window_layers",
        # training, memory, form of the output
        "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
        "_flash_attn_2_enabled", "attn_implementation", "chunk_size_feed_forward", "finetuning_task",
        "gradient_checkpointing", "initializer_range", "is_decoder", "keys_to_ignore_at_inference",
        "neftune_noise_alpha", "output_attentions", "output_hidden_states", "output_past", "problem_type",
        "return_dict", "torchscript", "use_bfloat16", "use_cache",
        # generation defaults that old versions kept here; tasks and samplers set their own
        "bad_words_ids", "diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty",
        "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
        "num_return_sequences", "output_scores", "remove_invalid_values", "repetition_penalty",
        "return_dict_in_generate", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
    )
)  # fmt: skip
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "is_causal": (True,),
    "partial_rotary_factor": (1, None),
    "pretraining_tp": (1, None),
}
"""Keys of which one meaning is implemented, whether or not another looks like a feature that is off."""
_DENSE = "mixture of experts; supported: that of qwen3_moe"
_SHARED = "an expert that all tokens share; supported: experts that a router chooses"
_REASONS = {
    "quantization_config": "supported: unquantized float weights",
    "hidden_act": "activation; supported: silu",
    "mlp_bias": "biases in the MLP; supported: none",
    "partial_rotary_factor": "partial rotary embeddings; supported: whole heads",
    "use_sliding_window": "sliding-window attention; supported: full attention in every layer",
    "auto_map": "custom modelling code; remote code is never run",
    "num_experts": _DENSE,
    "num_local_experts": _DENSE,
    "n_routed_experts": _DENSE,
    "shared_expert_intermediate_size": _SHARED,
    "n_shared_experts": _SHARED,
}
_UNKNOWN = "the engine does not know this key, and it may change the arithmetic; where it does not, remove it"
_DROPOUT = re.compile(r"dropout|_pdrop$")
_COUNT = re.compile(r"(num|n)_")


def refuse_unimplemented(raw: Mapping[str, Any], family: str, source: str) -> None:
    """Raise for a key that is not known to leave the decoder's arithmetic as it is.

    Raises:
        CheckpointError: a flag that is neither true nor false, or layer types that do not fit the number of layers.
        UnsupportedFamilyError: a key asks for arithmetic that the engine lacks, or may.
    """
    for key in FLAGS:
        if not isinstance(raw.get(key), bool | None):
            raise CheckpointError(f"{source}: {key} is {shown(raw[key])}, expected true or false")
    foreign = [key for key in raw if _is_foreign(key, raw[key], family)]
    reasons = [f"{key} = {shown(raw[key])} ({_REASONS.get(key, _UNKNOWN)})" for key in foreign]
    if isinstance(quantized := raw.get("quantization_config"), Mapping) and "quant_method" in quantized:
        reasons.insert(0, f"quantized weights ({shown(quantized['quant_method'])})")
    reasons += [f"{key} = True ({_REASONS[key]})" for key in ("use_sliding_window", "mlp_bias") if raw.get(key)]
    if family in ("mistral", "phi3") and raw.get("attention_bias"):
        reasons.append("attention_bias = True (biases in the attention; supported in this family: none)")
    reasons += _windows(raw, family, source)
    if reasons:
        raise UnsupportedFamilyError(f"{source}: family {family!r} with " + "; and ".join(reasons))


def _is_foreign(key: str, value: Any, family: str) -> bool:
    if key in _ONLY:
        return value not in _ONLY[key]
    known = _READ | _OF_FAMILY.get(family, frozenset())
    return not (key in known or key in _NO_ARITHMETIC or _DROPOUT.search(key) or _is_off(key, value))


def _is_off(key: str, value: Any) -> bool:
    """Tell whether a value says that there is no such feature: none, false, empty, or zero of what is counted."""
    if value is None or value is False:
        return True
    if isinstance(value, str | list | dict):
        return not value
    return value == 0 and _COUNT.match(key) is not None


def _windows(raw: Mapping[str, Any], family: str, source: str) -> list[str]:
    """Reasons to refuse windows.

    Qwen has none unless ``use_sliding_window`` is true. Mistral has one unless null says so; Phi has the one that is
    given, whatever the switch says.
    """
    reasons = []
    if not isinstance(types := raw.get("layer_types"), list | None):
        raise CheckpointError(f"{source}: layer_types is {shown(types)}, expected a list of one entry a layer")
    if others := sorted({repr(kind) for kind in types or ()} - {"'full_attention'"}):
        kind = "sliding-window attention: " if "'sliding_attention'" in others else ""
        reasons.append(f"layer_types with {', '.join(others)} ({kind}supported: full_attention in every layer)")
    elif types and len(types) != raw.get("num_hidden_layers"):
        layers = raw.get("num_hidden_layers")
        raise CheckpointError(f"{source}: layer_types has {len(types)} entries, num_hidden_layers is {shown(layers)}")
    switch = raw.get("use_sliding_window")
    by_family = {"mistral": False, "phi3": False} | dict.fromkeys(("qwen2", "qwen3", "qwen3_moe"), not switch)
    is_off = by_family.get(family, switch is False)
    window = raw.get("sliding_window", 4096 if family == "mistral" else None)
    if window is not None and not is_off and not switch:
        absent = "" if "sliding_window" in raw else ": transformers' value where the key is absent; null means none"
        reasons.append(f"sliding_window = {shown(window)} (sliding-window attention{absent})")
    return reasons


def shown(value: Any) -> str:
    """A value for an error message, cut to a length that a line bears."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
