"""Checkpoint folders and config.json: from a local path or a hub id to a ``ModelConfig``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from longdecode.engine.errors import CheckpointError, UnsupportedFamilyError
from longdecode.engine.model_cache import BUILT_MODELS, built_model
from longdecode.engine.model_config import ModelConfig

IMPORTANCE_FILE = "importance.safetensors"
"""Importance heads beside a checkpoint's weights; see ``methods.importance_heads``."""
SUPPORTED_FAMILIES = ("llama", "qwen2", "qwen3")
SUPPORTED_ROPE_TYPES = ("default", "llama3", "yarn")
_HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer*", "*.jinja"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SCALED_ROPE_KEYS = {
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
_ROPE_NUMBERS = frozenset(
    (
        "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast",
        "beta_slow", "attention_factor",
    )
)  # fmt: skip
_MOST = {
    "num_hidden_layers": 1024, "num_attention_heads": 1024, "num_key_value_heads": 1024, "head_dim": 4096,
    "hidden_size": 1 << 20, "intermediate_size": 1 << 22, "vocab_size": 1 << 24, "max_position_embeddings": 1 << 28,
}  # fmt: skip
"""Limits that no model comes near: a larger number is a damaged file."""


def resolve_checkpoint(path_or_id: str | Path, revision: str | None = None) -> Path:
    """Return the local folder of a checkpoint, downloading a hub id's config and safetensors when needed.

    Args:
        path_or_id: a local folder, a built model's name (``smollm2-long``), or a hub id such as ``Qwen/Qwen3-8B``.
        revision: branch, tag or commit of a hub id; local folders have none.

    Raises:
        CheckpointError: neither a folder nor a hub id that can be fetched.
        UnsupportedFamilyError: the hub id's config names an architecture the engine lacks; no weights are fetched.
    """
    built = built_model(str(path_or_id))
    folder = built or Path(path_or_id).expanduser()
    if folder.is_dir():
        return folder
    _refuse_odd_folder(folder, str(path_or_id))
    if built is not None:
        raise CheckpointError(f"{path_or_id} is not built yet; `snakemake {built / 'model.safetensors'}` builds it")
    if not _HUB_ID.fullmatch(str(path_or_id)):
        raise CheckpointError(f"no checkpoint folder at {folder}, and the name is not a hub id either")
    from huggingface_hub import hf_hub_download, snapshot_download

    name = str(path_or_id)
    try:
        config_file = Path(hf_hub_download(name, "config.json", revision=revision))
        read_config(config_file.parent)
        return Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
    except CheckpointError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        ours = [built for built in BUILT_MODELS if name.lower().rpartition("/")[2].startswith(built)]
        instead = f"; {ours[0]} is built here without the hub, in 4 bits" if ours else ""
        raise CheckpointError(
            f"{name!r} is not a local folder and could not be fetched from the hub: {type(error).__name__}: {reason}"
            + instead
        ) from error


def _refuse_odd_folder(folder: Path, given: str) -> None:
    """Refuse a path that is there and no folder, and one whose first part is a folder here: neither is a hub id."""
    if folder.is_symlink() and not folder.exists():
        raise CheckpointError(f"{given} is a link that leads nowhere; a checkpoint folder is needed")
    if folder.exists():
        raise CheckpointError(f"{given} is a file; the folder of a checkpoint is needed")
    parts = Path(given).parts
    if len(parts) > 1 and Path(parts[0]).expanduser().is_dir():
        raise CheckpointError(f"no checkpoint folder at {given} (seen from {Path.cwd()})")


def read_config(folder: Path) -> ModelConfig:
    """Read ``config.json`` of a checkpoint folder.

    Raises:
        CheckpointError: the file is missing, is not JSON or lacks a key.
        UnsupportedFamilyError: the architecture is not one the engine implements.
    """
    file = folder / "config.json"
    if not file.exists() and not file.is_symlink():
        raise CheckpointError(f"{folder} has no config.json")
    importance = folder / IMPORTANCE_FILE
    found = parse_config(read_json(file), str(file))
    return replace(found, importance_file=str(importance) if importance.is_file() else "")


def read_json(file: Path) -> dict[str, Any]:
    """Read a file of a checkpoint that holds one JSON object.

    Raises:
        CheckpointError: it is missing, unreadable, not JSON, or something else than an object.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not valid JSON: {' '.join(str(error).split())[:200]}") from error
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} holds a {type(content).__name__}, expected a JSON object")
    return content


def parse_config(raw: Mapping[str, Any], source: str) -> ModelConfig:
    """Turn the content of a config.json, in transformers' present or older format, into a ``ModelConfig``.

    Raises:
        CheckpointError: a needed key is missing or two keys contradict each other.
        UnsupportedFamilyError: the architecture is not one the engine implements.
    """
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in SUPPORTED_FAMILIES:
        raise UnsupportedFamilyError(
            f"{source}: model family {family!r} is not supported; supported: {', '.join(SUPPORTED_FAMILIES)}"
        )
    _refuse_unimplemented(raw, family, source)
    heads = _positive_int(raw, "num_attention_heads", source)
    hidden = _positive_int(raw, "hidden_size", source)
    kv_heads = _positive_int(raw, "num_key_value_heads", source, heads)
    # transformers' own defaults for a config that leaves head_dim out.
    head_dim = _positive_int(raw, "head_dim", source, 128 if family == "qwen3" else hidden // heads)
    if heads % kv_heads:
        raise CheckpointError(f"{source}: {heads} query heads are not a multiple of {kv_heads} KV heads")
    if head_dim % 2:
        raise CheckpointError(f"{source}: head_dim {head_dim} is odd, rotary embeddings need pairs")
    trained = _positive_int(raw, "max_position_embeddings", source)
    rope = _rope_parameters(raw, trained, source)
    attention_bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        family=family,
        vocab_size=_positive_int(raw, "vocab_size", source),
        hidden_size=hidden,
        intermediate_size=_positive_int(raw, "intermediate_size", source),
        num_layers=_positive_int(raw, "num_hidden_layers", source),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=_max_positions(trained, rope),
        rms_norm_eps=_positive(raw, "rms_norm_eps", source, 1e-6),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or attention_bias,
        o_bias=family != "qwen2" and attention_bias,
        qk_norm=family == "qwen3",
        rope=rope,
    )


def _refuse_unimplemented(raw: Mapping[str, Any], family: str, source: str) -> None:
    """Raise for variants of a supported family whose arithmetic the decoder does not have."""
    reasons = []
    if quantized := raw.get("quantization_config"):
        method = quantized.get("quant_method", "unknown") if isinstance(quantized, Mapping) else repr(quantized)[:40]
        reasons.append(f"quantized weights ({method}); supported: unquantized float weights")
    if raw.get("use_sliding_window") or "sliding_attention" in str(raw.get("layer_types")):
        reasons.append("sliding-window attention; supported: full attention in every layer")
    if any(raw.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        reasons.append("mixture of experts; supported: dense MLPs")
    if raw.get("hidden_act", "silu") != "silu":
        reasons.append(f"activation {raw['hidden_act']!r}; supported: silu")
    if raw.get("mlp_bias"):
        reasons.append("biases in the MLP; supported: none")
    if raw.get("auto_map"):
        reasons.append("custom modelling code (auto_map); remote code is never run")
    if reasons:
        raise UnsupportedFamilyError(f"{source}: family {family!r} with " + "; and ".join(reasons))


def _rope_parameters(raw: Mapping[str, Any], trained: int, source: str) -> dict[str, Any]:
    """Normalize both notations: ``rope_parameters`` (one dict) and ``rope_theta`` beside ``rope_scaling``."""
    rope: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(given := raw.get(key) or {}, Mapping):
            raise CheckpointError(f"{source}: {key} is {_shown(given)}, expected an object")
        rope |= given
    rope_type = rope.pop("rope_type", None) or rope.get("type") or "default"
    rope.pop("type", None)
    if not isinstance(rope_type, str) or rope_type not in SUPPORTED_ROPE_TYPES:
        raise UnsupportedFamilyError(
            f"{source}: rotary embedding {rope_type!r} is not supported; supported: {', '.join(SUPPORTED_ROPE_TYPES)}"
        )
    if (rope.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedFamilyError(f"{source}: partial rotary embeddings are not supported; supported: whole heads")
    rope = {key: value for key, value in rope.items() if value is not None}
    rope["rope_type"] = rope_type
    rope.setdefault("rope_theta", _positive(raw, "rope_theta", source, 10_000.0))
    if rope_type != "default":
        rope.setdefault("original_max_position_embeddings", raw.get("original_max_position_embeddings") or trained)
        missing = [key for key in _SCALED_ROPE_KEYS[rope_type] if key not in rope]
        if missing:
            raise CheckpointError(f"{source}: rotary embedding {rope_type!r} lacks {', '.join(missing)}")
    for key in _ROPE_NUMBERS & rope.keys():
        _positive(rope, key, f"{source}: rotary embedding")
    return rope


def _max_positions(trained: int, rope: Mapping[str, Any]) -> int:
    """The longest context; published YaRN recipes leave ``max_position_embeddings`` at the length before scaling."""
    if rope["rope_type"] != "yarn":
        return trained
    return max(trained, int(rope["factor"] * rope["original_max_position_embeddings"]))


def _positive_int(raw: Mapping[str, Any], key: str, source: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST[key]:
        raise CheckpointError(f"{source}: {key} is {_shown(value)}, expected a positive integer up to {_MOST[key]:,}")
    return value


def _positive(raw: Mapping[str, Any], key: str, source: str, default: float | None = None) -> float:
    value = raw.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise CheckpointError(f"{source}: {key} is {_shown(value)}, expected a positive number")
    return float(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
